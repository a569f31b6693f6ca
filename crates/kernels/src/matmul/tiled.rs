//! The products in tiles, for any vector width: a task dequantises a panel of the right operand into its thread's memory, steps
//! of the sum with outputs side by side, and sweeps all rows of the left operand over it. A step is an element of the sum, or two as 16-bit integers.
//!
//! The left operand is packed before, a block at a time: the rows of a tile side by side for each step of the sum, so that a tile
//! reads one stretch of memory. (Rows where they lie may all share one set of the first-level cache.) An adapter's low-rank values are made of what is packed, and
//! the last block of the sum goes on over its rank.

mod floats;
mod integers;

use std::ops::Range;

pub(super) use floats::{Deal, deal};
pub(super) use integers::{Scales, interleave, interleave_floats};

use super::int16::GROUP;
use super::out::Out;
use super::product::{Factor, Left, Product, Right, Side, Tail};
use super::split::{LONGEST_BLOCK, Split, equal_parts};
use super::sweep::Sweep;
use super::thin::{self, Thin};
use super::{Ctx, Low, Precision, Start, Weight};
use crate::dequant::dequantize_rows;
use crate::rows::Rows;
use crate::{Isa, Pool, Values, elementwise};

/// What an instruction set brings.
pub(super) struct Kernel {
    /// Floats of a vector; a panel is two vectors wide.
    pub lanes: usize,
    /// Rows of a tile.
    pub rows: usize,
    /// The longest block of the sum in steps, [`LONGEST_BLOCK`] at least. Each block loads and stores all sums; whether its panel must be in the first-level cache depends on how much is
    /// loaded for an operation.
    pub k_block: usize,
    /// [`super::thin::thin`] for this instruction set.
    pub thin: unsafe fn(&Thin),
    /// [`super::sweep::sweep`] for this instruction set, of floats and of integers.
    pub floats: unsafe fn(&Sweep),
    pub integers: unsafe fn(&Sweep),
    /// [`crate::lanes::Lanes::transpose`].
    pub transpose: unsafe fn(*const f32, usize, usize, *mut f32, usize, usize),
    /// [`deal`], [`interleave`] and [`interleave_floats`] for this instruction set.
    pub deal: unsafe fn(Deal),
    pub interleave: unsafe fn(Deal),
    pub interleave_floats: unsafe fn(Deal, Scales),
}

/// Rows of the left operand that are packed at once, whole tiles of every kernel, and their length in steps. (Panels are filled anew for each block of rows.)
const LEFT_ROWS: usize = 528;
const LEFT_STEPS: usize = 1024;
/// Elements of the shortest block of a type that has blocks.
const SHORTEST_BLOCK: usize = 32;
/// Elements of rows that are transposed at once, so that they stay in the first-level cache between: whole blocks of every type.
const TURNED: usize = 256;
/// Panels that a task works through for each block of the sum, so that the left operand comes from the second-level cache.
const PANELS_PER_TASK: usize = 4;
/// Columns of a weight that are dequantised at once, and rows of them; those that follow are asked for meanwhile.
const COLS: usize = 128;
const COLS_ROWS: usize = 16;

/// What tiles multiply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Floats, rounded to bf16 where that is asked for.
    Floats { bf16: bool },
    /// Pairs of [16-bit integers](super::int16).
    Integers,
}

impl Form {
    pub fn of(precision: Precision) -> Self {
        match precision {
            Precision::F32 | Precision::Bf16 => Form::Floats { bf16: precision == Precision::Bf16 },
            Precision::Int16 => Form::Integers,
        }
    }

    /// Steps of a tile for `len` elements of the sum from the beginning of a block on.
    fn steps(self, len: usize) -> usize {
        match self {
            Form::Floats { .. } => len,
            Form::Integers => integers::steps(len),
        }
    }

    /// Elements of the sum in a step.
    const fn per_step(self) -> usize {
        match self {
            Form::Floats { .. } => 1,
            Form::Integers => 2,
        }
    }

