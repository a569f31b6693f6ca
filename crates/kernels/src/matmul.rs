//! Matrix products with weights as they lie in their file: `y = x Wᵀ` forward, `gx = g W` backward, `c = aᵀ b` for the gradients
//! of adapters, and `W x` for generation.
//!
//! In f32 every output element is one chain `sum = fma(a_k, b_k, sum)` over ascending `k` that begins at its [`Start`], on every
//! instruction set and for every tiling, batching and number of threads: lanes and threads run over outputs, never over `k`.
//! In bf16 both inputs are rounded first; AMX then sums 32 products at a time, in ascending blocks, again whatever the tiling, and
//! `bfmmla` four, as two pairs. As 16-bit integers (`int16.rs`) they are summed exactly in groups, and groups are added in ascending order.
//! Nothing here allocates, and no weight is ever dequantised whole: each thread holds one panel of it.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod bfmmla;
pub(crate) mod int16;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod out;
mod product;
mod reference;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod split;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sweep;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod thin;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod tiled;
mod vector;

use product::{Factor, Left, Product, Right, Tail};
pub use vector::matvec;

use std::ops::Range;

use half::bf16;

use crate::blocks::Packed;
use crate::dequant::{self, Source, Strip};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::fetch;
use crate::rows::Rows;
use crate::{BlockType, Isa, Pool, Values, ValuesMut};

/// A matrix `[rows, cols]`, row-major, stored in blocks along `cols`, or as another runtime packed it: mapped files for frozen weights, `F32` for
/// adapters.
#[derive(Clone, Copy)]
pub struct Weight<'a> {
    /// How the elements are stored; for a packed matrix what it counts as, see [`counted_as`], and F32 for all values.
    pub ty: BlockType,
    /// Outputs of the linear map.
    pub rows: usize,
    /// Inputs of the linear map.
    pub cols: usize,
    data: Data<'a>,
}

