//! Pre-tokenizers: how normalised text is split into the words that BPE sees. Words are handed on one by one, so a long
//! document needs no list of them. It refuses to know the model: whether words are bytes or characters is not its matter.

use crate::error::Result;
use crate::pattern::Pattern;
use serde::Deserialize;

/// GPT-2's own pattern, which the `ByteLevel` pre-tokenizer implies.
pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// What becomes of the text that a pattern matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum Behavior {
    /// It is dropped.
    Removed,
    /// It is a piece of its own.
    Isolated,
    /// It ends the piece before it.
    MergedWithPrevious,
    /// It begins the piece after it.
    MergedWithNext,
    /// Neighbouring matches make one piece.
    Contiguous,
}

/// When a word-boundary mark is put in front of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Prepend {
    /// Only at the beginning of the whole text.
    First,
    /// Never.
    Never,
    /// Before each piece.
    Always,
}

/// One pre-tokenizer.
pub(crate) enum Splitter {
    /// Split where a pattern matches.
    Split { pattern: Pattern, behavior: Behavior, invert: bool },
    /// A space put in front of a piece that lacks one.
    PrefixSpace,
    /// Spaces replaced by a mark, and one put in front.
    Mark { mark: char, prepend: Prepend },
}

impl Splitter {
    /// Pieces and matches of a regular expression alike, each on its own.
    pub fn isolated(regex: &str) -> Result<Self> {
        Ok(Self::Split { pattern: Pattern::regex(regex)?, behavior: Behavior::Isolated, invert: false })
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Split { pattern, .. } => pattern.heap_bytes(),
            Self::PrefixSpace | Self::Mark { .. } => 0,
        }
    }
}

/// Splits `text` by each step in turn and hands the words over in order. `first` says that it begins the whole input.
pub(crate) fn split(steps: &[Splitter], text: &str, first: bool, word: &mut dyn FnMut(&str)) {
    if text.is_empty() {
        return;
    }
    let Some((step, rest)) = steps.split_first() else { return word(text) };
    match step {
        Splitter::Split { pattern, behavior, invert } => {
            let mut joiner = Joiner { behavior: *behavior, held: None };
            let mut piece = |(start, end): (usize, usize)| split(rest, &text[start..end], first && start == 0, word);
            let mut at = 0;
            while let Some((start, end)) = pattern.find(text, at) {
                joiner.segment((at, start), *invert, &mut piece);
                joiner.segment((start, end), !*invert, &mut piece);
                at = end;
            }
            joiner.segment((at, text.len()), *invert, &mut piece);
            joiner.held.into_iter().for_each(|(range, _)| piece(range));
        }
        Splitter::PrefixSpace if text.starts_with(' ') => split(rest, text, first, word),
        Splitter::PrefixSpace => split(rest, &format!(" {text}"), first, word),
        Splitter::Mark { mark, prepend } => {
            let mut marked = text.replace(' ', mark.encode_utf8(&mut [0; 4]));
            let wanted = *prepend == Prepend::Always || (*prepend == Prepend::First && first);
            if wanted && !marked.starts_with(*mark) {
                marked.insert(0, *mark);
            }
            split(rest, &marked, first, word);
        }
    }
}

/// Joins the segments of a text, alternately matched and not, into pieces.
struct Joiner {
    behavior: Behavior,
    /// The piece that may still grow, and whether its last segment was a match.
    held: Option<((usize, usize), bool)>,
}

impl Joiner {
    fn segment(&mut self, range: (usize, usize), matched: bool, piece: &mut impl FnMut((usize, usize))) {
        if range.0 == range.1 {
            return;
        }
        let grows = match (self.behavior, &self.held) {
            (Behavior::Removed, _) if matched => return,
            (Behavior::Contiguous, Some((_, held))) => *held == matched,
            (Behavior::MergedWithPrevious, Some((_, held))) => matched && !held,
            (Behavior::MergedWithNext, Some((_, held))) => !matched && *held,
            _ => false,
        };
        match &mut self.held {
            Some((held, last)) if grows => {
                held.1 = range.1;
                *last = matched;
            }
            held => {
                if let Some((done, _)) = held.replace((range, matched)) {
                    piece(done);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(behavior: Behavior, invert: bool, text: &str) -> Vec<String> {
        let step = Splitter::Split { pattern: Pattern::literal("-").unwrap(), behavior, invert };
        let mut out = Vec::new();
        split(&[step], text, true, &mut |word| out.push(word.to_owned()));
        out
    }

    #[test]
    fn each_behaviour_keeps_the_match_where_it_says() {
        let text = "-a--b-";
        assert_eq!(pieces(Behavior::Removed, false, text), ["a", "b"]);
        assert_eq!(pieces(Behavior::Isolated, false, text), ["-", "a", "-", "-", "b", "-"]);
        assert_eq!(pieces(Behavior::MergedWithPrevious, false, text), ["-", "a-", "-", "b-"]);
        assert_eq!(pieces(Behavior::MergedWithNext, false, text), ["-a", "-", "-b", "-"]);
        assert_eq!(pieces(Behavior::Contiguous, false, text), ["-", "a", "--", "b", "-"]);
        assert_eq!(pieces(Behavior::Removed, true, text), ["-", "-", "-", "-"]);
    }
}
