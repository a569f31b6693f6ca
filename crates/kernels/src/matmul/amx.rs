//! The products on AMX: bf16 tiles of 16 rows by 32 of the sum against 32 of the sum by 16 outputs, summed in f32.
//!
//! The left operand is copied once, a block at a time, into tiles of 1 KiB; each task dequantises a panel of 32 outputs into tiles
//! in its thread's memory and takes all rows of the block over it. The sum goes in ascending blocks of 32, padded with zeros, and
//! continues from the output, so its bits depend on no tiling.

mod fill;
mod tile;

use std::ops::Range;

use super::product::{Left, Out, Product, Right, Side};
use super::split::Split;
use super::{Ctx, Start};
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Length of a block of the sum for which a panel stays in the first-level cache. Whole blocks of every type.
const K_BLOCK: usize = 1024;
/// Rows and length of the block of the left operand: 1 MiB, half of a second-level cache.
const LEFT_ROWS: usize = 512;
const LEFT_K: usize = 1024;
/// Panels that a task works through for each block of the sum.
const PANELS_PER_TASK: usize = 4;
/// Columns of a weight that are dequantised at once.
const COLS: usize = 128;
/// Outputs of a panel, and rows that meet it at once: two tiles.
const SIDE: usize = 32;
/// Elements of the sum in a tile.
const K_TILE: usize = 32;
/// f32 elements that two tiles side by side take.
const PAIR: usize = 512;

/// Scratch memory: the left operand, then for each thread panels, a row buffer and an output tile. In f32 elements.
pub(super) struct Sizes {
    left: usize,
    /// Outputs that are filled at once: whole panels.
    unit: usize,
    panels: usize,
    rows: usize,
    /// Distance of the rows that are to be transposed: no power of two, so that they share no cache set.
    rows_apart: usize,
}

impl Sizes {
    pub fn new((m, n, k): (usize, usize, usize), side: Side) -> Self {
        let k_block = k.min(K_BLOCK).next_multiple_of(K_TILE);
        let rows_apart = k_block + 16;
        let (unit, rows) = match side {
            Side::Rows => (SIDE, 16 * rows_apart),
            Side::Cols(ty) => {
                let unit = COLS.max(ty.block_len()).min(n.next_multiple_of(SIDE));
                (unit, 2 * unit)
            }
        };
        let left = m.min(LEFT_ROWS).next_multiple_of(SIDE) * k.min(LEFT_K).next_multiple_of(K_TILE) / 2;
        Self { left, unit, panels: unit * k_block / 2, rows, rows_apart }
    }

    fn per_thread(&self) -> usize {
        (self.panels + self.rows + SIDE * SIDE).next_multiple_of(16)
    }

    /// All of it, with room to begin at a cache line.
    pub fn total(&self, threads: usize) -> usize {
        self.left + threads * self.per_thread() + 16
    }
}

/// A block of the left operand in tiles: tile `(t, s)` of 16 rows and 32 of the sum lies at `(t steps + s) PAIR / 2`.
#[derive(Clone, Copy)]
struct Packed<'a> {
    tiles: &'a [f32],
    steps: usize,
}

/// The parts of a product that all tasks read.
struct Block<'a> {
    isa: Isa,
    right: Right<'a>,
    sizes: Sizes,
    n: usize,
}

/// A thread's scratch memory.
struct Scratch<'a> {
    panels: &'a mut [f32],
    rows: &'a mut [f32],
    tile: &'a mut [f32],
}

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    let (m, n, k) = (product.m, product.n, product.k);
    let sizes = Sizes::new((m, n, k), product.right.side());
    let threads = ctx.pool.threads();
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let scratch = Rows::new(&mut rest[..per_thread * threads], per_thread);
    let most_units = if let Right::Rows(_) = product.right { PANELS_PER_TASK } else { 1 };
    let block = Block { isa: ctx.isa, right: product.right, sizes, n };
    let out = Out::new(product.out, n);
    for m0 in (0..m).step_by(LEFT_ROWS) {
        let rows = LEFT_ROWS.min(m - m0);
        for k0 in (0..k).step_by(LEFT_K) {
            let len = LEFT_K.min(k - k0);
            let from = &product.left.data[m0 * product.left.row + k0 * product.left.k..];
            let left = pack(ctx.pool, Left { data: from, ..product.left }, rows, len, packed);
            let split = Split::new(rows, n.div_ceil(block.sizes.unit), most_units, SIDE, threads);
            ctx.pool.run(split.tasks(), &|task, thread| {
                // SAFETY: no two running tasks share `thread`, and so none shares this part.
                let mine = unsafe { scratch.range(thread * per_thread..(thread + 1) * per_thread) };
                let (panels, rest) = mine.split_at_mut(block.sizes.panels);
                let (buffer, rest) = rest.split_at_mut(block.sizes.rows);
                let mut scratch = Scratch { panels, rows: buffer, tile: &mut rest[..SIDE * SIDE] };
                let (rows, units) = split.task(task);
                // SAFETY: the product checked that this processor has AMX and that its kernel lets us use it.
                let tiles = unsafe { tile::Tiles::configure() };
                for k in (0..len).step_by(K_BLOCK) {
                    let start = if k0 + k == 0 { product.start } else { Start::Output };
                    let ks = k0 + k..k0 + len.min(k + K_BLOCK);
                    let first = rows.start / 16 * left.steps + k / K_TILE;
                    let left = Packed { tiles: &left.tiles[first * PAIR / 2..], ..left };
                    for unit in units.clone() {
                        block.unit(&tiles, unit, left, m0 + rows.start..m0 + rows.end, ks.clone(), start, &mut scratch, &out);
                    }
                }
            });
        }
    }
}

