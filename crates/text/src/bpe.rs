//! Byte-pair encoding of one word: symbols in a linked list, candidate merges in a heap, so O(n log n) for any word. Two
//! rules choose the next merge: the rank of the pair (Hugging Face) or the score of the joined token (SentencePiece, as
//! GGUF files carry it). It refuses to see special tokens, normalisation or word boundaries: those come before it.

use crate::joins::Joins;
use crate::merges::Merges;
use crate::vocab::{NONE, Vocab};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Symbols that are merged together at most. Longer stretches without a safe cut are cut here all the same, so that
/// memory stays bounded; only runs of over 65 thousand characters that can all join are touched by it.
const MAX_SYMBOLS: usize = 1 << 16;

/// How the next merge is chosen.
pub(crate) enum Rule {
    /// The pair with the lowest rank in the merge list.
    Ranks(Merges),
    /// The pair whose concatenation is the token with the highest score.
    Scores(Vec<f32>),
}

/// What becomes of a character that the vocabulary lacks.
#[derive(Default)]
pub(crate) struct Fallback {
    /// The ids of `<0x00>` to `<0xFF>`, [`NONE`] where absent.
    pub byte_tokens: Option<Box<[u32; 256]>>,
    /// The unknown token; without one the character is dropped.
    pub unk: Option<u32>,
    /// Whether neighbouring unknown characters make one unknown token.
    pub fuse_unk: bool,
}

impl Fallback {
    /// Looks the byte tokens `<0x00>` to `<0xFF>` up in a vocabulary.
    pub fn find_byte_tokens(vocab: &Vocab) -> Box<[u32; 256]> {
        Box::new(std::array::from_fn(|byte| vocab.get(format!("<{byte:#04X}>").as_bytes()).unwrap_or(NONE)))
    }

    /// The byte tokens of a character, if the vocabulary has all of them.
    fn bytes<'a>(&'a self, unit: &'a [u8]) -> Option<impl Iterator<Item = u32> + 'a> {
        let table = self.byte_tokens.as_deref()?;
        unit.iter().all(|&b| table[usize::from(b)] != NONE).then(|| unit.iter().map(|&b| table[usize::from(b)]))
    }
}

/// A BPE model.
pub(crate) struct Bpe {
    pub vocab: Vocab,
    rule: Rule,
    fallback: Fallback,
    /// A word that is itself a token is not merged from its parts.
    ignore_merges: bool,
    /// Whether the units are bytes; characters otherwise.
    byte_level: bool,
    /// The id of each byte (byte level) or ASCII character, [`NONE`] where absent.
    single: Box<[u32; 256]>,
    joins: Joins,
}

struct Symbol {
    id: u32,
    start: u32,
    len: u32,
    prev: u32,
    next: u32,
}

/// A possible merge of the symbol at `at` with its right neighbour. The smallest is done first: lowest key, then leftmost.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    key: u32,
    at: u32,
    new: u32,
    /// Bytes of both together. Symbols only grow, so another length means that the pair is no longer there.
    len: u32,
}

/// Buffers that are reused from word to word.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<Candidate>>,
    /// An unknown stretch that is not yet a symbol: start and length.
    unk: Option<(u32, u32)>,
}

impl Scratch {
    /// The most that it can grow to, in bytes: Vec and heap double, and each symbol adds at most two candidates.
    pub const MAX_BYTES: usize = 2 * MAX_SYMBOLS * (size_of::<Symbol>() + 2 * size_of::<Candidate>());

    fn push(&mut self, id: u32, start: u32, len: u32) {
        let at = self.symbols.len() as u32;
        self.symbols.push(Symbol { id, start, len, prev: at.wrapping_sub(1), next: at + 1 });
    }
}

impl Bpe {
    /// A model over an indexed vocabulary; `byte_level` says that tokens are made of bytes rather than characters.
    pub fn new(vocab: Vocab, rule: Rule, fallback: Fallback, ignore_merges: bool, byte_level: bool) -> Self {
        let single = std::array::from_fn(|byte| match byte < 128 || byte_level {
            true => vocab.get(&[byte as u8]).unwrap_or(NONE),
            false => NONE,
        });
        let joins = Self::find_joins(&vocab, &rule, &fallback, byte_level);
        Self { vocab, rule, fallback, ignore_merges, byte_level, single: Box::new(single), joins }
    }

