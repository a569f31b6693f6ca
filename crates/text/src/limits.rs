//! What the parts of a tokenizer may cost together. Each pattern is run in linear time, but a file may chain as many steps as it likes, each of
//! which makes the text longer; so the number of steps, their patterns' memory and the growth of a text through all of them are
//! bounded, and checked when the file is read. The numbers are several times those of real tokenizers.

use crate::added::AddedToken;
use crate::error::{Result, TextError};
use crate::normalize::Normalizer;
use crate::split::Splitter;

/// Most normalizers, and most splitters; real files have up to five of each.
const MAX_STEPS: usize = 16;
/// Most bytes of all compiled patterns; real ones take some hundred kilobytes.
const MAX_PATTERNS: usize = 4 << 20;
/// Most patterns: each may fill a cache beside its compiled form.
const MAX_PATTERN_COUNT: usize = 6;
/// How many times longer normalizers may make a text; the mark of SentencePiece is three times as long as a space.
const MAX_GROWTH: usize = 64;
/// The longest text put in front of, or in place of, another.
const MAX_PIECE: usize = 256;
/// Most added tokens; Gemma 3 has about 6 thousand.
const MAX_ADDED: usize = 1 << 15;
/// Most bytes of all added tokens; Gemma 3's have about 77 thousand.
const MAX_ADDED_BYTES: usize = 1 << 18;
/// Most special tokens around every text.
const MAX_AROUND: usize = 64;

fn over(what: &str, found: usize, limit: usize) -> TextError {
    TextError::tokenizer(format!("{found} {what}, where at most {limit} are read"))
}

fn within(what: &str, found: usize, limit: usize) -> Result<()> {
    if found <= limit { Ok(()) } else { Err(over(what, found, limit)) }
}

/// Checks the added tokens read so far, of which the last is new.
pub(crate) fn check_added(tokens: &[AddedToken]) -> Result<()> {
    within("added tokens", tokens.len(), MAX_ADDED)?;
    // The sum over all is only taken now and then, so that a list is not walked over for each of its tokens.
    let last = tokens.last().map_or(0, |token| token.content.len());
    if last > MAX_PIECE || tokens.len().is_power_of_two() || tokens.len().is_multiple_of(1024) {
        let bytes = tokens.iter().map(|token| token.content.len()).sum();
        within("bytes of added tokens", bytes, MAX_ADDED_BYTES)?;
    }
    Ok(())
}

/// Checks the special tokens around every text.
pub(crate) fn check_around(count: usize) -> Result<()> {
    within("special tokens around every text", count, MAX_AROUND)
}

/// Checks a text that is put in front of, or in place of, another.
pub(crate) fn check_piece(text: &str) -> Result<()> {
    within("bytes that a step puts into the text", text.len(), MAX_PIECE)
}

/// Checks all steps together.
pub(crate) fn check_steps(normalizers: &[Normalizer], splitters: &[Splitter]) -> Result<()> {
    within("normalizers", normalizers.len(), MAX_STEPS)?;
    within("splitters", splitters.len(), MAX_STEPS)?;
    // Marks in front of pieces that are split again would double with each such step.
    let marks = splitters.iter().filter(|splitter| !matches!(splitter, Splitter::Split { .. })).count();
    within("splitters that put a mark in front", marks, 1)?;
    let growth = normalizers.iter().map(growth).fold(1, usize::saturating_mul);
    within("times longer text through normalizers", growth, MAX_GROWTH)?;
    let patterns = || {
        let replaced = normalizers.iter().filter_map(|normalizer| match normalizer {
            Normalizer::Replace { pattern, .. } => Some(pattern),
            _ => None,
        });
        replaced.chain(splitters.iter().filter_map(|splitter| match splitter {
            Splitter::Split { pattern, .. } => Some(pattern),
            _ => None,
        }))
    };
    within("patterns", patterns().count(), MAX_PATTERN_COUNT)?;
    within("bytes of compiled patterns", patterns().map(|pattern| pattern.compiled_bytes()).sum(), MAX_PATTERNS)
}

/// How many times longer a normalizer makes a text at most, rounded up.
fn growth(normalizer: &Normalizer) -> usize {
    match normalizer {
        Normalizer::Nfc | Normalizer::Nfd => 3,
        // U+FDFA, of three bytes, becomes eighteen characters of 33.
        Normalizer::Nfkc | Normalizer::Nfkd => 11,
        Normalizer::Lowercase => 2,
        Normalizer::Strip { .. } => 1,
        // What is put in front counts once, whatever the text; its length is bounded where it is read.
        Normalizer::Prepend(_) => 1,
        Normalizer::Replace { pattern, content } => content.len().div_ceil(pattern.shortest()).max(1),
    }
}
