//! The products in f32 tiles, for any vector width: a task dequantises a panel of the right operand into its thread's memory, rows
//! of `k` with outputs side by side, and sweeps all rows of the left operand over it.
//!
//! The left operand is packed before, a block at a time: the rows of a tile side by side for each step of the sum, so that a tile
//! reads one stretch of memory. (Rows where they lie may all share one set of the first-level cache.) The last block of the sum goes on over
//! the rank of an adapter.

use std::ops::Range;

use super::out::Out;
use super::product::{Factor, Left, Product, Right, Side};
use super::split::{LONGEST_BLOCK, Split, equal_parts};
use super::sweep::Sweep;
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
    /// The longest block of the sum, [`LONGEST_BLOCK`] at least. Each block loads and stores all sums; whether its panel must be in the first-level cache depends on how much is
    /// loaded for an operation.
    pub k_block: usize,
    /// [`super::sweep::sweep`] for this instruction set.
    pub sweep: unsafe fn(&Sweep),
    /// [`crate::lanes::Lanes::transpose`].
    pub transpose: unsafe fn(*const f32, usize, usize, *mut f32, usize, usize),
    /// [`super::sweep::deal`] for this instruction set.
    pub deal: unsafe fn(*const f32, usize, *mut f32, usize),
}

/// Rows of the left operand that are packed at once, whole tiles of every kernel, and their length. (Panels are filled anew for each block of rows.)
const LEFT_ROWS: usize = 528;
const LEFT_K: usize = 1024;
/// Elements of the shortest block of a type that has blocks.
const SHORTEST_BLOCK: usize = 32;
/// Elements of rows that are transposed at once, so that they stay in the first-level cache between: whole blocks of every type.
const TURNED: usize = 256;
/// Panels that a task works through for each block of the sum, so that the left operand comes from the second-level cache.
const PANELS_PER_TASK: usize = 4;
/// How far ahead rows of a weight are asked for while columns of them are dequantised.
const ROWS_AHEAD: usize = 12;
/// Columns of a weight that are dequantised at once.
const COLS: usize = 128;

/// Scratch memory: the packed left operand, then for each thread panels and a row buffer.
pub(super) struct Sizes {
    left: usize,
    /// Outputs that are filled at once, at most and at least: whole panels, and whole blocks of a row.
    unit: usize,
    least: usize,
    panels: usize,
    /// From a panel to the next: a line more than it has, since as many bytes as it has would share cache sets.
    panels_apart: usize,
    /// Rows on their way to panels.
    rows: usize,
    /// Distance of the rows that are to be transposed: no power of two, so that they share no cache set.
    rows_apart: usize,
    /// Length of what is packed of the left operand, and of a block of the sum.
    left_k: usize,
    k_block: usize,
}