#[derive(Clone, Copy)]
enum Data<'a> {
    Blocks(&'a [u8]),
    /// A packed matrix, from this element on.
    Packed(Packed<&'a [u8]>, usize),
    /// Values in bf16.
    Halves(&'a [bf16]),
}

/// The type that a packed matrix counts as where scratch memory and mapped pages are counted: of the types whose blocks divide its rows, the
/// smallest that is no smaller than `bytes`.
pub fn counted_as(rows: usize, cols: usize, bytes: usize) -> BlockType {
    let types = [BlockType::Q4_0, BlockType::Q4_1, BlockType::Q5_1, BlockType::Q8_0, BlockType::BF16];
    let enough =
        |ty: &BlockType| ty.row_bytes(cols).and_then(|row| row.checked_mul(rows)).is_some_and(|all| all >= bytes);
    types.into_iter().find(enough).unwrap_or(BlockType::F32)
}

impl<'a> Weight<'a> {
    /// A matrix over `data`.
    ///
    /// # Panics
    /// When a row is no whole number of blocks or `data` has not the length that the shape asks for.
    pub fn new(ty: BlockType, rows: usize, cols: usize, data: &'a [u8]) -> Self {
        let row = ty.row_bytes(cols);
        let row = row.unwrap_or_else(|| panic!("a row of {cols} elements is no whole number of {} blocks", ty.name()));
        let bytes = rows.checked_mul(row);
        assert_eq!(Some(data.len()), bytes, "bytes of a {} matrix of {rows} rows and {cols} columns", ty.name());
        Self { ty, rows, cols, data: Data::Blocks(data) }
    }

    /// A matrix that another runtime packed, which counts as `ty`.
    pub fn packed(ty: BlockType, rows: usize, cols: usize, packed: Packed<&'a [u8]>) -> Self {
        Self { ty, rows, cols, data: Data::Packed(packed, 0) }
    }

    /// A matrix of plain floats.
    ///
    /// # Panics
    /// When `data` has not `rows` times `cols` elements.
    pub fn f32(rows: usize, cols: usize, data: &'a [f32]) -> Self {
        Self::new(BlockType::F32, rows, cols, bytemuck::cast_slice(data))
    }

    /// A matrix of values.
    ///
    /// # Panics
    /// As [`Weight::f32`].
    pub fn of(rows: usize, cols: usize, values: Values<'a>) -> Self {
        match values {
            Values::F32(data) => Self::f32(rows, cols, data),
            Values::Bf16(data) => {
                assert_eq!(data.len(), rows * cols, "values of {rows} rows and {cols} columns");
                Self { ty: BlockType::F32, rows, cols, data: Data::Halves(data) }
            }
        }
    }

    /// Some of the rows, as a matrix of their own.
    pub fn part(&self, rows: Range<usize>) -> Weight<'a> {
        assert!(rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        match self.data {
            Data::Blocks(data) => {
                let row = data.len() / self.rows.max(1);
                Self::new(self.ty, rows.len(), self.cols, &data[rows.start * row..rows.end * row])
            }
            Data::Packed(packed, first) => {
                let data = Data::Packed(packed, first + rows.start * self.cols);
                Self { ty: self.ty, rows: rows.len(), cols: self.cols, data }
            }
            Data::Halves(data) => {
                let part = &data[rows.start * self.cols..rows.end * self.cols];
                Self::of(rows.len(), self.cols, Values::Bf16(part))
            }
        }
    }

    /// Writes columns `cols` of `row`, which begin and end at block borders, to `to`.
    ///
    /// # Panics
    /// When there are no such columns, or `to` has another length.
    pub fn read(&self, isa: Isa, row: usize, cols: Range<usize>, to: &mut [f32]) {
        assert_eq!(cols.len(), to.len(), "room for columns {cols:?}");
        dequant::dequantize(isa, self.source(row, &cols), to);
    }

    /// Columns `cols` of several rows, whole blocks.
    fn strip(&self, rows: Range<usize>, cols: Range<usize>) -> Strip<'_> {
        let (ends, len) = (rows.end - 1, cols.len());
        let (first, row) = match &self.data {
            Data::Blocks(data) => {
                let bytes = self.blocks(rows.start, &cols).start..self.blocks(ends, &cols).end;
                (Source::Blocks(self.ty, &data[bytes]), self.cols / self.ty.block_len() * self.ty.block_bytes())
            }
            Data::Packed(packed, first) => {
                (Source::Packed(packed, first + rows.start * self.cols + cols.start), self.cols)
            }
            Data::Halves(data) => {
                let all = &data[rows.start * self.cols + cols.start..ends * self.cols + cols.end];
                (Source::Blocks(BlockType::BF16, bytemuck::cast_slice(all)), 2 * self.cols)
            }
        };
        Strip { first, apart: row, rows: rows.len(), len }
    }

    /// Writes whole rows to `to`, one after another.
    ///
    /// # Panics
    /// When there are no such rows, or `to` has another length.
    pub fn read_rows(&self, isa: Isa, pool: &Pool, rows: Range<usize>, to: &mut [f32]) {
        assert!(to.len() == rows.len() * self.cols && rows.end <= self.rows, "room for rows {rows:?}");
        let to = Rows::new(to, self.cols);
        pool.run(to.pieces(), &|task, _| self.read(isa, rows.start + task, 0..self.cols, to.piece(task).0));
    }

    /// [`Weight::read`] rounded to bf16.
    ///
    /// # Safety
    /// The processor has what [`Isa::Amx`] or [`Isa::NeonBf16`] stands for.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    unsafe fn read_bf16(&self, row: usize, cols: Range<usize>, to: &mut [u16]) {
        // SAFETY: the caller's promise.
        unsafe { dequant::dequantize_bf16(self.source(row, &cols), to) }
    }

    /// Whole rows, one after another.
    fn rows(&self, rows: Range<usize>) -> Source<'_> {
        let all = 0..rows.len() * self.cols;
        match &self.data {
            Data::Blocks(data) => Source::Blocks(self.ty, &data[self.blocks(rows.start, &all)]),
            Data::Packed(packed, first) => Source::Packed(packed, first + rows.start * self.cols),
            Data::Halves(data) => Source::Blocks(BlockType::BF16, halves(data, rows.start * self.cols, &all)),
        }
    }

    #[inline(always)]
    fn source(&self, row: usize, cols: &Range<usize>) -> Source<'_> {
        match &self.data {
            Data::Blocks(data) => Source::Blocks(self.ty, &data[self.blocks(row, cols)]),
            Data::Packed(packed, first) => Source::Packed(packed, first + row * self.cols + cols.start),
            Data::Halves(data) => Source::Blocks(BlockType::BF16, halves(data, row * self.cols, cols)),
        }
    }

    /// Where the blocks of columns `cols` of `row` lie.
    #[inline(always)]
    fn blocks(&self, row: usize, cols: &Range<usize>) -> Range<usize> {
        let (len, bytes) = (self.ty.block_len(), self.ty.block_bytes());
        let at = row * (self.cols / len);
        (at + cols.start / len) * bytes..(at + cols.end / len) * bytes
    }

    /// All elements, where they are stored as values are.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn values(&self) -> Option<Values<'a>> {
        match self.data {
            Data::Blocks(data) if self.ty == BlockType::F32 => bytemuck::try_cast_slice(data).ok().map(Values::F32),
            Data::Halves(data) => Some(Values::Bf16(data)),
            _ => None,
        }
    }

    /// The blocks of columns `cols` of `row`, if there is such a row and it has blocks.
    #[cfg(target_arch = "x86_64")]
    fn blocks_of(&self, row: usize, cols: &Range<usize>) -> Option<&'a [u8]> {
        self.bytes().filter(|_| row < self.rows).map(|data| &data[self.blocks(row, cols)])
    }

    /// Bytes of a row of blocks.
    #[cfg(target_arch = "x86_64")]
    fn stride(&self) -> usize {
        self.cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// All bytes of a matrix of blocks.
    #[cfg(target_arch = "x86_64")]
    fn bytes(&self) -> Option<&'a [u8]> {
        match self.data {
            Data::Blocks(data) => Some(data),
            Data::Packed(..) | Data::Halves(_) => None,
        }
    }

    /// Asks for the blocks of columns `from..to` of `row`, if there is such a row, because they are read soon. Parts of rows lie too
    /// far apart for a processor to guess the next one.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn fetch(&self, row: usize, from: usize, to: usize) {
        if row < self.rows {
            let bytes = match &self.data {
                Data::Blocks(data) => &data[self.blocks(row, &(from..to))],
                Data::Packed(packed, first) => packed.bytes(first + row * self.cols + from, to - from),
                Data::Halves(data) => halves(data, row * self.cols, &(from..to)),
            };
            for line in bytes.chunks(64) {
                fetch::line(line.as_ptr());
            }
        }
    }
}

