//! The merge table of a BPE model: (left id, right id) -> (rank, new id). A row is 12 bytes and its rank is its place in
//! the list; a table of row numbers finds it by its pair. It refuses lists of more than [`MAX_MERGES`]; whether the ids exist
//! is checked by whoever fills it.

use crate::error::{Result, TextError};
use crate::vocab::NONE;
use std::hash::{BuildHasher, RandomState};

/// Most rules; the longest list known has about 515 thousand.
const MAX_MERGES: usize = 1 << 20;

struct Row {
    left: u32,
    right: u32,
    new: u32,
}

/// Merge rules in rank order, found by pair.
pub(crate) struct Merges {
    rows: Vec<Row>,
    /// Row numbers, or [`NONE`]; a power of two long, at most three quarters full.
    slots: Vec<u32>,
    /// Random, so that a file can't be written to collide.
    seed: u64,
}

impl Merges {
    /// An empty table.
    pub fn new() -> Self {
        Self { rows: Vec::new(), slots: Vec::new(), seed: RandomState::new().hash_one(0u8) }
    }

    /// Adds the rule of the next rank. [`Merges::index`] must follow before any lookup.
    pub fn push(&mut self, left: u32, right: u32, new: u32) -> Result<()> {
        if self.rows.len() == MAX_MERGES {
            return Err(TextError::tokenizer(format!("more than {MAX_MERGES} merges")));
        }
        self.rows.push(Row { left, right, new });
        Ok(())
    }

    /// Builds the table from pair to row. A pair that is listed twice has its last rank, as in Hugging Face `tokenizers`.
    pub fn index(&mut self) {
        self.rows.shrink_to_fit();
        self.slots = vec![NONE; (self.rows.len() * 4 / 3 + 1).next_power_of_two()];
        for rank in 0..self.rows.len() {
            let slot = self.slot(self.rows[rank].left, self.rows[rank].right);
            self.slots[slot] = rank as u32;
        }
    }

    /// The rank and the new id of a pair, if it merges.
    pub fn get(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let rank = self.slots[self.slot(left, right)];
        (rank != NONE).then(|| (rank, self.rows[rank as usize].new))
    }

    fn slot(&self, left: u32, right: u32) -> usize {
        let mask = self.slots.len() - 1;
        // Folded multiply of the seeded pair: both halves of the product carry every bit of the key.
        let key = (u64::from(left) << 32 | u64::from(right)) ^ self.seed;
        let product = u128::from(key) * 0x9E37_79B9_7F4A_7C15_u128;
        let mut slot = (product as u64 ^ (product >> 64) as u64) as usize & mask;
        loop {
            match self.slots[slot] {
                NONE => return slot,
                rank if self.rows[rank as usize].left == left && self.rows[rank as usize].right == right => {
                    return slot;
                }
                _ => slot = (slot + 1) & mask,
            }
        }
    }

    /// All rules as (left, right, new), in rank order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32, u32)> {
        self.rows.iter().map(|row| (row.left, row.right, row.new))
    }

    /// The ids that some rule takes as its left or right part.
    pub fn operands(&self) -> impl Iterator<Item = u32> {
        self.rows.iter().flat_map(|row| [row.left, row.right])
    }

    /// The number of rules.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<Row>() + self.slots.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_two_equal_pairs_wins_and_other_pairs_are_absent() {
        let mut merges = Merges::new();
        for i in 0..1000 {
            merges.push(i, i + 1, i + 2).unwrap();
        }
        merges.push(5, 6, 77).unwrap();
        merges.index();
        assert_eq!(merges.get(5, 6), Some((1000, 77)));
        assert_eq!(merges.get(999, 1000), Some((999, 1001)));
        assert_eq!(merges.get(6, 5), None);
    }
}
