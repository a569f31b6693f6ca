//! The products in f32 tiles, for any vector width: a task dequantises a panel of the right operand into its thread's memory, rows
//! of `k` with outputs side by side, and sweeps all rows of the left operand over it.
//!
//! The left operand is read where it lies; only bf16 precision copies it, rounded, a block at a time.

use std::ops::Range;

use super::lanes::Sweep;
use super::out::Out;
use super::product::{Left, Product, Right, Side};
use super::split::Split;
use super::{Ctx, Precision, Start, Weight};
use crate::rows::Rows;
use crate::values::round_bf16;
use crate::{Isa, Pool, Values};

/// What an instruction set brings.
pub(super) struct Kernel {
    /// Floats of a vector; a panel is two vectors wide.
    pub lanes: usize,
    /// Rows of a tile.
    pub rows: usize,
    /// [`super::lanes::sweep`] for this instruction set.
    pub sweep: unsafe fn(&Sweep),
    /// `(from, from_row, to, to_row, len)`: `to[k][r] = from[r][k]` for `lanes` rows and `len` rounded up to whole vectors.
    pub transpose: unsafe fn(*const f32, usize, *mut f32, usize, usize),
}

/// Length of a block of the sum: a panel of it stays in the first-level cache. Whole blocks of every type.
const K_BLOCK: usize = 256;
/// Rows and length of the block of a rounded left operand.
const LEFT_ROWS: usize = 256;
const LEFT_K: usize = 1024;
/// Panels that a task works through for each block of the sum, so that the left operand comes from the second-level cache.
const PANELS_PER_TASK: usize = 4;
/// How far ahead rows of a weight are asked for while columns of them are dequantised.
const ROWS_AHEAD: usize = 12;
/// Columns of a weight that are dequantised at once.
const COLS: usize = 128;

/// Scratch memory: the rounded left operand, then for each thread panels and a row buffer.
pub(super) struct Sizes {
    left: usize,
    /// Outputs that are filled at once, at most and at least: whole panels, and whole blocks of a row.
    unit: usize,
    least: usize,
    panels: usize,
    rows: usize,
    /// Distance of the rows that are to be transposed: no power of two, so that they share no cache set.
    rows_apart: usize,
}

impl Sizes {
    pub fn new(kernel: &Kernel, precision: Precision, (m, n, k): (usize, usize, usize), side: Side) -> Self {
        let panel = 2 * kernel.lanes;
        let k_block = k.min(K_BLOCK).next_multiple_of(kernel.lanes);
        let rows_apart = k_block + kernel.lanes;
        let (least, unit, rows) = match side {
            Side::Rows => (panel, panel, kernel.lanes * rows_apart),
            Side::Cols(ty) => {
                let unit = COLS.max(ty.block_len());
                (panel.max(ty.block_len()), unit, unit)
            }
        };
        let panels = unit.min(n.next_multiple_of(panel)) * k_block;
        let left = match precision {
            Precision::F32 => 0,
            Precision::Bf16 => (m.min(LEFT_ROWS) * k.min(LEFT_K)).next_multiple_of(16),
        };
        Self { left, unit, least, panels, rows, rows_apart }
    }

    fn per_thread(&self) -> usize {
        (self.panels + self.rows).next_multiple_of(16)
    }

    /// All of it, in f32 elements, with room to begin at a cache line: vectors that cross lines take two loads each.
    pub fn total(&self, threads: usize) -> usize {
        self.left + threads * self.per_thread() + 16
    }
}

/// The parts of a product that all tasks read.
struct Block<'a> {
    kernel: &'a Kernel,
    isa: Isa,
    bf16: bool,
    right: Right<'a>,
    sizes: Sizes,
    start: Start<'a>,
    n: usize,
}

pub(super) fn run(kernel: &Kernel, ctx: &mut Ctx, product: &mut Product) {
    let (m, n, k) = (product.m, product.n, product.k);
    let sizes = Sizes::new(kernel, ctx.precision, (m, n, k), product.right.side());
    let bf16 = ctx.precision == Precision::Bf16;
    let (left_rows, left_k) = if bf16 { (LEFT_ROWS, LEFT_K) } else { (m, k) };
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (rounded, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let threads = Rows::new(&mut rest[..per_thread * ctx.pool.threads()], per_thread);
    let mut block = Block { kernel, isa: ctx.isa, bf16, right: product.right, sizes, start: product.start, n };
    let out = Out::new(product.out.floats(), n);
    for m0 in (0..m).step_by(left_rows) {
        let rows = left_rows.min(m - m0);
        block.start = product.start;
        for k0 in (0..k).step_by(left_k) {
            let len = left_k.min(k - k0);
            let mut left = product.left.from(m0, k0);
            if bf16 {
                left = round_left(ctx.pool, left, rows, len, rounded);
            }
            let most =
                if let Right::Rows(_) = block.right { PANELS_PER_TASK * block.sizes.unit } else { block.sizes.unit };
            let split = Split::new((rows, n), (block.sizes.least, most), kernel.rows, ctx.pool.threads());
            ctx.pool.run(split.tasks(), &|task, thread| {
                let (rows, cols) = split.task(task);
                // SAFETY: no two running tasks share `thread`, and so none shares this part.
                let scratch = unsafe { threads.range(thread * per_thread..(thread + 1) * per_thread) };
                let left = left.from(rows.start, 0);
                for from in (0..len).step_by(K_BLOCK) {
                    for j in cols.clone().step_by(block.sizes.unit) {
                        let start = if from == 0 { block.start } else { Start::Output };
                        let ks = k0 + from..k0 + len.min(from + K_BLOCK);
                        let left = left.from(0, from);
                        let rows = m0 + rows.start..m0 + rows.end;
                        let js = j..cols.end.min(j + block.sizes.unit);
                        block.unit(js, left, rows, ks, start, scratch, &out);
                    }
                }
            });
            block.start = Start::Output;
        }
    }
}

/// Copies `rows` by `len` elements of the left operand, rounded to bf16.
fn round_left<'a>(pool: &Pool, left: Left, rows: usize, len: usize, to: &'a mut [f32]) -> Left<'a> {
    let pieces = Rows::new(&mut to[..rows * len], len);
    pool.run(rows, &|i, _| {
        let from = left.from(i, 0).data.floats();
        for (k, to) in pieces.piece(i).0.iter_mut().enumerate() {
            *to = round_bf16(from[k * left.k]);
        }
    });
    Left { data: Values::F32(to), row: len, k: 1 }
}