    /// Rows of the left operand that all panels of a unit meet before the next rows do: panels and these rows lie in the second-level cache together, and
    /// what is summed group by group of integers lies in the first.
    const fn near_rows(self) -> usize {
        match self {
            Form::Floats { .. } => 96,
            Form::Integers => 48,
        }
    }

    /// The length of blocks that a sum of `k` is cut into: whole blocks of its weight's type, and whole groups. One with the longest blocks has rows of
    /// whole ones.
    fn equal_blocks(self, k: usize, longest: usize) -> usize {
        let unit = match self {
            Form::Integers => GROUP,
            Form::Floats { .. } if k.is_multiple_of(LONGEST_BLOCK) => LONGEST_BLOCK,
            Form::Floats { .. } => SHORTEST_BLOCK,
        };
        equal_parts(k, longest, unit)
    }
}

/// Scratch memory: the packed left operand, then for each thread panels and a row buffer.
pub(super) struct Sizes {
    form: Form,
    left: usize,
    /// Whether all of the left operand is packed at once, and stays for products that go on with it.
    whole: bool,
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
    pub fn new(kernel: &Kernel, form: Form, (m, n, k): (usize, usize, usize), rank: usize, side: Side) -> Self {
        let panel = 2 * kernel.lanes;
        let most_k = LEFT_STEPS * form.per_step();
        let left_k = form.equal_blocks(k, most_k);
        let rows_apart = match form {
            Form::Floats { .. } => left_k.min(TURNED).next_multiple_of(kernel.lanes) + kernel.lanes,
            Form::Integers => integers::APART,
        };
        let (least, unit) = match side {
            Side::Rows => (panel, panel),
            Side::Cols(ty) => (panel.max(ty.block_len()), COLS.max(ty.block_len())),
        };
        // Rows of a weight to be transposed; an adapter's too, whichever side the weight's outputs are.
        let turned = if matches!(side, Side::Rows) || rank > 0 { kernel.lanes * rows_apart } else { 0 };
        let rows = match form {
            Form::Floats { .. } => turned.max(COLS_ROWS * unit),
            Form::Integers => turned.max((COLS_ROWS + 1) * unit),
        };
        // Many columns that are filled at once have shorter panels.
        let longest = (kernel.k_block * form.per_step() * COLS / unit.max(COLS)).max(LONGEST_BLOCK);
        let k_block = form.equal_blocks(left_k, longest);
        let tail = form.steps(rank);
        let panels_apart = (form.steps(k_block) + tail) * panel + 16;
        // Room for the longest blocks: equal ones of a longer sum may be shorter, but a longer sum must not need less.
        let panels = unit.min(n).div_ceil(panel) * ((form.steps(k.min(longest)) + tail) * panel + 16);
        let left = (m.min(LEFT_ROWS) * (form.steps(k.min(most_k)) + tail)).next_multiple_of(16);
        let whole = form == Form::Integers && m <= LEFT_ROWS && k <= most_k;
        Self { form, left, whole, unit, least, panels, panels_apart, rows, rows_apart, left_k, k_block }
    }

    fn per_thread(&self) -> usize {
        (self.panels + self.rows).next_multiple_of(16)
    }

    /// What products with the same left operand go on with, from the beginning. (Floats are packed faster than they are fetched.)
    pub fn held(&self) -> usize {
        if self.form == Form::Integers { self.left + 16 } else { 0 }
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
    sizes: Sizes,
    rank: usize,
    k: usize,
}

/// What becomes of the packed left operand: products with one right operand.
#[derive(Clone, Copy)]
struct Sums<'a> {
    right: Right<'a>,
    /// What the last block's sum goes on over.
    factor: Option<Factor<'a>>,
    start: Start<'a>,
}

/// A block of the packed left operand: so many rows from `first` on, and elements `ks` of the sum, in blocks.
struct Packed<'a> {
    data: &'a [f32],
    first: usize,
    rows: usize,
    ks: Range<usize>,
}