/// Columns `cols` of the row that begins at `row`, as bytes.
#[inline(always)]
fn halves<'a>(data: &'a [bf16], row: usize, cols: &Range<usize>) -> &'a [u8] {
    bytemuck::cast_slice(&data[row + cols.start..row + cols.end])
}

/// What the sums of a product begin with.
#[derive(Clone, Copy)]
pub enum Start<'a> {
    /// Nothing.
    Zero,
    /// One number for each output column, the same for all rows.
    Bias(&'a [f32]),
    /// What the output holds: the sum goes on.
    Output,
}

/// What the inputs of a product are rounded to; sums are in f32, but for exact ones of integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Not rounded.
    F32,
    /// bfloat16, to nearest, ties to even.
    Bf16,
    /// 16-bit integers, in groups of up to 256 elements of a sum, each with a scale of its own. Sums over rows of values, the gradients of adapters, are
    /// in f32.
    Int16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Int16];

    /// The name used in options and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::Int16 => "int16",
        }
    }

    /// Whether every instruction set gives the same bits. (In bf16 each sums in its own order.)
    pub const fn same_everywhere(self) -> bool {
        !matches!(self, Precision::Bf16)
    }

    /// What [`tn`] multiplies in: rows of values differ in size, and pieces of them may be of any length.
    const fn of_rows(self) -> Self {
        match self {
            Precision::Int16 => Precision::F32,
            other => other,
        }
    }
}

/// What an adapter adds to a product: `h factor`, with `h: [n, rank]` and `factor: [rank, outputs]`. The sum goes on over the rank.
pub struct LowRank<'a> {
    /// The low-rank values, or how to get them.
    pub low: Low<'a>,
    /// The factor.
    pub factor: &'a [f32],
    /// Its rows.
    pub rank: usize,
}

/// Low-rank values `h: [n, rank]`.
pub enum Low<'a> {
    /// They are there.
    Given(&'a [f32]),
    /// They are `scale` times the product's own input with `by`, `[rank, inputs]`, transposed; made first, `into` here.
    Made {
        /// The other factor.
        by: &'a [f32],
        /// What they are multiplied with.
        scale: f32,
        /// Where they go.
        into: &'a mut [f32],
    },
}

