//! From a record to training examples: ids, and which of them the loss is taken on. Text gets the model's special tokens around it and
//! an end; a conversation is rendered by the chat template, which writes its own. It refuses conversations for models without a
//! template; whether what is left is worth a step is the caller's matter.

use crate::chat::ChatTemplate;
use crate::cloze::Cloze;
use crate::error::{Result, TextError};
use crate::places::Place;
use crate::recipes::Question;
use crate::records::{Chat, Record};
use crate::tokenizer::Tokenizer;
use crate::turns::{Conversation, End, Turn, conversation};

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

/// What of a conversation, or of a prompt with its completion, the loss is taken on. Plain text always counts whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mask {
    /// Everything.
    #[default]
    None,
    /// All that the assistant writes.
    All,
    /// What the assistant writes last.
    Last,
}

/// Makes examples of records.
pub struct ExampleMaker<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    max_seq_length: usize,
    mask: Mask,
    cloze: Option<&'a Cloze>,
}

impl<'a> ExampleMaker<'a> {
    /// Examples of at most `max_seq_length` tokens; conversations need a template.
    pub fn new(
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        max_seq_length: usize,
        mask: Mask,
    ) -> Self {
        Self { tokenizer, template, max_seq_length, mask, cloze: None }
    }

    /// The same, with questions as masked prompts where there is a `cloze`: the loss is on the token that the mask stands for.
    pub fn with_cloze(self, cloze: Option<&'a Cloze>) -> Self {
        Self { cloze, ..self }
    }

    /// Hands over the examples of one record: one, but for long texts.
    pub fn examples(&self, record: &Record, each: &mut dyn FnMut(Example)) -> Result<()> {
        match (record, self.template) {
            (Record::Text(text), _) => each(self.text(text)),
            (Record::Passage { text, last }, _) => self.passage(text, *last, each),
            (Record::Chat(chat) | Record::Answer { chat, .. }, Some(template)) => each(self.chat(chat, template)?),
            (Record::Answer { prompt, answer, .. }, None) => each(self.answer(prompt, answer)),
            (Record::Question(question), _) => each(self.choice(question, question.answer)),
            (Record::Chat(_), None) => {
                return Err(TextError::Template("the model has none, so conversations can't be used".into()));
            }
        }
        Ok(())
    }

