//! The scratch memory of a product: how much, who has which part of it, and which rows.

use super::super::product::Side;
use super::super::split::{LONGEST_BLOCK, equal_parts};
use crate::BlockType;
use crate::amx::{K_TILE, SIDE};
use crate::rows::Rows;

/// Rows of the left operand that are worked on at once, and elements of it.
const LEFT_ROWS: usize = 512;
const LEFT_AREA: usize = 5 << 20;
/// Elements of a left operand that is held whole, however many rows it has, for products that go on with the same one: 4 MiB.
const LEFT_WHOLE: usize = 2 << 20;
/// Rows below which no thread has some to itself.
const OWN_ROWS: usize = 128;
/// Outputs for each row up to which dequantising weights once more costs a thread less than waiting for tiles that another has packed.
const OWN_OUTPUTS: usize = 4;
/// The longest block of a sum: whole blocks of every type.
const K_BLOCK: usize = 2048;
/// The longest block of a sum that has several: their tiles, those of as many outputs again and all sums stay in the second-level cache.
const SHORT_BLOCK: usize = 1024;
/// Outputs of a task at most, unless a block of the weights is longer.
const UNIT: usize = 128;

/// Scratch memory, in f32 elements: the left operand, an adapter's first factor, then for each thread tiles of weights, sums and a row buffer.
pub struct Sizes {
    /// Rows of the left operand that are worked on at once, at most.
    most_rows: usize,
    /// Whether all rows' tiles are held, room for those of 32 rows, and for all that are held.
    pub(super) whole: bool,
    pub(super) pair: usize,
    pub(super) left: usize,
    /// The first factor of an adapter of this rank.
    pub(super) down: usize,
    pub(super) least: usize,
    pub(super) most: usize,
    /// Length of a block of the sum.
    pub(super) k_block: usize,
    weights: usize,
    buffer: usize,
    /// Places for sums of 32 rows with a task's outputs, and room for one.
    places: usize,
    place: usize,
}

impl Sizes {
    pub fn new((m, n, k): (usize, usize, usize), rank: usize, side: Side) -> Self {
        let (least, most, k_block) = match side {
            Side::Cols(ty) if ty.block_len() > UNIT => (ty.block_len(), ty.block_len(), K_BLOCK / 2),
            // Values rather than weights, and many rows of them: long pieces of a row come faster from far caches.
            Side::Cols(BlockType::F32) => (SIDE, 4 * UNIT, K_BLOCK / 4),
            // Long sums have few outputs to share the left operand: they take more of them at once.
            _ if k > K_BLOCK => (SIDE, 2 * UNIT, equal_parts(k, SHORT_BLOCK, LONGEST_BLOCK)),
            _ => (SIDE, UNIT, K_BLOCK),
        };
        let tail = rank.next_multiple_of(K_TILE);
        let padded = k.min(k_block).next_multiple_of(K_TILE) + tail;
        let buffer = match side {
            Side::Rows => padded / 2,
            Side::Cols(_) => most,
        };
        let whole = k.next_multiple_of(K_TILE);
        let most_rows = (LEFT_AREA / whole.max(1)).clamp(SIDE, LEFT_ROWS) / SIDE * SIDE;
        let (pairs, unit) = (m.min(most_rows).div_ceil(SIDE), most.min(n.next_multiple_of(SIDE)));
        let most_held = most_rows.max(LEFT_WHOLE / whole.max(1) / SIDE * SIDE);
        let pair = SIDE * (whole + tail) / 2;
        Self {
            most_rows,
            whole: m <= most_held,
            pair,
            left: m.min(most_held).div_ceil(SIDE) * pair,
            down: if rank == 0 { 0 } else { rank.next_multiple_of(SIDE) * whole / 2 },
            least,
            most,
            k_block,
            weights: unit * padded / 2,
            buffer,
            // Sums of several blocks stay until the last.
            places: if k > k_block { pairs } else { 1 },
            place: unit * SIDE,
        }
    }

    /// The length of blocks that `rows` are worked on in: every one dequantises the weights anew, so none is a small rest.
    pub(super) fn row_block(&self, rows: usize) -> usize {
        rows.div_ceil(rows.div_ceil(self.most_rows).max(1)).next_multiple_of(SIDE)
    }

    /// How many of `m` rows each thread gets to itself, where that pays for `n` outputs: it dequantises all weights for them, and waits for no
    /// tile that another has packed.
    pub(super) fn own_rows(&self, m: usize, n: usize, threads: usize) -> Option<usize> {
        let part = m.div_ceil(threads).next_multiple_of(SIDE);
        let fillings = |rows: usize| rows.div_ceil(self.most_rows);
        let more = (threads * fillings(part)).saturating_sub(fillings(m));
        (self.whole && threads > 1 && part >= OWN_ROWS && more * n <= OWN_OUTPUTS * m).then_some(part)
    }

    pub(super) fn per_thread(&self) -> usize {
        (self.weights + self.places * self.place + self.buffer).next_multiple_of(16)
    }

    /// What products with the same left operand go on with, from the beginning.
    pub fn held(&self) -> usize {
        self.left + 16
    }

    /// All of it, with room to begin at a cache line.
    pub fn total(&self, threads: usize) -> usize {
        self.left + self.down + threads * self.per_thread() + 16
    }
}

/// A thread's scratch memory.
pub(super) struct Scratch<'a> {
    pub(super) weights: &'a mut [f32],
    pub(super) sums: Sums<'a>,
    pub(super) buffer: &'a mut [f32],
}

/// Places for sums that are made or kept.
pub(super) struct Sums<'a> {
    all: &'a mut [f32],
    place: usize,
}

impl Sums<'_> {
    /// Place `at`, as often round as there are places.
    pub fn at(&mut self, at: usize) -> &mut [f32] {
        let now = at % (self.all.len() / self.place);
        &mut self.all[now * self.place..][..self.place]
    }
}

/// The threads' scratch memory.
pub(super) struct Threads<'a> {
    pub(super) parts: Rows<'a>,
    pub(super) sizes: &'a Sizes,
}

impl Threads<'_> {
    /// That of one thread, which must be the one that runs.
    pub fn of(&self, thread: usize) -> Scratch<'_> {
        let (mine, sizes) = (self.parts.piece(thread).0, self.sizes);
        let (weights, rest) = mine.split_at_mut(sizes.weights);
        let (all, rest) = rest.split_at_mut(sizes.places * sizes.place);
        Scratch { weights, sums: Sums { all, place: sizes.place }, buffer: &mut rest[..sizes.buffer] }
    }
}