pub(super) fn run(kernel: &Kernel, ctx: &mut Ctx, product: &mut Product) {
    if ctx.precision == Precision::F32 && thin::run(kernel.thin, ctx.pool, product) {
        return;
    }
    let (m, n, k) = (product.m, product.n, product.k);
    let mut tail = product.tail.take();
    let (rank, form) = (tail.as_ref().map_or(0, |tail| tail.factor.rank), Form::of(ctx.precision));
    let sizes = Sizes::new(kernel, form, (m, n, k), rank, product.right.side());
    let there = product.again && sizes.whole;
    let line = ctx.scratch.as_ptr().align_offset(64);
    let (packed, rest) = ctx.scratch[line..].split_at_mut(sizes.left);
    let per_thread = sizes.per_thread();
    let threads = Rows::new(&mut rest[..per_thread * ctx.pool.threads()], per_thread);
    let left_k = sizes.left_k;
    let block = Block { kernel, isa: ctx.isa, sizes, rank, k };
    let factor = tail.as_ref().map(|tail| tail.factor);
    let sums = Sums { right: product.right, factor, start: product.start };
    let out = Out::new(product.out.floats(), n);
    let row_block = m.div_ceil(m.div_ceil(LEFT_ROWS)).next_multiple_of(kernel.rows);
    for first in (0..m).step_by(row_block) {
        let rows = row_block.min(m - first);
        for k0 in (0..k).step_by(left_k) {
            let ks = k0..k.min(k0 + left_k);
            if !there {
                for part in block.parts(&ks) {
                    let place = block.place(rows, &ks, &part, packed);
                    block.pack(ctx.pool, product.left.from(first, part.start), rows, 0, part.len(), place);
                }
            }
            if let Some(Tail { low, .. }) = &mut tail {
                if let Low::Made { by, scale, into } = low {
                    let right = Right::Rows(Weight::f32(rank, k, by));
                    let start = if k0 == 0 { Start::Zero } else { Start::Output };
                    let (made, out) = (Sums { right, factor: None, start }, Out::new(into, rank));
                    let packed = Packed { data: packed, first, rows, ks: ks.clone() };
                    block.sum(ctx.pool, made, &packed, rank, &out, &threads);
                    if ks.end == k {
                        elementwise::scale(ctx.pool, &mut into[first * rank..(first + rows) * rank], *scale);
                    }
                }
                if ks.end == k {
                    let low = match low {
                        Low::Given(h) => h,
                        Low::Made { into, .. } => &**into,
                    };
                    let last = block.parts(&ks).last().expect("a sum has a block");
                    let low = Left { data: Values::F32(low), row: rank, k: 1 }.from(first, 0);
                    let place = block.place(rows, &ks, &last, packed);
                    block.pack(ctx.pool, low, rows, form.steps(last.len()), rank, place);
                }
            }
            let packed = Packed { data: packed, first, rows, ks };
            block.sum(ctx.pool, sums, &packed, n, &out, &threads);
        }
    }
}