impl<'a> LowRank<'a> {
    fn tail(self, n: usize, inputs: usize, outputs: usize) -> Tail<'a> {
        let LowRank { low, factor, rank } = self;
        let len = match &low {
            Low::Given(h) => h.len(),
            Low::Made { by, into, .. } => {
                assert_eq!(by.len(), rank * inputs, "length of a factor of rank {rank} for {inputs} inputs");
                into.len()
            }
        };
        assert_eq!(len, n * rank, "length of h for n = {n} and rank {rank}");
        assert_eq!(factor.len(), rank * outputs, "length of a factor of rank {rank} for {outputs} outputs");
        Tail { low, factor: Factor { data: factor, rank, cols: outputs } }
    }
}

/// What a product runs on.
pub struct Ctx<'a> {
    /// The threads that share the outputs.
    pub pool: &'a Pool,
    /// The instruction set; one that this processor has.
    pub isa: Isa,
    /// What inputs are rounded to.
    pub precision: Precision,
    /// Memory to work in, of the length that the product's `_scratch` function gives (more does not matter).
    pub scratch: &'a mut [f32],
}

/// `y = start + x Wᵀ + h factor`, with `x: [n, cols]` and `y: [n, rows]`.
///
/// # Panics
/// When a slice or the scratch memory has another length than the shapes ask for.
pub fn nt(ctx: &mut Ctx, w: Weight, x: &[f32], n: usize, y: &mut [f32], start: Start, low_rank: Option<LowRank>) {
    nt_values(ctx, w, (Values::F32(x), n), ValuesMut::F32(y), start, low_rank, false);
}

/// Whether products read and write values in bf16.
pub fn takes_bf16(isa: Isa, precision: Precision) -> bool {
    isa == Isa::Amx && precision == Precision::Bf16
}

/// [`nt`] with values of either type.
///
/// Where it goes on after another one (`again`), that one had the same `x`, the same rank and low-rank values that were made or given as here, and nobody has
/// touched its scratch memory since, or at most what is behind [`nt_held`]: what was made of `x` there is not made again, on instruction sets that make something of it.
///
/// # Panics
/// As [`nt`], and where a type of values is not taken: see [`takes_bf16`].
pub fn nt_values(
    ctx: &mut Ctx,
    w: Weight,
    (x, n): (Values, usize),
    y: ValuesMut,
    start: Start,
    low_rank: Option<LowRank>,
    again: bool,
) {
    assert_eq!(x.len(), n * w.cols, "length of x for n = {n} and {} columns", w.cols);
    assert_eq!(y.len(), n * w.rows, "length of y for n = {n} and {} rows", w.rows);
    let left = Left { data: x, row: w.cols, k: 1 };
    let tail = low_rank.map(|low_rank| low_rank.tail(n, w.cols, w.rows));
    Product { left, right: Right::Rows(w), m: n, n: w.rows, k: w.cols, out: y, start, tail, again }.run(ctx);
}

/// `gx = start + g W + h factor`, with `g: [n, rows]` and `gx: [n, cols]`.
///
/// # Panics
/// As [`nt`].
pub fn nn(ctx: &mut Ctx, w: Weight, g: &[f32], n: usize, gx: &mut [f32], start: Start, low_rank: Option<LowRank>) {
    nn_values(ctx, w, (Values::F32(g), n), ValuesMut::F32(gx), start, low_rank);
}

/// [`nn`] with values of either type.
///
/// # Panics
/// As [`nt_values`].
pub fn nn_values(
    ctx: &mut Ctx,
    w: Weight,
    (g, n): (Values, usize),
    gx: ValuesMut,
    start: Start,
    low_rank: Option<LowRank>,
) {
    assert_eq!(g.len(), n * w.rows, "length of g for n = {n} and {} rows", w.rows);
    assert_eq!(gx.len(), n * w.cols, "length of gx for n = {n} and {} columns", w.cols);
    let left = Left { data: g, row: w.rows, k: 1 };
    let tail = low_rank.map(|low_rank| low_rank.tail(n, w.rows, w.cols));
    Product { left, right: Right::Cols(w), m: n, n: w.cols, k: w.rows, out: gx, start, tail, again: false }.run(ctx);
}

