//! Added tokens: tokens that are found in the text before anything else happens to it, such as `<|im_start|>`. The text is
//! searched once, in linear time; of overlapping tokens the leftmost and then the longest is taken. It refuses to decide
//! whether a special token in a user's text is wanted: it is always taken for the token, as in Hugging Face `tokenizers`.

use crate::error::{Result, TextError};
use crate::pattern::Pattern;
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};
use serde::Deserialize;

/// An added token, as tokenizer.json has it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct AddedToken {
    pub id: u32,
    pub content: String,
    /// Matches only where no word character touches it.
    #[serde(default)]
    pub single_word: bool,
    /// Takes the whitespace before it along.
    #[serde(default)]
    pub lstrip: bool,
    /// Takes the whitespace after it along.
    #[serde(default)]
    pub rstrip: bool,
    /// Is searched for in the normalised text.
    #[serde(default)]
    pub normalized: bool,
    /// Is left out when text is decoded for people.
    #[serde(default)]
    pub special: bool,
}

/// A part of the text between, or at, added tokens.
pub(crate) enum Part<'a> {
    /// An added token, and the range that it takes, stripped whitespace included.
    Token { id: u32, start: usize, end: usize },
    /// Other text, and where it begins.
    Text(usize, &'a str),
}

/// What of a token the search needs.
struct Rule {
    id: u32,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
}

/// A set of tokens to be searched for at once.
struct Finder {
    automaton: AhoCorasick,
    rules: Vec<Rule>,
}

/// The added tokens of a tokenizer.
pub(crate) struct AddedTokens {
    in_raw: Option<Finder>,
    in_normalized: Option<Finder>,
    /// Sorted.
    special: Vec<u32>,
    /// Present when some token is `single_word`.
    word_character: Option<Pattern>,
}

impl AddedTokens {
    /// Prepares the search; `normalize` says what the tokenizer's normalizers make of a token's text.
    pub fn new(tokens: &[AddedToken], normalize: impl Fn(&str) -> String) -> Result<Self> {
        let mut special: Vec<u32> = tokens.iter().filter(|token| token.special).map(|token| token.id).collect();
        special.sort_unstable();
        let of = |normalized| tokens.iter().filter(move |t| t.normalized == normalized && !t.content.is_empty());
        Ok(Self {
            in_raw: Finder::new(of(false).map(|t| (t.content.clone(), t)))?,
            in_normalized: Finder::new(of(true).map(|t| (normalize(&t.content), t)))?,
            special,
            word_character: match tokens.iter().any(|token| token.single_word) {
                true => Some(Pattern::regex(r"\w")?),
                false => None,
            },
        })
    }

    /// Whether a token is left out when text is decoded for people.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }

    /// Splits text as it was given.
    pub fn split_raw<'a>(&self, text: &'a str, part: &mut impl FnMut(Part<'a>)) {
        self.split(self.in_raw.as_ref(), text, part);
    }

    /// Splits text that was normalised.
    pub fn split_normalized<'a>(&self, text: &'a str, part: &mut impl FnMut(Part<'a>)) {
        self.split(self.in_normalized.as_ref(), text, part);
    }

    fn split<'a>(&self, finder: Option<&Finder>, text: &'a str, part: &mut impl FnMut(Part<'a>)) {
        let mut done = 0;
        let found = finder.into_iter().flat_map(|f| f.automaton.find_iter(text).map(|m| (m, &f.rules[m.pattern()])));
        for (found, rule) in found {
            let (mut start, mut end) = (found.start(), found.end());
            if rule.single_word && self.touches_word(&text[..start], &text[end..]) {
                continue;
            }
            if rule.lstrip {
                start = text[..start].trim_end().len().max(done);
            }
            if rule.rstrip {
                end = text.len() - text[end..].trim_start().len();
            }
            if done < start {
                part(Part::Text(done, &text[done..start]));
            }
            part(Part::Token { id: rule.id, start, end });
            done = end;
        }
        if done < text.len() {
            part(Part::Text(done, &text[done..]));
        }
    }

    fn touches_word(&self, before: &str, after: &str) -> bool {
        let is_word = |c: Option<char>| match (c, &self.word_character) {
            (Some(c), Some(pattern)) => pattern.find(c.encode_utf8(&mut [0; 4]), 0).is_some(),
            _ => false,
        };
        is_word(before.chars().next_back()) || is_word(after.chars().next())
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        let finder = |f: &Finder| f.automaton.memory_usage() + f.rules.capacity() * size_of::<Rule>();
        self.in_raw.as_ref().map_or(0, finder)
            + self.in_normalized.as_ref().map_or(0, finder)
            + self.special.capacity() * size_of::<u32>()
            + self.word_character.as_ref().map_or(0, Pattern::heap_bytes)
    }
}

impl Finder {
    fn new<'a>(tokens: impl Iterator<Item = (String, &'a AddedToken)>) -> Result<Option<Self>> {
        let (texts, rules): (Vec<String>, Vec<Rule>) = tokens
            .map(|(text, t)| (text, Rule { id: t.id, single_word: t.single_word, lstrip: t.lstrip, rstrip: t.rstrip }))
            .unzip();
        if texts.is_empty() {
            return Ok(None);
        }
        // The contiguous automaton takes a few bytes a state; a dense one would take kilobytes.
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .kind(Some(AhoCorasickKind::ContiguousNFA))
            .build(texts)
            .map_err(|error| TextError::tokenizer(format!("the added tokens are too many: {error}")))?;
        Ok(Some(Self { automaton, rules }))
    }
}
