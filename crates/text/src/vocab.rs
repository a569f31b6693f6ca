//! The vocabulary: every token's bytes in one arena, a span for each id, and an open-addressing table from bytes to id.
//! About 8 bytes of span and 8 of table for each token, on top of its own bytes. It refuses ids above [`MAX_IDS`], so that
//! a file can't ask for memory by naming a large number.

use crate::error::{Result, TextError};
use std::hash::{BuildHasher, RandomState};

/// The largest number of ids that a vocabulary may span; the largest one known has about 262 thousand.
pub(crate) const MAX_IDS: u32 = 1 << 19;

/// The id that stands for "none" in the packed tables.
pub(crate) const NONE: u32 = u32::MAX;

/// Where a token's bytes lie in the arena; a `len` of [`NONE`] marks an id that has no token.
#[derive(Clone, Copy)]
struct Span {
    start: u32,
    len: u32,
}

const HOLE: Span = Span { start: 0, len: NONE };

/// Token bytes by id, and ids by bytes.
pub(crate) struct Vocab {
    arena: Vec<u8>,
    spans: Vec<Span>,
    /// Ids, or [`NONE`]; a power of two long, at most three quarters full.
    slots: Vec<u32>,
    /// Seeded at random, so that a file can't be written to collide.
    hasher: RandomState,
}

impl Vocab {
    /// An empty vocabulary.
    pub fn new() -> Self {
        Self { arena: Vec::new(), spans: Vec::new(), slots: Vec::new(), hasher: RandomState::new() }
    }

    /// Gives `id` its bytes. Ids may come in any order; each only once. [`Vocab::index`] must follow before any lookup.
    pub fn insert(&mut self, id: u32, bytes: &[u8]) -> Result<()> {
        if id >= MAX_IDS {
            return Err(TextError::tokenizer(format!("token id {id} is above the limit of {MAX_IDS}")));
        }
        let at = id as usize;
        if at >= self.spans.len() {
            self.spans.resize(at + 1, HOLE);
        }
        if self.spans[at].len != NONE {
            return Err(TextError::tokenizer(format!("two tokens have the id {id}")));
        }
        let start = u32::try_from(self.arena.len())
            .ok()
            .filter(|start| start.checked_add(bytes.len() as u32).is_some() && bytes.len() < NONE as usize)
            .ok_or_else(|| TextError::tokenizer("the vocabulary holds more than 4 GiB of text"))?;
        self.spans[at] = Span { start, len: bytes.len() as u32 };
        self.arena.extend_from_slice(bytes);
        Ok(())
    }

    /// Builds the table from bytes to id. Of two tokens with the same bytes the higher id is found.
    pub fn index(&mut self) {
        self.index_where(|_| true);
    }

    fn index_where(&mut self, reachable: impl Fn(u32) -> bool) {
        self.shrink();
        let capacity = (self.spans.len() * 4 / 3 + 1).next_power_of_two();
        // Freed before the new one is taken: the peak counts.
        self.slots = Vec::new();
        self.slots = vec![NONE; capacity];
        for id in 0..self.spans.len() as u32 {
            if let Some(bytes) = self.bytes(id)
                && reachable(id)
            {
                let slot = self.slot(bytes);
                self.slots[slot] = id;
            }
        }
    }

    /// Rewrites every token's bytes in place by `rewrite`, which may only shorten them, then indexes again. A token for
    /// which it answers `None` keeps its bytes and can no longer be looked up.
    pub fn rewrite(&mut self, rewrite: impl Fn(&str) -> Option<Vec<u8>>) {
        let mut lost = Vec::new();
        for (id, span) in self.spans.iter_mut().enumerate().filter(|(_, span)| span.len != NONE) {
            let token = &mut self.arena[span.start as usize..(span.start + span.len) as usize];
            match std::str::from_utf8(token).ok().and_then(&rewrite) {
                Some(bytes) if bytes.len() <= token.len() => {
                    token[..bytes.len()].copy_from_slice(&bytes);
                    span.len = bytes.len() as u32;
                }
                _ => lost.push(id as u32),
            }
        }
        self.close_gaps();
        self.index_where(|id| lost.binary_search(&id).is_err());
    }

    /// Moves the tokens of the arena together, in id order.
    fn close_gaps(&mut self) {
        let mut arena = Vec::with_capacity(self.spans.iter().filter(|s| s.len != NONE).map(|s| s.len as usize).sum());
        for span in self.spans.iter_mut().filter(|span| span.len != NONE) {
            let start = arena.len() as u32;
            arena.extend_from_slice(&self.arena[span.start as usize..(span.start + span.len) as usize]);
            span.start = start;
        }
        self.arena = arena;
    }

    /// Gives back the memory that insertion took ahead.
    pub fn shrink(&mut self) {
        self.arena.shrink_to_fit();
        self.spans.shrink_to_fit();
    }

    /// The bytes of a token, if the id has one.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        let span = self.spans.get(id as usize).filter(|span| span.len != NONE)?;
        Some(&self.arena[span.start as usize..(span.start + span.len) as usize])
    }

    /// The id of the token with these bytes.
    pub fn get(&self, bytes: &[u8]) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        Some(self.slots[self.slot(bytes)]).filter(|&id| id != NONE)
    }

    /// The slot that holds these bytes, or the free one where they would go.
    fn slot(&self, bytes: &[u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hasher.hash_one(bytes) as usize & mask;
        while self.slots[slot] != NONE && self.bytes(self.slots[slot]) != Some(bytes) {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// One more than the highest id.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The ids that have a token, with their bytes.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        (0..self.spans.len() as u32).filter_map(|id| Some((id, self.bytes(id)?)))
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.arena.capacity() + self.spans.capacity() * size_of::<Span>() + self.slots.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_by_its_bytes_whatever_the_order_of_ids() {
        let mut vocab = Vocab::new();
        for (id, token) in [(4, "de"), (0, "a"), (2, "bc"), (1, "")] {
            vocab.insert(id, token.as_bytes()).unwrap();
        }
        vocab.index();
        assert_eq!(vocab.get(b"bc"), Some(2));
        assert_eq!(vocab.get(b"de"), Some(4));
        assert_eq!(vocab.get(b"b"), None);
        assert_eq!(vocab.bytes(3), None);
        assert_eq!(vocab.len(), 5);
    }

    #[test]
    fn an_id_beyond_the_limit_and_a_second_token_for_an_id_are_refused() {
        let mut vocab = Vocab::new();
        assert!(vocab.insert(u32::MAX - 1, b"x").is_err());
        vocab.insert(7, b"x").unwrap();
        assert!(vocab.insert(7, b"y").is_err());
    }

    #[test]
    fn a_token_that_can_not_be_rewritten_keeps_its_bytes_but_is_not_found() {
        let mut vocab = Vocab::new();
        vocab.insert(0, b"xx").unwrap();
        vocab.insert(1, b"keep").unwrap();
        vocab.rewrite(|token| (token == "xx").then(|| b"y".to_vec()));
        assert_eq!(vocab.get(b"y"), Some(0));
        assert_eq!((vocab.get(b"keep"), vocab.bytes(1)), (None, Some(&b"keep"[..])));
    }
}
