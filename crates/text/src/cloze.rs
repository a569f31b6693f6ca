//! Questions for models that have no next token. A masked prompt, `… It was <mask>.`, has one token for each possible answer (its verbaliser); where a model has a head
//! of classes, the text itself is read, and the first token of a record stands for the class. It refuses data sets whose answers are sentences, and tokenizers without
//! a mask, in which an answer is several tokens, or that begin no text with a token.

use crate::error::{Result, TextError};
use crate::recipes::{Question, Recipe};
use crate::tokenizer::Tokenizer;

/// What stands after the answer, as in the prompts of MeZO's RoBERTa runs.
const AFTER: &str = ".";

/// How the answer of a question is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cloze {
    /// The token that the model sees where a record has the answer: the mask, or the one that every text begins with.
    pub mask: u32,
    /// The answers, in the order of a question's: tokens that may stand in the mask's place, or the numbers of classes.
    pub words: Vec<u32>,
    /// Whether they are classes.
    pub classes: bool,
}

impl Cloze {
    /// A masked prompt for the answers of a data set.
    ///
    /// # Errors
    /// When there is no mask, or an answer is no token.
    pub fn new(tokenizer: &Tokenizer, recipe: Recipe) -> Result<Self> {
        let mask = tokenizer
            .token_id("<mask>")
            .ok_or_else(|| TextError::tokenizer("it has no `<mask>`, which masked prompts are made with"))?;
        let word = |answer: &&str| {
            let mut ids = Vec::new();
            tokenizer.encode(&format!(" {answer}"), false, &mut ids);
            match ids[..] {
                [id] => Ok(id),
                _ => {
                    let fault = format!("` {answer}` is {} tokens, where a mask stands for one", ids.len());
                    Err(TextError::tokenizer(fault))
                }
            }
        };
        let words = answers(recipe)?.iter().map(word).collect::<Result<_>>()?;
        Ok(Self { mask, words, classes: false })
    }

    /// The classes of a data set.
    ///
    /// # Errors
    /// When there are none, or nothing stands before a text.
    pub fn of_classes(tokenizer: &Tokenizer, recipe: Recipe) -> Result<Self> {
        let first = tokenizer.before_text().first().copied();
        let mask =
            first.ok_or_else(|| TextError::tokenizer("it begins no text with a token, which a class is read from"))?;
        Ok(Self { mask, words: (0..answers(recipe)?.len() as u32).collect(), classes: true })
    }

    /// The question with the answer of that number in its place, that place, and the length before what is too long was cut to `longest`: at the beginning of a prompt, at
    /// the end of the longer text.
    pub(crate) fn ids(
        &self,
        tokenizer: &Tokenizer,
        question: &Question,
        number: usize,
        longest: usize,
    ) -> (Vec<u32>, usize, usize) {
        if self.classes {
            let (ids, whole) = of_texts(tokenizer, &question.texts, self.words[number], longest);
            return (ids, 0, whole);
        }
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

/// `<s> text </s>`, or `<s> text </s></s> other </s>`, with another token in the place of the first, and the length before it was cut to `longest`.
fn of_texts(tokenizer: &Tokenizer, texts: &[String], first: u32, longest: usize) -> (Vec<u32>, usize) {
    let encoded = |text: &String| {
        let mut ids = Vec::new();
        tokenizer.encode(text, false, &mut ids);
        ids
    };
    let mut texts: Vec<Vec<u32>> = texts.iter().map(encoded).collect();
    let (before, after) = (tokenizer.before_text(), tokenizer.after_text());
    let around = before.len() + after.len() * (2 * texts.len()).saturating_sub(1);
    let whole = around + texts.iter().map(Vec::len).sum::<usize>();
    let room = longest.saturating_sub(around);
    match &mut texts[..] {
        [one, other] => cut(one, other, room),
        texts => texts.iter_mut().for_each(|ids| ids.truncate(room)),
    }
    let mut ids = before.to_vec();
    ids[0] = first;
    for (at, text) in texts.iter().enumerate() {
        let between = if at > 0 { after } else { &[] };
        ids.extend(between.iter().chain(text).chain(after));
    }
    (ids, whole)
}

/// Leaves `room` tokens of two texts: the longer loses what is above half of it first, and has one more where that is odd; the second, of equals.
fn cut(one: &mut Vec<u32>, other: &mut Vec<u32>, room: usize) {
    let (short, long) = if one.len() > other.len() { (other, one) } else { (one, other) };
    if short.len() + long.len() > room {
        short.truncate(room / 2);
        long.truncate(room - short.len());
    }
}

fn answers(recipe: Recipe) -> Result<&'static [&'static str]> {
    let fault = || format!("the answers of {} are sentences, where a mask stands for one token", recipe.name());
    recipe.answers().ok_or_else(|| TextError::tokenizer(fault()))
}
