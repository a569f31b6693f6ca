//! The products on Arm's `bfmmla`: bf16 blocks of 2 by 4 of the sum against 4 of the sum by 2, summed in f32.
//!
//! The left operand is rounded once, a block at a time, into a layout that all threads share; each task dequantises its outputs' part
//! of the weights into the same layout in its thread's memory and takes all rows of the block over it, 8 by 8 outputs at a time. Eight
//! rows (or outputs) form a group: `[steps][8][4 of the sum]`, so that a vector holds two of them, as the instruction reads them.
//!
//! The sum goes in ascending steps of four, padded with zeros, and continues from the output: `sum = (sum + (p0 + p1)) + (p2 + p3)`, each
//! sum rounded to odd and products exact, as Arm defines the instruction. So its bits depend on no tiling, and on no piece that
//! is a multiple of four.

mod fill;
mod tile;

use std::ops::Range;

use super::out::Out;
use super::product::{Left, Product, Right, Side};
use super::split::Split;
use super::{Ctx, Start};
use crate::Pool;
use crate::rows::Rows;

/// Rows and length of the block of the left operand: half a MiB. The length is whole blocks of every type.
const LEFT_ROWS: usize = 512;
const LEFT_K: usize = 512;
/// Outputs of a task at most, unless a block of the weights is longer.
const UNIT: usize = 64;
/// Outputs and rows that meet at once.
const SIDE: usize = 8;
/// Elements of the sum that an instruction takes.
const STEP: usize = 4;
/// f32 elements in the place of a group's step.
const PLACE: usize = SIDE * STEP / 2;

/// Scratch memory, in f32 elements: the left operand, then for each thread groups of weights and a row buffer.
pub(super) struct Sizes {
    left: usize,
    least: usize,
    most: usize,
    /// Length of a block of the sum.
    k_block: usize,
    weights: usize,
    buffer: usize,
}

impl Sizes {
    pub fn new((m, n, k): (usize, usize, usize), side: Side) -> Self {
        let (least, most, k_block) = match side {
            Side::Cols(ty) if ty.block_len() > UNIT => (ty.block_len(), ty.block_len(), LEFT_K / 2),
            // A task begins at a whole block of the weights' rows.
            Side::Cols(ty) => (ty.block_len().max(SIDE), UNIT, LEFT_K),
            Side::Rows => (SIDE, UNIT, LEFT_K),
        };
        let steps = k.min(k_block).div_ceil(STEP);
        let buffer = match side {
            Side::Rows => steps * STEP / 2,
            Side::Cols(_) => most * STEP / 2,
        };
        let left = m.min(LEFT_ROWS).div_ceil(SIDE) * steps * PLACE;
        let weights = most.min(n.next_multiple_of(SIDE)) / SIDE * steps * PLACE;
        Self { left, least, most, k_block, weights, buffer }
    }

    fn per_thread(&self) -> usize {
        (self.weights + self.buffer).next_multiple_of(16)
    }

    /// All of it, with room to begin at a cache line.
    pub fn total(&self, threads: usize) -> usize {
        self.left + threads * self.per_thread() + 16
    }
}

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    let (m, n, k, right) = (product.m, product.n, product.k, product.right);
    let sizes = Sizes::new((m, n, k), right.side());
    let threads = ctx.pool.threads();
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let scratch = Rows::new(&mut rest[..per_thread * threads], per_thread);
    let out = Out::new(product.out.floats(), n);
    for m0 in (0..m).step_by(LEFT_ROWS) {
        let rows = LEFT_ROWS.min(m - m0);
        let split = Split::new((rows, n), (sizes.least, sizes.most), SIDE, threads);
        for k0 in (0..k).step_by(sizes.k_block) {
            let ks = k0..k.min(k0 + sizes.k_block);
            pack(ctx.pool, product.left.from(m0, k0), rows, ks.len(), packed);
            let block = Block { left: packed, right, ks, start: if k0 == 0 { product.start } else { Start::Output } };
            ctx.pool.run(split.tasks(), &|task, thread| {
                // SAFETY: no two running tasks share `thread`, and so none shares this part.
                let mine = unsafe { scratch.range(thread * per_thread..(thread + 1) * per_thread) };
                let (weights, rest) = mine.split_at_mut(sizes.weights);
                let (rows, cols) = split.task(task);
                block.task(m0, rows, cols, weights, &mut rest[..sizes.buffer], &out);
            });
        }
    }
}

/// Rounds `rows` by `len` elements of the left operand and lays them out in groups.
fn pack(pool: &Pool, left: Left, rows: usize, len: usize, to: &mut [f32]) {
    let group = len.div_ceil(STEP) * PLACE;
    let groups = rows.div_ceil(SIDE);
    let pieces = Rows::new(&mut to[..groups * group], group);
    pool.run(groups, &|group, _| {
        let rows = group * SIDE..rows.min((group + 1) * SIDE);
        // SAFETY: the product checked that this processor has the instructions.
        unsafe { fill::left(left, rows, len, bytemuck::cast_slice_mut(pieces.piece(group).0)) };
    });
}

/// A block of the left operand's rows and of the sum.
struct Block<'a> {
    left: &'a [f32],
    right: Right<'a>,
    ks: Range<usize>,
    start: Start<'a>,
}

impl Block<'_> {
    /// Sums for `rows` of the block, which begins at row `m0` of the output, and for columns `cols`.
    fn task(
        &self,
        m0: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        weights: &mut [f32],
        buffer: &mut [f32],
        out: &Out,
    ) {
        let group = self.ks.len().div_ceil(STEP) * PLACE;
        let (ks, weights) = (self.ks.clone(), &mut weights[..cols.len().div_ceil(SIDE) * group]);
        let (to, buffer) = (bytemuck::cast_slice_mut(weights), bytemuck::cast_slice_mut(buffer));
        // SAFETY: the product checked that this processor has the instructions.
        unsafe {
            match &self.right {
                Right::Rows(w) => fill::weight_rows(w, cols.clone(), ks, buffer, to),
                Right::Cols(w) => fill::weight_cols(w, cols.clone(), ks, buffer, to),
            }
        }
        for i in rows.clone().step_by(SIDE) {
            let left = &self.left[i / SIDE * group..][..group];
            for (weights, j) in weights.chunks_exact(group).zip(cols.clone().step_by(SIDE)) {
                let (m, n) = (SIDE.min(rows.end - i), SIDE.min(cols.end - j));
                let at = out.tile(m0 + i..m0 + i + m, j..j + n);
                // SAFETY: the tile lies inside the output, and this task alone touches it.
                let row = |r: usize| unsafe { std::slice::from_raw_parts_mut(at.add(r * out.n()), n) };
                let mut sums = [[0.0; SIDE]; SIDE];
                for (r, sums) in sums.iter_mut().enumerate().take(m) {
                    match self.start {
                        Start::Zero => {}
                        Start::Bias(bias) => sums[..n].copy_from_slice(&bias[j..j + n]),
                        Start::Output => sums[..n].copy_from_slice(row(r)),
                    }
                }
                // SAFETY: the product checked that this processor has the instructions.
                unsafe { tile::sum(bytemuck::cast_slice(left), bytemuck::cast_slice(weights), &mut sums) };
                for (r, sums) in sums.iter().enumerate().take(m) {
                    row(r).copy_from_slice(&sums[..n]);
                }
            }
        }
    }
}