    fn text(&self, text: &str) -> Example {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, true, &mut ids);
        self.end(&mut ids);
        let loss = vec![true; ids.len()];
        self.finish(ids, loss)
    }

    /// The token that ends a text, unless it is there.
    fn end(&self, ids: &mut Vec<u32>) {
        ids.extend(self.tokenizer.eos().filter(|eos| ids.last() != Some(eos)));
    }

    /// Examples one after another until the text ends, each with what the model wants before a text.
    fn passage(&self, text: &str, last: bool, each: &mut dyn FnMut(Example)) {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, false, &mut ids);
        if last {
            self.end(&mut ids);
        }
        let before = self.tokenizer.before_text();
        // A sequence shorter than what comes before a text has room for one token all the same, and is cut.
        let room = self.max_seq_length.saturating_sub(before.len()).max(1);
        for piece in ids.chunks(room) {
            let ids = [before, piece].concat();
            let loss = vec![true; ids.len()];
            each(self.finish(ids, loss));
        }
    }

    fn chat(&self, chat: &Chat, template: &ChatTemplate) -> Result<Example> {
        let mut ids = Vec::new();
        let ends = self.tokenizer.ends();
        if self.mask == Mask::None {
            let rendered = template.render(&chat.messages, chat.tools.as_ref(), false, ends)?;
            // The template writes the special tokens itself.
            self.tokenizer.encode(&rendered.text, false, &mut ids);
            let loss = vec![true; ids.len()];
            return Ok(self.finish(ids, loss));
        }
        let Conversation { text, mut turns } = conversation(template, chat, ends)?;
        if self.mask == Mask::Last {
            turns.drain(..turns.len().saturating_sub(1));
        }
        let places: Vec<usize> = turns.iter().flat_map(|turn| [turn.range.start, turn.range.end]).collect();
        let places = self.tokenizer.encode_places(&text, false, &places, &mut ids);
        let mut loss = vec![false; ids.len()];
        for (turn, place) in turns.iter().zip(places.chunks_exact(2)) {
            let (first, last) = self.tokens(turn, place, &ids);
            loss[first..last].fill(true);
        }
        Ok(self.finish(ids, loss))
    }

    /// The tokens of a turn, from the first to before the last: those that hold any of it, and the token that ends it.
    fn tokens(&self, turn: &Turn, place: &[Place], ids: &[u32]) -> (usize, usize) {
        let (first, last) = (place[0].token, place[1].token + usize::from(place[1].inside));
        if turn.range.is_empty() && turn.end == End::Marked {
            return (first, first);
        }
        let is_special = |at: usize| ids.get(at).is_some_and(|&id| self.tokenizer.is_special(id));
        match turn.end {
            End::Marked => (first, last),
            End::Message => {
                let blanks = ids[first..last].iter().rev().take_while(|&&id| self.is_blank(id)).count();
                let trimmed = last - blanks;
                (first, if trimmed > first && is_special(trimmed - 1) { trimmed } else { last })
            }
            End::Content => {
                let blanks = ids[last..].iter().take_while(|&&id| self.is_blank(id)).count();
                (first, if is_special(last + blanks) { last + blanks + 1 } else { last })
            }
            End::Call => (first, (last..ids.len()).find(|&at| is_special(at)).map_or(last, |at| at + 1)),
        }
    }

    fn is_blank(&self, id: u32) -> bool {
        !self.tokenizer.is_special(id) && self.tokenizer.decode(&[id], false).trim().is_empty()
    }

    /// A prompt and its answer as one text.
    fn answer(&self, prompt: &str, answer: &str) -> Example {
        let mut ids = Vec::new();
        let places = self.tokenizer.encode_places(&format!("{prompt}{answer}"), true, &[prompt.len()], &mut ids);
        self.end(&mut ids);
        let first = if self.mask == Mask::None { 0 } else { places[0].token };
        let loss = (0..ids.len()).map(|at| at >= first).collect();
        self.finish(ids, loss)
    }

    /// A question with each of its answers, the loss on the answer alone.
    pub fn choices(&self, question: &Question) -> Vec<Example> {
        (0..question.choices.len()).map(|number| self.choice(question, number)).collect()
    }

    /// What is too long is cut at the beginning of the question, so that the answer stays.
    fn choice(&self, question: &Question, number: usize) -> Example {
        if let Some(cloze) = self.cloze {
            let (ids, place, whole) = cloze.ids(self.tokenizer, question, number, self.max_seq_length);
            let mut example = self.finish(ids, Vec::new());
            // A class stands in the first place, which nothing else is predicted for.
            example.loss = (0..example.ids.len()).map(|at| at == place).collect();
            return Example { cut_from: (example.ids.len() < whole).then_some(whole), ..example };
        }
        let Question { prompt, choices, .. } = question;
        let mut ids = Vec::new();
        let text = format!("{prompt}{}", choices[number]);
        let place = self.tokenizer.encode_places(&text, true, &[prompt.len()], &mut ids)[0];
        let (whole, before) = (ids.len(), self.tokenizer.before_text().len().min(place.token));
        let cut = whole.saturating_sub(self.max_seq_length).min(place.token - before);
        ids.drain(before..before + cut);
        let loss = (0..ids.len()).map(|at| at >= place.token - cut).collect();
        let example = self.finish(ids, loss);
        Example { cut_from: (example.ids.len() < whole).then_some(whole), ..example }
    }

    fn finish(&self, mut ids: Vec<u32>, mut loss: Vec<bool>) -> Example {
        let whole = ids.len();
        ids.truncate(self.max_seq_length);
        loss.truncate(self.max_seq_length);
        loss.iter_mut().take(1).for_each(|first| *first = false);
        Example { cut_from: (whole > ids.len()).then_some(whole), ids, loss }
    }
}