/// `c = start + aᵀ b`, with `a: [n, p]`, `b: [n, q]` and `c: [p, q]`.
///
/// # Panics
/// As [`nt`].
#[allow(clippy::too_many_arguments)]
pub fn tn(ctx: &mut Ctx, a: &[f32], b: &[f32], n: usize, p: usize, q: usize, c: &mut [f32], start: Start) {
    tn_values(ctx, a, Values::F32(b), n, p, q, c, start);
}

/// [`tn`] with `b` of either type.
///
/// # Panics
/// As [`nt`].
#[allow(clippy::too_many_arguments)]
pub fn tn_values(ctx: &mut Ctx, a: &[f32], b: Values, n: usize, p: usize, q: usize, c: &mut [f32], start: Start) {
    assert_eq!(a.len(), n * p, "length of a for n = {n} and p = {p}");
    tn_of(ctx, (a, p), 0..p, b, n, q, c, start);
}

/// Rows `part` of [`tn`]'s product: columns `part` of `a`, whose rows are `p` long.
///
/// # Panics
/// As [`nt`].
#[allow(clippy::too_many_arguments)]
pub fn tn_part(
    ctx: &mut Ctx,
    (a, p): (&[f32], usize),
    part: Range<usize>,
    b: &[f32],
    n: usize,
    q: usize,
    c: &mut [f32],
    start: Start,
) {
    tn_of(ctx, (a, p), part, Values::F32(b), n, q, c, start);
}

#[allow(clippy::too_many_arguments)]
fn tn_of(
    ctx: &mut Ctx,
    (a, p): (&[f32], usize),
    part: Range<usize>,
    b: Values,
    n: usize,
    q: usize,
    c: &mut [f32],
    start: Start,
) {
    assert!(a.len() == n * p && part.end <= p, "columns {part:?} of a for n = {n} and p = {p}");
    assert_eq!(b.len(), n * q, "length of b for n = {n} and q = {q}");
    assert_eq!(c.len(), part.len() * q, "length of c for {part:?} and q = {q}");
    let left = Left { data: Values::F32(&a[part.start.min(a.len())..]), row: 1, k: p };
    let (m, out) = (part.len(), ValuesMut::F32(c));
    let right = Right::Cols(Weight::of(n, q, b));
    let mut ctx = Ctx { precision: ctx.precision.of_rows(), scratch: &mut *ctx.scratch, ..*ctx };
    Product { left, right, m, n: q, k: n, out, start, tail: None, again: false }.run(&mut ctx);
}

/// The shape of a product with a weight, for its scratch memory.
#[derive(Clone, Copy)]
pub struct Shape {
    /// How the weight is stored.
    pub ty: BlockType,
    /// The weight's rows.
    pub rows: usize,
    /// The weight's columns.
    pub cols: usize,
    /// Rows of the other operand.
    pub n: usize,
    /// Rank of what an adapter adds, or 0.
    pub rank: usize,
}

/// Scratch memory of [`nt`], in f32 elements; it never shrinks when `n` grows.
pub fn nt_scratch(shape: Shape, threads: usize, isa: Isa, precision: Precision) -> usize {
    let Shape { rows, cols, n, rank, .. } = shape;
    product::scratch(isa, precision, threads, (n, rows, cols), rank, product::Side::Rows)
}

/// How much of [`nt`]'s scratch memory, from its beginning, must stay as it is for a product that goes on with the same input; it never
/// shrinks when `n` grows.
pub fn nt_held(shape: Shape, isa: Isa, precision: Precision) -> usize {
    let Shape { rows, cols, n, rank, .. } = shape;
    product::held(isa, precision, (n, rows, cols), rank, product::Side::Rows)
}

/// Scratch memory of [`nn`], in f32 elements; it never shrinks when `n` grows.
pub fn nn_scratch(shape: Shape, threads: usize, isa: Isa, precision: Precision) -> usize {
    let Shape { ty, rows, cols, n, rank } = shape;
    product::scratch(isa, precision, threads, (n, cols, rows), rank, product::Side::Cols(ty))
}

/// Scratch memory of [`tn`], in f32 elements; it never shrinks when `n` grows.
pub fn tn_scratch(n: usize, p: usize, q: usize, threads: usize, isa: Isa, precision: Precision) -> usize {
    product::scratch(isa, precision.of_rows(), threads, (p, q, n), 0, product::Side::Cols(BlockType::F32))
}