    /// A merge joins L and R where L's last unit meets R's first, and the result's text holds the two side by side; so
    /// units that no token holds side by side never join. That fails only where a rule merges a token whose text is not
    /// what it stands for (a byte token, the unknown token).
    fn find_joins(vocab: &Vocab, rule: &Rule, fallback: &Fallback, byte_level: bool) -> Joins {
        let stands_for_other = |id: u32| {
            fallback.unk == Some(id) || fallback.byte_tokens.as_deref().is_some_and(|tokens| tokens.contains(&id))
        };
        match rule {
            Rule::Ranks(merges) if merges.operands().any(stands_for_other) => Joins::any(),
            _ if byte_level => Joins::of_bytes(vocab.iter().map(|(_, bytes)| bytes)),
            _ => Joins::of_chars(vocab.iter().map(|(_, bytes)| bytes)),
        }
    }

    /// Hands over the ids of one word, each with the byte of the word where it ends.
    pub fn encode(&self, word: &str, scratch: &mut Scratch, out: &mut impl FnMut(u32, usize)) {
        let bytes = word.as_bytes();
        if self.ignore_merges
            && let Some(id) = self.vocab.get(bytes)
        {
            out(id, bytes.len());
            return;
        }
        let (mut at, mut before) = (0, None);
        while at < bytes.len() {
            let (unit, len) = self.unit_at(word, at);
            let id = self.unit_id(unit, &bytes[at..at + len]);
            let full = scratch.symbols.len() >= MAX_SYMBOLS;
            if scratch.unk.is_none() && before.is_some_and(|before| full || !self.joins.may(before, unit)) {
                self.flush(bytes, scratch, out);
            }
            if self.start_symbol(id, at as u32, &bytes[at..at + len], scratch) {
                before = Some(unit);
            }
            at += len;
        }
        self.flush(bytes, scratch, out);
    }

    /// The byte or character at a place, and its length in bytes.
    fn unit_at(&self, word: &str, at: usize) -> (u32, usize) {
        if self.byte_level {
            return (u32::from(word.as_bytes()[at]), 1);
        }
        let c = word[at..].chars().next().unwrap_or_default();
        (c.into(), c.len_utf8())
    }

    fn unit_id(&self, unit: u32, bytes: &[u8]) -> Option<u32> {
        match unit {
            0..256 if self.byte_level || unit < 128 => Some(self.single[unit as usize]).filter(|&id| id != NONE),
            _ => self.vocab.get(bytes),
        }
    }

    /// Adds a unit to the symbols, falling back where it has no token; answers whether anything was added.
    fn start_symbol(&self, id: Option<u32>, start: u32, unit: &[u8], scratch: &mut Scratch) -> bool {
        let len = unit.len() as u32;
        if matches!(self.rule, Rule::Scores(_)) {
            // A character without a token may still begin a longer one; what is left alone falls back at the end.
            scratch.push(id.unwrap_or(NONE), start, len);
            return true;
        }
        if let Some(id) = id {
            self.end_unknown(scratch);
            scratch.push(id, start, len);
            return true;
        }
        if let Some(tokens) = self.fallback.bytes(unit) {
            // Like Hugging Face, an unknown stretch before these bytes is still held back.
            for (i, token) in tokens.enumerate() {
                scratch.push(token, start + i as u32, 1);
            }
            return true;
        }
        if self.fallback.unk.is_none() {
            return false;
        }
        match &mut scratch.unk {
            Some((_, unk_len)) if self.fallback.fuse_unk => *unk_len += len,
            _ => {
                self.end_unknown(scratch);
                scratch.unk = Some((start, len));
            }
        }
        true
    }

    fn end_unknown(&self, scratch: &mut Scratch) {
        if let (Some((start, len)), Some(unk)) = (scratch.unk.take(), self.fallback.unk) {
            scratch.push(unk, start, len);
        }
    }

    /// Merges the symbols collected so far and hands their ids over.
    fn flush(&self, word: &[u8], scratch: &mut Scratch, out: &mut impl FnMut(u32, usize)) {
        self.end_unknown(scratch);
        if scratch.symbols.len() > 1 {
            self.merge_all(word, scratch);
        }
        let mut at = 0;
        while let Some(symbol) = scratch.symbols.get(at as usize) {
            let (start, end) = (symbol.start as usize, (symbol.start + symbol.len) as usize);
            match symbol.id {
                NONE => self.fall_back(&word[start..end], |id| out(id, end)),
                id => out(id, end),
            }
            at = symbol.next;
        }
        scratch.symbols.clear();
    }

    /// The ids of a character that no token covers.
    fn fall_back(&self, unit: &[u8], out: impl FnMut(u32)) {
        match self.fallback.bytes(unit) {
            Some(tokens) => tokens.for_each(out),
            None => self.fallback.unk.into_iter().for_each(out),
        }
    }

