//! Prompts for models that have no next token but fill in a masked one: `… It was <mask>.`, with one token for each possible answer (its
//! verbaliser). It refuses data sets whose answers are sentences, and tokenizers without a mask or in which an answer is several tokens.

use crate::error::{Result, TextError};
use crate::recipes::{Question, Recipe};
use crate::tokenizer::Tokenizer;

/// What stands after the answer, as in the prompts of MeZO's RoBERTa runs.
const AFTER: &str = ".";

/// The token that masks, and those that may stand in its place, in the order of a question's answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloze {
    /// The mask.
    pub mask: u32,
    /// The answers.
    pub words: Vec<u32>,
}

impl Cloze {
    /// For the answers of a data set.
    ///
    /// # Errors
    /// When there is no mask, or an answer is no token.
    pub fn new(tokenizer: &Tokenizer, recipe: Recipe) -> Result<Self> {
        let fault = |fault: String| TextError::tokenizer(fault);
        let mask = tokenizer
            .token_id("<mask>")
            .ok_or_else(|| fault("it has no `<mask>`, which masked prompts are made with".into()))?;
        let answers = recipe.answers().ok_or_else(|| {
            fault(format!("the answers of {} are sentences, where a mask stands for one token", recipe.name()))
        })?;
        let word = |answer: &&str| {
            let mut ids = Vec::new();
            tokenizer.encode(&format!(" {answer}"), false, &mut ids);
            match ids[..] {
                [id] => Ok(id),
                _ => Err(fault(format!("` {answer}` is {} tokens, where a mask stands for one", ids.len()))),
            }
        };
        Ok(Self { mask, words: answers.iter().map(word).collect::<Result<_>>()? })
    }

    /// The prompt with the answer of that number in the mask's place, and that place. What is longer than `longest` is cut at the beginning of
    /// the prompt.
    pub(crate) fn ids(
        &self,
        tokenizer: &Tokenizer,
        question: &Question,
        number: usize,
        longest: usize,
    ) -> (Vec<u32>, usize, usize) {
        let (mut prompt, mut end) = (Vec::new(), vec![self.words[number]]);
        tokenizer.encode(&question.prompt, false, &mut prompt);
        tokenizer.encode(AFTER, false, &mut end);
        end.extend_from_slice(tokenizer.after_text());
        let before = tokenizer.before_text();
        let whole = before.len() + prompt.len() + end.len();
        prompt.drain(..whole.saturating_sub(longest).min(prompt.len()));
        let place = before.len() + prompt.len();
        ([before, &prompt, &end].concat(), place, whole)
    }
}
