//! Normalizers: what is done to text before it is split. It refuses to keep offsets into the original (a place is
//! found by normalising what is before it), and the table-driven normalizers of Unigram models. Unicode's tables are those that Hugging Face uses, of
//! an older version: a newer one orders some marks differently, and so gives other ids than the model was trained with.

use crate::error::Result;
use crate::pattern::Pattern;
use std::borrow::Cow;
use unicode_normalization_alignments::{IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick};

/// One step of normalisation.
pub(crate) enum Normalizer {
    /// Canonical composition.
    Nfc,
    /// Canonical decomposition.
    Nfd,
    /// Compatibility composition.
    Nfkc,
    /// Compatibility decomposition.
    Nfkd,
    /// Lower case, character by character.
    Lowercase,
    /// Whitespace removed at the ends.
    Strip { left: bool, right: bool },
    /// Text put in front of what is not empty.
    Prepend(String),
    /// Every match replaced.
    Replace { pattern: Pattern, content: String },
}

impl Normalizer {
    /// Replacement of a literal text.
    pub fn replace_literal(from: &str, to: &str) -> Result<Self> {
        Ok(Self::Replace { pattern: Pattern::literal(from)?, content: to.to_owned() })
    }

    /// Normalises a text; what needs no change is not copied.
    pub fn apply<'a>(&self, text: Cow<'a, str>) -> Cow<'a, str> {
        match self {
            Self::Nfc if is_nfc_quick(text.chars()) == IsNormalized::Yes => text,
            Self::Nfkc if is_nfkc_quick(text.chars()) == IsNormalized::Yes => text,
            Self::Nfc => Cow::Owned(text.nfc().map(|(c, _)| c).collect()),
            Self::Nfd => Cow::Owned(text.nfd().map(|(c, _)| c).collect()),
            Self::Nfkc => Cow::Owned(text.nfkc().map(|(c, _)| c).collect()),
            Self::Nfkd => Cow::Owned(text.nfkd().map(|(c, _)| c).collect()),
            Self::Lowercase => Cow::Owned(text.chars().flat_map(char::to_lowercase).collect()),
            Self::Strip { left, right } => Cow::Owned(strip(&text, *left, *right).to_owned()),
            Self::Prepend(_) if text.is_empty() => text,
            Self::Prepend(prefix) => Cow::Owned(format!("{prefix}{text}")),
            Self::Replace { pattern, content } => replace(text, pattern, content),
        }
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Prepend(prefix) => prefix.capacity(),
            Self::Replace { pattern, content } => pattern.heap_bytes() + content.capacity(),
            _ => 0,
        }
    }
}

fn strip(text: &str, left: bool, right: bool) -> &str {
    let text = if left { text.trim_start() } else { text };
    if right { text.trim_end() } else { text }
}

fn replace<'a>(text: Cow<'a, str>, pattern: &Pattern, content: &str) -> Cow<'a, str> {
    let Some(mut found) = pattern.find(&text, 0) else { return text };
    let mut out = String::with_capacity(text.len() + text.len() / 4);
    let mut at = 0;
    loop {
        out.push_str(&text[at..found.0]);
        out.push_str(content);
        at = found.1;
        match pattern.find(&text, at) {
            Some(next) => found = next,
            None => break,
        }
    }
    out.push_str(&text[at..]);
    Cow::Owned(out)
}