    fn merge_all(&self, word: &[u8], scratch: &mut Scratch) {
        let Scratch { symbols, heap, .. } = scratch;
        heap.clear();
        for at in 0..symbols.len() as u32 - 1 {
            heap.extend(self.candidate(word, symbols, at).map(Reverse));
        }
        while let Some(Reverse(top)) = heap.pop() {
            let (left, right) = (&symbols[top.at as usize], symbols.get(symbols[top.at as usize].next as usize));
            let Some(right) = right.filter(|right| left.len != 0 && left.len + right.len == top.len) else { continue };
            let (prev, middle, next) = (left.prev, left.next, right.next);
            symbols[middle as usize].len = 0;
            let left = &mut symbols[top.at as usize];
            (left.id, left.len, left.next) = (top.new, top.len, next);
            if let Some(after) = symbols.get_mut(next as usize) {
                after.prev = top.at;
                heap.extend(self.candidate(word, symbols, top.at).map(Reverse));
            }
            if prev != NONE {
                heap.extend(self.candidate(word, symbols, prev).map(Reverse));
            }
        }
    }

    /// The merge of the symbol at `at` with its right neighbour, which exists, if the rule has one.
    fn candidate(&self, word: &[u8], symbols: &[Symbol], at: u32) -> Option<Candidate> {
        let left = &symbols[at as usize];
        let right = &symbols[left.next as usize];
        let len = left.len + right.len;
        let (key, new) = match &self.rule {
            Rule::Ranks(merges) => merges.get(left.id, right.id)?,
            Rule::Scores(scores) => {
                let new = self.vocab.get(&word[left.start as usize..(left.start + len) as usize])?;
                (descending(scores[new as usize]), new)
            }
        };
        Some(Candidate { key, at, new, len })
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        let rule = match &self.rule {
            Rule::Ranks(merges) => merges.heap_bytes(),
            Rule::Scores(scores) => scores.capacity() * size_of::<f32>(),
        };
        self.vocab.heap_bytes() + rule + self.joins.heap_bytes() + 2 * size_of::<[u32; 256]>()
    }
}

/// A key that sorts scores from high to low.
fn descending(score: f32) -> u32 {
    // Adding zero makes -0.0 equal to 0.0.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !(bits | 0x8000_0000) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocab(tokens: &[&str]) -> Vocab {
        let mut vocab = Vocab::new();
        for (id, token) in tokens.iter().enumerate() {
            vocab.insert(id as u32, token.as_bytes()).unwrap();
        }
        vocab.index();
        vocab
    }

    fn encode(bpe: &Bpe, word: &str) -> Vec<u32> {
        let mut out = Vec::new();
        bpe.encode(word, &mut Scratch::default(), &mut |id, _| out.push(id));
        out
    }

    #[test]
    fn scores_sort_from_high_to_low() {
        let mut scores = [-3.0f32, 0.5, -0.25, 7.0, 0.0];
        scores.sort_by_key(|&score| descending(score));
        assert_eq!(scores, [7.0, 0.5, 0.0, -0.25, -3.0]);
        assert_eq!(descending(0.0), descending(-0.0));
    }

    #[test]
    fn the_highest_score_merges_first_and_unknown_characters_fall_back() {
        let vocab = vocab(&["<unk>", "a", "b", "c", "ab", "bc", "éa"]);
        let scores = vec![0.0, 0.0, 0.0, 0.0, -2.0, -1.0, -1.0];
        let fallback = Fallback { unk: Some(0), ..Fallback::default() };
        let bpe = Bpe::new(vocab, Rule::Scores(scores), fallback, false, false);
        assert_eq!(encode(&bpe, "abc"), [1, 5]);
        assert_eq!(encode(&bpe, "abéac"), [4, 6, 3]);
        assert_eq!(encode(&bpe, "zab"), [0, 4]);
    }

    #[test]
    fn a_run_longer_than_the_bound_is_still_covered_whole() {
        let vocab = vocab(&["a", "aa"]);
        let mut merges = Merges::new();
        merges.push(0, 0, 1).unwrap();
        merges.index();
        let bpe = Bpe::new(vocab, Rule::Ranks(merges), Fallback::default(), false, true);
        let ids = encode(&bpe, &"a".repeat(2 * MAX_SYMBOLS + 6));
        assert!(ids.iter().all(|&id| id == 1));
        assert_eq!(ids.len(), MAX_SYMBOLS + 3);
    }
}
