//! Blocks that the gradient passes by: in the backward pass such a block is the identity, and its adapters are not updated. The forward pass is
//! whole. Not exact; on by name alone.

use pocketune_kernels::philox::Philox;

use super::Cpu;
use crate::plan::{Passage, Program};

/// The stream of random numbers that say which blocks are passed by.
const STREAM: u64 = 1 << 41;

impl Cpu {
    /// From now on the gradient passes by this share of the blocks, rounded down, drawn for update `update` of a run with this seed.
    pub fn drop_blocks(&mut self, share: f64, seed: u64, update: u64) {
        let (numbers, blocks) = (Philox::new(seed, STREAM), self.dropped.len());
        let most = (share * blocks as f64).floor() as usize;
        for (block, dropped) in self.dropped.iter_mut().enumerate() {
            *dropped = numbers.place(update << 32, block, blocks) < most;
        }
    }

    /// The gradient of a block's output is that of its input, on the first `n` rows.
    pub(super) fn pass_by(&mut self, program: &Program, passage: Passage, n: usize) {
        let Some(to) = passage.to.filter(|&to| to != passage.from) else { return };
        let start = |buffer: usize| self.layout.len + program.buffers[buffer].offset;
        let (from, to, cols) = (start(passage.from.0), start(to.0), program.buffers[to.0].cols.unwrap_or(0));
        // What the place of `to` overlaps while the block runs is of the block alone, and `from` ends there.
        let end = (from.max(to)) + n * cols;
        self.arena.get_mut(0..end).copy_within(from..from + n * cols, to);
    }
}
