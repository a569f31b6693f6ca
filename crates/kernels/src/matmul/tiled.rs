//! The products in f32 tiles, for any vector width: a task dequantises a panel of the right operand into its thread's memory, rows
//! of `k` with outputs side by side, and sweeps all rows of the left operand over it.
//!
//! The left operand is packed before, a block at a time: the rows of a tile side by side for each step of the sum, so that a tile
//! reads one stretch of memory. (Rows where they lie may all share one set of the first-level cache.)

use std::ops::Range;

use super::lanes::Sweep;
use super::out::Out;
use super::product::{Left, Product, Right, Side};
use super::split::Split;
use super::{Ctx, Precision, Start, Weight};
use crate::rows::Rows;
use crate::values::round_bf16;
use crate::{Isa, Pool};

/// What an instruction set brings.
pub(super) struct Kernel {
    /// Floats of a vector; a panel is two vectors wide.
    pub lanes: usize,
    /// Rows of a tile.
    pub rows: usize,
    /// [`super::lanes::sweep`] for this instruction set.
    pub sweep: unsafe fn(&Sweep),
    /// `(from, from_row, rows, to, to_row, len)`: `to[k][r] = from[r][k]` for `rows` rows, `lanes` at most, and `len` columns. Nothing
    /// else is read or written.
    pub transpose: unsafe fn(*const f32, usize, usize, *mut f32, usize, usize),
}

/// Length of a block of the sum: a panel of it stays in the first-level cache. Whole blocks of every type.
const K_BLOCK: usize = 256;
/// Rows and length of a block of the left operand that is packed at once. (A panel is filled anew for each block of rows.)
const LEFT_ROWS: usize = 512;
const LEFT_K: usize = 512;
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
    /// Distance of the rows of panels, which lie side by side: no large power of two either.
    panel_row: usize,
    rows: usize,
    /// Distance of the rows that are to be transposed: no power of two, so that they share no cache set.
    rows_apart: usize,
}