impl Sizes {
    pub fn new(kernel: &Kernel, (m, n, k): (usize, usize, usize), rank: usize, side: Side) -> Self {
        let panel = 2 * kernel.lanes;
        let left_k = equal_blocks(k, LEFT_K);
        let rows_apart = left_k.min(TURNED).next_multiple_of(kernel.lanes) + kernel.lanes;
        let (least, unit, rows) = match side {
            Side::Rows => (panel, panel, kernel.lanes * rows_apart),
            Side::Cols(ty) => (panel.max(ty.block_len()), COLS.max(ty.block_len()), COLS.max(ty.block_len())),
        };
        // Many columns that are filled at once have shorter panels.
        let longest = (kernel.k_block * COLS / unit.max(COLS)).max(LONGEST_BLOCK);
        let k_block = equal_blocks(left_k, longest);
        let panels_apart = (k_block + rank) * panel + 16;
        // Room for the longest blocks: equal ones of a longer sum may be shorter, but a longer sum must not need less.
        let panels = unit.min(n).div_ceil(panel) * ((k.min(longest) + rank) * panel + 16);
        let left = (m.min(LEFT_ROWS) * (k.min(LEFT_K) + rank)).next_multiple_of(16);
        Self { left, unit, least, panels, panels_apart, rows, rows_apart, left_k, k_block }
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
    /// What an adapter adds: the last block's sum goes on over its rank.
    tail: Option<(Left<'a>, Factor<'a>)>,
    k: usize,
}

pub(super) fn run(kernel: &Kernel, ctx: &mut Ctx, product: &mut Product) {
    let tail = product.take_tail(ctx);
    let (m, n, k) = (product.m, product.n, product.k);
    let sizes = Sizes::new(kernel, (m, n, k), tail.map_or(0, |(_, factor)| factor.rank), product.right.side());
    let bf16 = ctx.precision == Precision::Bf16;
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let threads = Rows::new(&mut rest[..per_thread * ctx.pool.threads()], per_thread);
    let (left_k, k_block) = (sizes.left_k, sizes.k_block);
    let block = Block { kernel, isa: ctx.isa, bf16, right: product.right, sizes, tail, k };
    let out = Out::new(product.out.floats(), n);
    let row_block = m.div_ceil(m.div_ceil(LEFT_ROWS)).next_multiple_of(kernel.rows);
    for m0 in (0..m).step_by(row_block) {
        let rows = row_block.min(m - m0);
        for k0 in (0..k).step_by(left_k) {
            let all = k0..k.min(k0 + left_k);
            let parts = || all.clone().step_by(k_block).map(|from| from..all.end.min(from + k_block));
            for ks in parts() {
                let steps = block.steps(&ks);
                let to = &mut packed[rows * (ks.start - k0)..][..rows * steps];
                pack(kernel, ctx.pool, product.left.from(m0, ks.start), rows, bf16, to, 0..ks.len());
                if let Some((low, _)) = block.tail(&ks) {
                    pack(kernel, ctx.pool, low.from(m0, 0), rows, bf16, to, ks.len()..steps);
                }
            }
            let most =
                if let Right::Rows(_) = block.right { PANELS_PER_TASK * block.sizes.unit } else { block.sizes.unit };
            let split = Split::new((rows, n), (block.sizes.least, most), kernel.rows, ctx.pool.threads());
            ctx.pool.run(split.tasks(), &|task, thread| {
                let (mine, cols) = split.task(task);
                // SAFETY: no two running tasks share `thread`, and so none shares this part.
                let scratch = unsafe { threads.range(thread * per_thread..(thread + 1) * per_thread) };
                for ks in parts() {
                    let steps = block.steps(&ks);
                    let left = &packed[rows * (ks.start - k0)..][mine.start * steps..mine.end * steps];
                    let start = if ks.start == 0 { product.start } else { Start::Output };
                    for j in cols.clone().step_by(block.sizes.unit) {
                        let js = j..cols.end.min(j + block.sizes.unit);
                        let rows = m0 + mine.start..m0 + mine.end;
                        block.unit(js, left, rows, ks.clone(), start, scratch, &out);
                    }
                }
            });
        }
    }
}

/// The length of blocks that a sum of `k` is cut into: whole blocks of its weight's type. One with the longest blocks has rows of whole ones.
fn equal_blocks(k: usize, longest: usize) -> usize {
    equal_parts(k, longest, if k.is_multiple_of(LONGEST_BLOCK) { LONGEST_BLOCK } else { SHORTEST_BLOCK })
}

/// Packs `rows` of the left operand as `steps` of what `to` holds, tile by tile, rounded to bf16 where that is asked for.
fn pack(kernel: &Kernel, pool: &Pool, left: Left, rows: usize, bf16: bool, to: &mut [f32], steps: Range<usize>) {
    let (len, tiles) = (steps.len(), Rows::new(to, kernel.rows * (to.len() / rows)));
    pool.run(rows.div_ceil(kernel.rows), &|tile, _| {
        let (to, first) = (tiles.piece(tile).0, tile * kernel.rows);
        let rows = kernel.rows.min(rows - first);
        let to = &mut to[steps.start * rows..steps.end * rows];
        let from = left.from(first, 0);
        let (from, last) = (from.data.floats(), (rows - 1) * left.row + (len - 1) * left.k);
        assert!(last < from.len(), "element {last} of a left operand of {}", from.len());
        if left.row == 1 {
            for (k, to) in to.chunks_exact_mut(rows).enumerate() {
                to.copy_from_slice(&from[k * left.k..][..rows]);
            }
        } else {
            assert_eq!(left.k, 1, "a left operand has its rows or its columns side by side");
            for r in (0..rows).step_by(kernel.lanes) {
                let count = kernel.lanes.min(rows - r);
                // SAFETY: the processor has the instructions (checked by the product); the last element of the rows is there, and
                // `to` has `len` steps of `rows` elements.
                unsafe {
                    let (from, to) = (from.as_ptr().add(r * left.row), to.as_mut_ptr().add(r));
                    (kernel.transpose)(from, left.row, count, to, rows, len);
                }
            }
        }
        if bf16 {
            to.iter_mut().for_each(|x| *x = round_bf16(*x));
        }
    });
}

impl Block<'_> {
    /// What the sum goes on with after the steps `ks`.
    fn tail(&self, ks: &Range<usize>) -> Option<(Left<'_>, Factor<'_>)> {
        self.tail.filter(|_| ks.end == self.k)
    }