impl Block<'_> {
    /// The blocks of the sum in `ks`.
    fn parts(&self, ks: &Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let (ks, k_block) = (ks.clone(), self.sizes.k_block);
        ks.clone().step_by(k_block).map(move |from| from..ks.end.min(from + k_block))
    }

    /// Steps that are packed for the block `ks` of the sum, and for what it goes on with.
    fn packed_steps(&self, ks: &Range<usize>) -> usize {
        let form = self.sizes.form;
        form.steps(ks.len()) + if ks.end == self.k { form.steps(self.rank) } else { 0 }
    }

    /// Where the block `part` of so many rows is packed, with room for what it goes on with.
    fn place<'p>(&self, rows: usize, ks: &Range<usize>, part: &Range<usize>, packed: &'p mut [f32]) -> &'p mut [f32] {
        let first = self.sizes.form.steps(part.start - ks.start);
        &mut packed[rows * first..][..rows * self.packed_steps(part)]
    }

    /// Packs `len` elements of so many rows of `left` to `place`, from the step `first` of each tile on.
    fn pack(&self, pool: &Pool, left: Left, rows: usize, first: usize, len: usize, place: &mut [f32]) {
        let (kernel, form) = (self.kernel, self.sizes.form);
        let tiles = Rows::new(place, kernel.rows * (place.len() / rows));
        pool.run(rows.div_ceil(kernel.rows), &|tile, _| {
            let (to, row) = (tiles.piece(tile).0, tile * kernel.rows);
            let rows = kernel.rows.min(rows - row);
            let to = &mut to[first * rows..(first + form.steps(len)) * rows];
            let left = left.from(row, 0);
            let (from, last) = (left.data.floats(), (rows - 1) * left.row + (len - 1) * left.k);
            assert!(last < from.len(), "element {last} of a left operand of {}", from.len());
            match form {
                Form::Floats { bf16 } => floats::pack(kernel, left, rows, len, to, bf16),
                Form::Integers => integers::pack(self, left, rows, len, to),
            }
        });
    }

    /// All sums of a packed block with `n` outputs.
    fn sum(&self, pool: &Pool, sums: Sums, packed: &Packed, n: usize, out: &Out, threads: &Rows) {
        let sizes = &self.sizes;
        let (least, unit, most) = match sums.right {
            Right::Rows(_) => (2 * self.kernel.lanes, 2 * self.kernel.lanes, PANELS_PER_TASK * 2 * self.kernel.lanes),
            Right::Cols(_) => (sizes.least, sizes.unit, sizes.unit),
        };
        let split = Split::new((packed.rows, n), (least, most), self.kernel.rows, pool.threads());
        let per_thread = sizes.per_thread();
        pool.run(split.tasks(), &|task, thread| {
            let (mine, cols) = split.task(task);
            // SAFETY: no two running tasks share `thread`, and so none shares this part.
            let scratch = unsafe { threads.range(thread * per_thread..(thread + 1) * per_thread) };
            for ks in self.parts(&packed.ks) {
                let steps = self.packed_steps(&ks);
                let at = packed.rows * sizes.form.steps(ks.start - packed.ks.start);
                let left = &packed.data[at..][mine.start * steps..mine.end * steps];
                let start = if ks.start == 0 { sums.start } else { Start::Output };
                let rows = packed.first + mine.start..packed.first + mine.end;
                for j in cols.clone().step_by(unit) {
                    let js = j..cols.end.min(j + unit);
                    self.unit(Sums { start, ..sums }, js, (left, steps), rows.clone(), ks.clone(), scratch, out);
                }
            }
        });
    }

    /// Adds the products of `ks` for outputs `js` to `rows` of the output. `left` has these rows, so many steps of each, whole tiles of rows but for the last.
    #[allow(clippy::too_many_arguments)]
    fn unit(
        &self,
        sums: Sums,
        js: Range<usize>,
        (left, left_steps): (&[f32], usize),
        rows: Range<usize>,
        ks: Range<usize>,
        scratch: &mut [f32],
        out: &Out,
    ) {
        let (panel_len, form) = (2 * self.kernel.lanes, self.sizes.form);
        let (panels, buffer) = scratch.split_at_mut(self.sizes.panels);
        let k = form.steps(ks.len());
        match sums.right {
            Right::Rows(w) => self.fill_from_rows(&w, js.clone(), ks.clone(), panels, buffer),
            Right::Cols(w) => self.fill_from_cols(&w, js.clone(), ks.clone(), 0, panels, buffer),
        }
        let factor = sums.factor.filter(|_| ks.end == self.k);
        if let Some(factor) = factor {
            self.fill_from_cols(&factor.weight(), js.clone(), 0..factor.rank, k, panels, buffer);
        }
        let tail = factor.map_or(0, |factor| form.steps(factor.rank));
        assert_eq!(left.len(), rows.len() * left_steps, "packed rows");
        for row in rows.clone().step_by(form.near_rows()) {
            let near = row..rows.end.min(row + form.near_rows());
            let left = &left[(near.start - rows.start) * left_steps..(near.end - rows.start) * left_steps];
            for (j, panel) in js.clone().step_by(panel_len).zip(panels.chunks(self.sizes.panels_apart)) {
                let n = panel_len.min(js.end - j);
                let panel = &panel[..(k + tail) * panel_len];
                let first = out.tile(near.clone(), j..j + n);
                let (init, init_row) = match sums.start {
                    Start::Zero => (std::ptr::null(), 0),
                    Start::Bias(bias) => (bias[j..j + n].as_ptr(), 0),
                    Start::Output => (first.cast_const(), out.n()),
                };
                let sweep = Sweep {
                    left: left.as_ptr(),
                    left_steps,
                    panel: panel.as_ptr(),
                    m: near.len(),
                    first: 0,
                    k,
                    tail,
                    n,
                    init,
                    init_row,
                    out: first,
                    out_row: out.n(),
                };
                let run = match form {
                    Form::Floats { .. } => self.kernel.floats,
                    Form::Integers => self.kernel.integers,
                };
                // SAFETY: the processor has the instructions (checked by the product); the left operand has all rows and steps, the panel has
                // as many rows of two vectors, and `first` begins `near.len()` rows of `n` elements that this task alone touches.
                unsafe { run(&sweep) };
            }
        }
    }

    /// Fills a panel with rows `js` of `w`, transposed. Lanes without an output are zero.
    fn fill_from_rows(&self, w: &Weight, js: Range<usize>, ks: Range<usize>, panel: &mut [f32], buffer: &mut [f32]) {
        let (lanes, form) = (self.kernel.lanes, self.sizes.form);
        assert!(panel.len() >= 2 * lanes * form.steps(ks.len()));
        for (v, j0) in js.clone().step_by(lanes).enumerate() {
            let rows = j0..js.end.min(j0 + lanes);
            let part = |k0: usize| k0..ks.end.min(k0 + TURNED);
            rows.clone().for_each(|row| w.fetch(row, ks.start, part(ks.start).end));
            for k0 in ks.clone().step_by(TURNED) {
                let (part, next) = (part(k0), part(ks.end.min(k0 + TURNED)));
                rows.clone().for_each(|row| w.fetch(row, next.start, next.end));
                let to = &mut panel[(form.steps(k0 - ks.start) * 2 + v) * lanes..];
                let rows = w.strip(rows.clone(), part);
                match form {
                    Form::Floats { bf16 } => floats::turn(self, rows, to, buffer, bf16),
                    Form::Integers => integers::turn(self, rows, to, buffer),
                }
            }
        }
    }

    /// Fills panels, from their step `first` on, with columns `js` of rows `ks` of `w`. Lanes without an output are zero.
    fn fill_from_cols(
        &self,
        w: &Weight,
        js: Range<usize>,
        ks: Range<usize>,
        first: usize,
        panels: &mut [f32],
        buffer: &mut [f32],
    ) {
        let (panel_len, form) = (2 * self.kernel.lanes, self.sizes.form);
        let apart = self.sizes.panels_apart;
        let count = js.len().div_ceil(panel_len);
        let steps = first + form.steps(ks.len());
        assert!(panels.len() >= (count - 1) * apart + steps * panel_len, "room for {count} panels");
        let width = count * panel_len;
        if js.len() < width {
            buffer[..COLS_ROWS * width].fill(0.0);
        }
        ks.clone().take(COLS_ROWS).for_each(|row| w.fetch(row, js.start, js.end));
        let to = &mut panels[first * panel_len..];
        match form {
            Form::Floats { bf16 } => floats::fill(self, w, js, ks, (to, count), buffer, bf16),
            Form::Integers => integers::fill(self, w, js, ks, (to, count), buffer),
        }
    }

    /// Columns `js` of `rows` of `w`, in rows of whole panels: where they lie, where these are floats, or dequantised to `buffer`. And the distance of the rows.
    fn read<'b>(
        &self,
        w: &'b Weight,
        js: Range<usize>,
        rows: Range<usize>,
        width: usize,
        buffer: &'b mut [f32],
    ) -> (&'b [f32], usize) {
        match w.values() {
            Some(Values::F32(all)) if js.len() == width => {
                (&all[rows.start * w.cols + js.start..(rows.end - 1) * w.cols + js.end], w.cols)
            }
            _ => {
                dequantize_rows(self.isa, w.strip(rows.clone(), js), buffer, width);
                (&buffer[..rows.len() * width], width)
            }
        }
    }
}