impl Block<'_> {
    /// Adds the products of `ks` for outputs `js` to `rows` of the output. `left` begins at the first of both.
    #[allow(clippy::too_many_arguments)]
    fn unit(
        &self,
        js: Range<usize>,
        left: Left,
        rows: Range<usize>,
        ks: Range<usize>,
        start: Start,
        scratch: &mut [f32],
        out: &Out,
    ) {
        let panel_len = 2 * self.kernel.lanes;
        let (panels, buffer) = scratch.split_at_mut(self.sizes.panels);
        match self.right {
            Right::Rows(w) => self.fill_from_rows(&w, js.clone(), ks.clone(), panels, buffer),
            Right::Cols(w) => self.fill_from_cols(&w, js.clone(), ks.clone(), panels, buffer),
        }
        for (p, j) in js.clone().step_by(panel_len).enumerate() {
            let n = panel_len.min(js.end - j);
            let panel = &panels[p * ks.len() * panel_len..][..ks.len() * panel_len];
            let first = out.tile(rows.clone(), j..j + n);
            let (init, init_row) = match start {
                Start::Zero => (std::ptr::null(), 0),
                Start::Bias(bias) => (bias[j..j + n].as_ptr(), 0),
                Start::Output => (first.cast_const(), self.n),
            };
            let last = (rows.len() - 1) * left.row + (ks.len() - 1) * left.k;
            let data = left.data.floats();
            assert!(last < data.len(), "element {last} of a left operand of {}", data.len());
            let sweep = Sweep {
                left: data.as_ptr(),
                left_row: left.row,
                left_k: left.k,
                panel: panel.as_ptr(),
                m: rows.len(),
                k: ks.len(),
                n,
                init,
                init_row,
                out: first,
                out_row: self.n,
            };
            // SAFETY: the processor has the instructions (checked by the product); the left operand reaches `last`, the panel has
            // `ks.len()` rows of two vectors, and `first` begins `rows.len()` rows of `n` elements that this task alone touches.
            unsafe { (self.kernel.sweep)(&sweep) };
        }
    }

    /// Fills a panel with rows `js` of `w`, transposed. Lanes without an output are zero.
    fn fill_from_rows(&self, w: &Weight, js: Range<usize>, ks: Range<usize>, panel: &mut [f32], buffer: &mut [f32]) {
        let (lanes, apart) = (self.kernel.lanes, self.sizes.rows_apart);
        for (v, j0) in js.clone().step_by(lanes).enumerate() {
            for (r, row) in buffer.chunks_exact_mut(apart).enumerate() {
                let (row, tail) = row.split_at_mut(ks.len());
                tail.fill(0.0);
                if j0 + r < js.end {
                    w.fetch(j0 + r + 1, ks.start, ks.end);
                    self.dequantize(w, j0 + r, ks.clone(), row);
                } else {
                    row.fill(0.0);
                }
            }
            assert!(panel.len() >= 2 * lanes * ks.len().next_multiple_of(lanes));
            // SAFETY: the buffer has `lanes` rows of `apart` floats, and `apart` is past `ks.len()` rounded up; the panel has rows of
            // two vectors for all of it.
            unsafe {
                let to = panel.as_mut_ptr().add(v * lanes);
                (self.kernel.transpose)(buffer.as_ptr(), apart, to, 2 * lanes, ks.len());
            }
        }
    }

    /// Fills panels with columns `js` of rows `ks` of `w`. Lanes without an output are zero.
    fn fill_from_cols(&self, w: &Weight, js: Range<usize>, ks: Range<usize>, panels: &mut [f32], buffer: &mut [f32]) {
        let width = 2 * self.kernel.lanes;
        let buffer = &mut buffer[..js.len()];
        for (k, row) in ks.clone().enumerate() {
            w.fetch(row + ROWS_AHEAD, js.start, js.end);
            self.dequantize(w, row, js.clone(), buffer);
            for (p, part) in buffer.chunks(width).enumerate() {
                let to = &mut panels[(p * ks.len() + k) * width..][..width];
                to[..part.len()].copy_from_slice(part);
                to[part.len()..].fill(0.0);
            }
        }
    }

    fn dequantize(&self, w: &Weight, row: usize, cols: Range<usize>, to: &mut [f32]) {
        w.read(self.isa, row, cols, to);
        if self.bf16 {
            for x in to {
                *x = round_bf16(*x);
            }
        }
    }
}