/// Rounds `rows` by `len` elements of the left operand and lays them out in tiles, zeros around them.
fn pack<'a>(pool: &Pool, left: Left, rows: usize, len: usize, to: &'a mut [f32]) -> Packed<'a> {
    let steps = len.div_ceil(K_TILE);
    let pairs = rows.div_ceil(SIDE);
    let pieces = Rows::new(&mut to[..pairs * steps * PAIR], steps * PAIR);
    pool.run(pairs, &|pair, _| {
        let rows = pair * SIDE..rows.min((pair + 1) * SIDE);
        // SAFETY: the product checked the instructions; the piece holds two rows of tiles.
        unsafe { fill::left(left, rows, len, pieces.piece(pair).0) }
    });
    Packed { tiles: to, steps }
}

impl Block<'_> {
    /// Adds the products of `ks` for the outputs of `unit` to `rows` of the output. `left` begins at the first of both.
    #[allow(clippy::too_many_arguments)]
    fn unit(
        &self,
        tiles: &tile::Tiles,
        unit: usize,
        left: Packed,
        rows: Range<usize>,
        ks: Range<usize>,
        start: Start,
        scratch: &mut Scratch,
        out: &Out,
    ) {
        let (j0, j1) = (unit * self.sizes.unit, self.n.min((unit + 1) * self.sizes.unit));
        // SAFETY: the product checked the instructions; the sizes are those that the scratch memory was cut by.
        unsafe {
            match self.right {
                Right::Rows(w) => {
                    fill::from_rows(self.isa, &w, j0..j1, ks.clone(), scratch.rows, self.sizes.rows_apart, scratch.panels)
                }
                Right::Cols(w) => fill::from_cols(self.isa, &w, j0..j1, ks.clone(), scratch.rows, scratch.panels),
            }
        }
        let steps = ks.len().div_ceil(K_TILE);
        for (panel, j) in scratch.panels.chunks_exact(steps * PAIR).zip((j0..j1).step_by(SIDE)) {
            let cols = j..j1.min(j + SIDE);
            for i in (0..rows.len()).step_by(SIDE) {
                let left = Packed { tiles: &left.tiles[i / 16 * left.steps * PAIR / 2..], ..left };
                let rows = rows.start + i..rows.end.min(rows.start + i + SIDE);
                self.pair(tiles, left, panel, steps, rows, cols.clone(), start, scratch.tile, out);
            }
        }
    }

    /// Up to 32 rows by 32 outputs. A whole square is summed where it lies, a smaller one in `square`.
    #[allow(clippy::too_many_arguments)]
    fn pair(
        &self,
        tiles: &tile::Tiles,
        left: Packed,
        panel: &[f32],
        steps: usize,
        rows: Range<usize>,
        cols: Range<usize>,
        start: Start,
        square: &mut [f32],
        out: &Out,
    ) {
        let at = out.tile(rows.clone(), cols.clone());
        let (m, n) = (rows.len(), cols.len());
        let whole = false;
        for r in 0..m { unsafe { use std::arch::x86_64::*;
            _mm_prefetch::<_MM_HINT_ET0>(at.add(r * self.n).cast());
            _mm_prefetch::<_MM_HINT_ET0>(at.add(r * self.n + 16).cast()); } }
        let bias = if let Start::Bias(bias) = start { &bias[cols] } else { &[] };
        if !whole && !matches!(start, Start::Zero) {
            for i in 0..m {
                let row = &mut square[i * SIDE..][..n];
                // SAFETY: the task alone touches this part of the output.
                let from = unsafe { std::slice::from_raw_parts(at.add(i * self.n), n) };
                row.copy_from_slice(if let Start::Output = start { from } else { bias });
            }
        }
        let (to, to_row) = if whole { (at, self.n) } else { (square.as_mut_ptr(), SIDE) };
        let (init, init_row) = match start {
            Start::Zero => (std::ptr::null(), 0),
            Start::Bias(_) if whole => (bias.as_ptr(), 0),
            _ => (to.cast_const(), to_row),
        };
        let second = left.steps * PAIR / 2;
        let two = m > 16;
        let reach = steps * PAIR / 2 + if two { second } else { 0 };
        assert!(left.tiles.len() >= reach && panel.len() >= steps * PAIR);
        let sum = tile::Sum { left: left.tiles.as_ptr(), second, panel: panel.as_ptr(), steps, init, init_row, to, to_row };
        // SAFETY: both operands hold `steps` tiles by the assertion; `to`, and `init` where there is one, have 32 columns in as many
        // rows as are summed: 32, or 16 in `square`.
        unsafe { if two { tiles.sum_two(&sum) } else { tiles.sum_one(&sum) } }
        if !whole {
            for (i, row) in square.chunks_exact(SIDE).take(m).enumerate() {
                // SAFETY: the task alone touches this part of the output.
                unsafe { std::slice::from_raw_parts_mut(at.add(i * self.n), n) }.copy_from_slice(&row[..n]);
            }
        }
    }
}
