//! The products on AMX: bf16 tiles of 16 by 32 of the sum against 32 of the sum by 16, summed in f32.
//!
//! The left operand is copied once, a block at a time, into tiles that all threads share; each task dequantises its outputs' part
//! of the weights into tiles in its thread's memory and takes all rows of the block over it, 32 by 32 outputs at a time. The sum
//! goes in ascending blocks of 32, padded with zeros, and continues from the output, so its bits depend on no tiling.
//!
//! Tiles of the instruction's first operand (`rows`) lie as matrices do; those of its second (`cols`) hold pairs of the sum side by
//! side. So weights are the first operand where the sum runs along their rows, and the second where it runs over them: they are
//! never transposed. In the first case it is the output that is.

mod fill;
mod stage;

use std::ops::Range;

use super::out::Out;
use super::product::{Factor, Left, Product, Right, Side, Tail};
use super::split::Split;
use super::{Ctx, Start};
use crate::Pool;
use crate::amx::{K_TILE, Pair, SIDE, Square, Tiles};
use crate::rows::Rows;

/// Rows and length of the block of the left operand: 1 MiB, half of a second-level cache. The length is whole blocks of every type.
const LEFT_ROWS: usize = 512;
const LEFT_K: usize = 1024;
/// Outputs of a task at most, unless a block of the weights is longer.
const UNIT: usize = 128;
/// f32 elements in the place of a tile.
const TILE: usize = 256;

/// Scratch memory, in f32 elements: the left operand, then for each thread tiles of weights, a row buffer and sums.
pub(super) struct Sizes {
    left: usize,
    least: usize,
    most: usize,
    /// Length of a block of the sum.
    k_block: usize,
    weights: usize,
    buffer: usize,
    sums: usize,
}

impl Sizes {
    pub fn new((m, n, k): (usize, usize, usize), rank: usize, side: Side) -> Self {
        let (least, most, k_block) = match side {
            Side::Cols(ty) if ty.block_len() > UNIT => (ty.block_len(), ty.block_len(), LEFT_K / 2),
            _ => (SIDE, UNIT, LEFT_K),
        };
        let padded = k.min(k_block).next_multiple_of(K_TILE) + rank.next_multiple_of(K_TILE);
        let buffer = match side {
            Side::Rows => padded / 2,
            Side::Cols(_) => most,
        };
        let left = m.min(LEFT_ROWS).next_multiple_of(SIDE) * padded / 2;
        let unit = most.min(n.next_multiple_of(SIDE));
        Self { left, least, most, k_block, weights: unit * padded / 2, buffer, sums: unit * SIDE }
    }

    fn per_thread(&self) -> usize {
        (self.weights + self.buffer + self.sums).next_multiple_of(16)
    }

    /// All of it, with room to begin at a cache line.
    pub fn total(&self, threads: usize) -> usize {
        self.left + threads * self.per_thread() + 16
    }
}

/// A thread's scratch memory.
struct Scratch<'a> {
    weights: &'a mut [f32],
    buffer: &'a mut [f32],
    sums: &'a mut [f32],
}

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    let (m, n, k, right) = (product.m, product.n, product.k, product.right);
    let rank = product.tail.map_or(0, |tail| tail.factor.rank);
    let sizes = Sizes::new((m, n, k), rank, right.side());
    let threads = ctx.pool.threads();
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let scratch = Rows::new(&mut rest[..per_thread * threads], per_thread);
    let out = Out::new(product.out, n);
    for m0 in (0..m).step_by(LEFT_ROWS) {
        let rows = LEFT_ROWS.min(m - m0);
        let split = Split::new((rows, n), (sizes.least, sizes.most), SIDE, threads);
        for k0 in (0..k).step_by(sizes.k_block) {
            let ks = k0..k.min(k0 + sizes.k_block);
            let left = &product.left.data[m0 * product.left.row + k0 * product.left.k..];
            let tail = product.tail.filter(|_| ks.end == k);
            let main = ks.len().div_ceil(K_TILE);
            let steps = main + tail.map_or(0, |tail| tail.factor.rank.div_ceil(K_TILE));
            let left = Left { data: left, ..product.left };
            pack(ctx.pool, left, rows, ks.len(), right, fill::Place { first: 0, steps }, packed);
            if let Some(Tail { left, factor }) = tail {
                let left = Left { data: &left.data[m0 * left.row..], ..left };
                pack(ctx.pool, left, rows, factor.rank, right, fill::Place { first: main, steps }, packed);
            }
            let start = if k0 == 0 { product.start } else { Start::Output };
            let block = Block { left: packed, right, ks, tail: tail.map(|tail| tail.factor), steps, start };
            ctx.pool.run(split.tasks(), &|task, thread| {
                // SAFETY: no two running tasks share `thread`, and so none shares this part.
                let mine = unsafe { scratch.range(thread * per_thread..(thread + 1) * per_thread) };
                let (weights, rest) = mine.split_at_mut(sizes.weights);
                let (sums, rest) = rest.split_at_mut(sizes.sums);
                let (rows, cols) = split.task(task);
                block.task(m0, rows, cols, &mut Scratch { weights, sums, buffer: &mut rest[..sizes.buffer] }, &out);
            });
        }
    }
}