    /// These steps and those that the sum goes on with.
    fn steps(&self, ks: &Range<usize>) -> usize {
        ks.len() + self.tail(ks).map_or(0, |(_, factor)| factor.rank)
    }

    /// Adds the products of `ks` for outputs `js` to `rows` of the output. `left` has these rows and steps of the sum, whole tiles of rows but for the last.
    #[allow(clippy::too_many_arguments)]
    fn unit(
        &self,
        js: Range<usize>,
        left: &[f32],
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
            Right::Cols(w) => self.fill_from_cols(&w, js.clone(), ks.clone(), 0, panels, buffer),
        }
        let steps = self.steps(&ks);
        if let Some((_, factor)) = self.tail(&ks) {
            self.fill_from_cols(&factor.weight(), js.clone(), 0..factor.rank, ks.len(), panels, buffer);
        }
        for (j, panel) in js.clone().step_by(panel_len).zip(panels.chunks(self.sizes.panels_apart)) {
            let n = panel_len.min(js.end - j);
            let panel = &panel[..steps * panel_len];
            let first = out.tile(rows.clone(), j..j + n);
            let (init, init_row) = match start {
                Start::Zero => (std::ptr::null(), 0),
                Start::Bias(bias) => (bias[j..j + n].as_ptr(), 0),
                Start::Output => (first.cast_const(), out.n()),
            };
            assert_eq!(left.len(), rows.len() * steps, "packed rows");
            let sweep = Sweep {
                left: left.as_ptr(),
                panel: panel.as_ptr(),
                m: rows.len(),
                k: steps,
                n,
                init,
                init_row,
                out: first,
                out_row: out.n(),
            };
            // SAFETY: the processor has the instructions (checked by the product); the left operand has all rows and steps, the panel has
            // as many rows of two vectors, and `first` begins `rows.len()` rows of `n` elements that this task alone touches.
            unsafe { (self.kernel.sweep)(&sweep) };
        }
    }

    /// Fills a panel with rows `js` of `w`, transposed. Lanes without an output are zero.
    fn fill_from_rows(&self, w: &Weight, js: Range<usize>, ks: Range<usize>, panel: &mut [f32], buffer: &mut [f32]) {
        let (lanes, apart) = (self.kernel.lanes, self.sizes.rows_apart);
        assert!(panel.len() >= 2 * lanes * ks.len());
        for (v, j0) in js.clone().step_by(lanes).enumerate() {
            for k0 in ks.clone().step_by(TURNED) {
                let part = k0..ks.end.min(k0 + TURNED);
                for (r, row) in buffer.chunks_exact_mut(apart).enumerate() {
                    let row = &mut row[..part.len()];
                    if j0 + r < js.end {
                        w.fetch(j0 + r + 1, part.start, part.end);
                        self.dequantize(w, j0 + r, part.clone(), row);
                    } else {
                        row.fill(0.0);
                    }
                }
                // SAFETY: the buffer has `lanes` rows of `apart` floats, more than `part.len()`; the panel has rows of two vectors for
                // all of `ks`.
                unsafe {
                    let to = panel.as_mut_ptr().add(((k0 - ks.start) * 2 + v) * lanes);
                    (self.kernel.transpose)(buffer.as_ptr(), apart, lanes, to, 2 * lanes, part.len());
                }
            }
        }
    }

    /// Fills panels, from their row `first` on, with columns `js` of rows `ks` of `w`. Lanes without an output are zero.
    fn fill_from_cols(
        &self,
        w: &Weight,
        js: Range<usize>,
        ks: Range<usize>,
        first: usize,
        panels: &mut [f32],
        buffer: &mut [f32],
    ) {
        let panel_len = 2 * self.kernel.lanes;
        let apart = self.sizes.panels_apart;
        let count = js.len().div_ceil(panel_len);
        assert!(panels.len() >= (count - 1) * apart + (first + ks.len()) * panel_len, "room for {count} panels");
        let buffer = &mut buffer[..count * panel_len];
        buffer[js.len()..].fill(0.0);
        for (k, row) in (first..).zip(ks) {
            w.fetch(row + ROWS_AHEAD, js.start, js.end);
            let from = match w.values() {
                // Floats come from where they lie.
                Some(Values::F32(all)) if js.len() == buffer.len() && !self.bf16 => &all[row * w.cols..][js.clone()],
                _ => {
                    self.dequantize(w, row, js.clone(), &mut buffer[..js.len()]);
                    &*buffer
                }
            };
            // SAFETY: the processor has the instructions (checked by the product); there are so many pieces, and room for row `k` in as many panels.
            unsafe { (self.kernel.deal)(from.as_ptr(), count, panels.as_mut_ptr().add(k * panel_len), apart) };
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
