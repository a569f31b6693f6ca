//! From a record to a training example: ids, and which of them the loss is taken on. Text gets the model's special tokens
//! around it and an end; a conversation is rendered by the chat template, which writes its own. It refuses conversations
//! for models without a template; whether what is left is worth a step is the caller's matter.

use crate::chat::ChatTemplate;
use crate::error::{Result, TextError};
use crate::records::Record;
use crate::tokenizer::Tokenizer;

/// A sequence to train on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The tokens.
    pub ids: Vec<u32>,
    /// For each token whether its prediction from those before it counts; never for the first.
    pub loss: Vec<bool>,
    /// The full length, where the example was cut to the longest sequence allowed.
    pub cut_from: Option<usize>,
}

/// Makes examples of records.
pub struct ExampleMaker<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    max_seq_length: usize,
}

impl<'a> ExampleMaker<'a> {
    /// Examples of at most `max_seq_length` tokens; conversations need a template.
    pub fn new(tokenizer: &'a Tokenizer, template: Option<&'a ChatTemplate>, max_seq_length: usize) -> Self {
        Self { tokenizer, template, max_seq_length }
    }

    /// Makes the example of one record.
    pub fn example(&self, record: &Record) -> Result<Example> {
        let mut ids = Vec::new();
        match record {
            Record::Text(text) => {
                self.tokenizer.encode(text, true, &mut ids);
                ids.extend(self.tokenizer.eos().filter(|eos| ids.last() != Some(eos)));
            }
            Record::Messages(messages) => {
                let template = self.template.ok_or_else(|| {
                    TextError::Template("the model has none, so records with `messages` can't be used".into())
                })?;
                let (bos, eos) = (self.text_of(self.tokenizer.bos()), self.text_of(self.tokenizer.eos()));
                // The template writes the special tokens itself.
                self.tokenizer.encode(&template.render(messages, false, bos, eos)?, false, &mut ids);
            }
        }
        let whole = ids.len();
        ids.truncate(self.max_seq_length);
        let loss = (0..ids.len()).map(|at| at > 0).collect();
        Ok(Example { cut_from: (whole > ids.len()).then_some(whole), ids, loss })
    }

    fn text_of(&self, id: Option<u32>) -> &str {
        id.and_then(|id| self.tokenizer.token_bytes(id)).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("")
    }
}