/// Rounds `rows` by `len` elements of a left operand and lays them out in tiles, pair by pair of them.
fn pack(pool: &Pool, left: Left, rows: usize, len: usize, right: Right, place: fill::Place, to: &mut [f32]) {
    let pair = 2 * TILE * place.steps;
    let pairs = rows.div_ceil(SIDE);
    let pieces = Rows::new(&mut to[..pairs * pair], pair);
    pool.run(pairs, &|pair, _| {
        let rows = pair * SIDE..rows.min((pair + 1) * SIDE);
        let to = pieces.piece(pair).0;
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            match right {
                Right::Rows(_) => fill::left_cols(left, rows, len, place, to),
                Right::Cols(_) => fill::left_rows(left, rows, len, place, to),
            }
        }
    });
}

/// A block of the left operand's rows and of the sum.
struct Block<'a> {
    left: &'a [f32],
    right: Right<'a>,
    ks: Range<usize>,
    /// The adapter's factor, in the last block: the sum goes on over its rows.
    tail: Option<Factor<'a>>,
    /// Tiles of the sum, the factor's included.
    steps: usize,
    start: Start<'a>,
}

impl Block<'_> {
    /// Sums for `rows` of the block, which begins at row `m0` of the output, and for columns `cols`.
    fn task(&self, m0: usize, rows: Range<usize>, cols: Range<usize>, scratch: &mut Scratch, out: &Out) {
        let (ks, steps) = (self.ks.clone(), self.steps);
        let (place, tail) = (fill::Place { first: 0, steps }, fill::Place { first: ks.len().div_ceil(K_TILE), steps });
        let Scratch { buffer, weights, .. } = &mut *scratch;
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            match &self.right {
                Right::Rows(w) => {
                    fill::weight_rows(w, cols.clone(), ks, place, buffer, weights);
                    if let Some(factor) = &self.tail {
                        fill::factor_rows(factor, cols.clone(), tail, weights);
                    }
                }
                Right::Cols(w) => {
                    fill::weight_cols(w, cols.clone(), ks, place, buffer, weights);
                    if let Some(factor) = &self.tail {
                        let w = factor.weight();
                        fill::weight_cols(&w, cols.clone(), 0..factor.rank, tail, buffer, weights);
                    }
                }
            }
        }
        // SAFETY: the product checked that this processor has AMX and that its kernel lets us use it.
        let tiles = unsafe { Tiles::configure() };
        let pair = 2 * TILE * steps;
        let transposed = matches!(self.right, Right::Rows(_));
        for i in rows.clone().step_by(SIDE) {
            let stage = stage::Stage { rows: m0 + i..m0 + rows.end.min(i + SIDE), cols: cols.clone(), transposed };
            // SAFETY: the product checked the instructions; this task alone touches these rows and columns.
            unsafe { stage.begin(self.start, out, scratch.sums) };
            let left = &self.left[i / SIDE * pair..][..pair];
            let weights = scratch.weights.chunks_exact(pair).zip(scratch.sums.chunks_exact_mut(SIDE * SIDE));
            for ((weights, sums), j) in weights.zip(cols.clone().step_by(SIDE)) {
                let (m, n) = (stage.rows.len(), cols.end - j);
                let zero = matches!(self.start, Start::Zero);
                let (rows, cols, two_rows, two_cols) =
                    if transposed { (weights, left, n > 16, m > 16) } else { (left, weights, m > 16, n > 16) };
                assert!(rows.len() == pair && cols.len() == pair && sums.len() == SIDE * SIDE);
                let rows = Pair { at: rows.as_ptr(), line: 16, second: steps * TILE, step: TILE };
                let cols = Pair { at: cols.as_ptr(), line: 16, second: TILE, step: 2 * TILE };
                let sums = Square { at: sums.as_mut_ptr(), line: SIDE };
                // SAFETY: two runs of `steps` tiles, `steps` pairs of tiles and a whole square, by the lengths just checked.
                unsafe { tiles.sum(rows, cols, steps, zero, sums, two_rows, two_cols) };
            }
            // SAFETY: as above.
            unsafe { stage.end(out, scratch.sums) };
        }
    }
}