impl Sizes {
    pub fn new(kernel: &Kernel, (m, n, k): (usize, usize, usize), side: Side) -> Self {
        let panel = 2 * kernel.lanes;
        let k_block = k.min(K_BLOCK).next_multiple_of(kernel.lanes);
        let rows_apart = k_block + kernel.lanes;
        let (least, unit, rows) = match side {
            Side::Rows => (panel, panel, kernel.lanes * rows_apart),
            Side::Cols(ty) => (panel.max(ty.block_len()), COLS.max(ty.block_len()), 0),
        };
        let widest = unit.min(n.next_multiple_of(panel));
        let panel_row = if widest == panel { panel } else { widest + panel };
        let panels = k_block * panel_row;
        let left = (m.min(LEFT_ROWS) * k.min(LEFT_K)).next_multiple_of(16);
        Self { left, unit, least, panels, panel_row, rows, rows_apart }
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
    let sizes = Sizes::new(kernel, (m, n, k), product.right.side());
    let bf16 = ctx.precision == Precision::Bf16;
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let threads = Rows::new(&mut rest[..per_thread * ctx.pool.threads()], per_thread);
    let mut block = Block { kernel, isa: ctx.isa, bf16, right: product.right, sizes, start: product.start, n };
    let out = Out::new(product.out.floats(), n);
    for m0 in (0..m).step_by(LEFT_ROWS) {
        let rows = LEFT_ROWS.min(m - m0);
        block.start = product.start;
        for k0 in (0..k).step_by(LEFT_K) {
            let len = LEFT_K.min(k - k0);
            let left = pack(kernel, ctx.pool, product.left.from(m0, k0), (rows, len), bf16, packed);
            let most =
                if let Right::Rows(_) = block.right { PANELS_PER_TASK * block.sizes.unit } else { block.sizes.unit };
            let split = Split::new((rows, n), (block.sizes.least, most), kernel.rows, ctx.pool.threads());
            ctx.pool.run(split.tasks(), &|task, thread| {
                let (rows, cols) = split.task(task);
                // SAFETY: no two running tasks share `thread`, and so none shares this part.
                let scratch = unsafe { threads.range(thread * per_thread..(thread + 1) * per_thread) };
                let left = &left[rows.start * len..rows.end * len];
                for from in (0..len).step_by(K_BLOCK) {
                    for j in cols.clone().step_by(block.sizes.unit) {
                        let start = if from == 0 { block.start } else { Start::Output };
                        let ks = k0 + from..k0 + len.min(from + K_BLOCK);
                        let left = Packed { data: left, len, from };
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

/// Rows of a packed left operand, whole tiles of them but for the last: each tile has `len` steps, and a sum begins at step `from`.
struct Packed<'a> {
    data: &'a [f32],
    len: usize,
    from: usize,
}

/// Packs `rows` by `len` elements of the left operand, rounded to bf16 where that is asked for.
fn pack<'a>(
    kernel: &Kernel,
    pool: &Pool,
    left: Left,
    (rows, len): (usize, usize),
    bf16: bool,
    to: &'a mut [f32],
) -> &'a [f32] {
    let tiles = Rows::new(&mut to[..rows * len], kernel.rows * len);
    pool.run(rows.div_ceil(kernel.rows), &|tile, _| {
        let (to, first) = (tiles.piece(tile).0, tile * kernel.rows);
        let rows = kernel.rows.min(rows - first);
        let from = left.from(first, 0);
        let (from, last) = (from.data.floats(), (rows - 1) * left.row + (len - 1) * left.k);
        assert!(last < from.len() && to.len() == rows * len, "element {last} of a left operand of {}", from.len());
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
    to
}

impl Block<'_> {
    /// Adds the products of `ks` for outputs `js` to `rows` of the output. `left` has these rows, and these steps of the sum where it
    /// says.
    #[allow(clippy::too_many_arguments)]
    fn unit(
        &self,
        js: Range<usize>,
        left: Packed,
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
            Right::Cols(w) => self.fill_from_cols(&w, js.clone(), ks.clone(), panels),
        }
        let panel_row = self.sizes.panel_row;
        for j in js.clone().step_by(panel_len) {
            let n = panel_len.min(js.end - j);
            let panel = &panels[j - js.start..][..(ks.len() - 1) * panel_row + panel_len];
            let first = out.tile(rows.clone(), j..j + n);
            let (init, init_row) = match start {
                Start::Zero => (std::ptr::null(), 0),
                Start::Bias(bias) => (bias[j..j + n].as_ptr(), 0),
                Start::Output => (first.cast_const(), self.n),
            };
            assert!(left.data.len() == rows.len() * left.len && left.from + ks.len() <= left.len);
            let sweep = Sweep {
                left: left.data.as_ptr(),
                left_len: left.len,
                left_from: left.from,
                panel: panel.as_ptr(),
                panel_row,
                m: rows.len(),
                k: ks.len(),
                n,
                init,
                init_row,
                out: first,
                out_row: self.n,
            };
            // SAFETY: the processor has the instructions (checked by the product); the left operand has all rows and steps, the panel has
            // `ks.len()` rows of two vectors, and `first` begins `rows.len()` rows of `n` elements that this task alone touches.
            unsafe { (self.kernel.sweep)(&sweep) };
        }
    }

    /// Fills a panel with rows `js` of `w`, transposed. Lanes without an output are zero.
    fn fill_from_rows(&self, w: &Weight, js: Range<usize>, ks: Range<usize>, panel: &mut [f32], buffer: &mut [f32]) {
        let (lanes, apart) = (self.kernel.lanes, self.sizes.rows_apart);
        for (v, j0) in js.clone().step_by(lanes).enumerate() {
            for (r, row) in buffer.chunks_exact_mut(apart).enumerate() {
                let row = &mut row[..ks.len()];
                if j0 + r < js.end {
                    w.fetch(j0 + r + 1, ks.start, ks.end);
                    self.dequantize(w, j0 + r, ks.clone(), row);
                } else {
                    row.fill(0.0);
                }
            }
            assert!(panel.len() >= 2 * lanes * ks.len());
            // SAFETY: the buffer has `lanes` rows of `apart` floats, more than `ks.len()`; the panel has rows of two vectors for all
            // of them.
            unsafe {
                let to = panel.as_mut_ptr().add(v * lanes);
                (self.kernel.transpose)(buffer.as_ptr(), apart, lanes, to, 2 * lanes, ks.len());
            }
        }
    }

    /// Fills panels with columns `js` of rows `ks` of `w`, side by side. Lanes without an output are zero.
    fn fill_from_cols(&self, w: &Weight, js: Range<usize>, ks: Range<usize>, panels: &mut [f32]) {
        let width = js.len().next_multiple_of(2 * self.kernel.lanes);
        for (row, to) in ks.zip(panels.chunks_exact_mut(self.sizes.panel_row)) {
            w.fetch(row + ROWS_AHEAD, js.start, js.end);
            let (to, rest) = to[..width].split_at_mut(js.len());
            self.dequantize(w, row, js.clone(), to);
            rest.fill(0.0);
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
