//! The one shape behind the three products, `out[m, n] = start + left[m, k] right[k, n]`, and the choice of the code that runs it.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use super::tiled::{Form, Kernel};
use super::{Ctx, Low, Precision, Start, Weight};
use crate::{BlockType, Isa, Values, ValuesMut, elementwise};

/// The left operand: element `(i, k)` lies at `i row + k k`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: Values<'a>,
    pub row: usize,
    pub k: usize,
}

impl Left<'_> {
    /// From row `i` and element `k` of the sum on.
    pub fn from(self, i: usize, k: usize) -> Self {
        Self { data: self.data.from(i * self.row + k * self.k), ..self }
    }
}

/// The right operand, by which side of a weight its outputs are.
#[derive(Clone, Copy)]
pub(super) enum Right<'a> {
    /// Outputs are the weight's rows, and `k` runs along a row.
    Rows(Weight<'a>),
    /// Outputs are the weight's columns, and `k` runs over its rows.
    Cols(Weight<'a>),
}

/// What scratch memory depends on in a right operand. (The reference needs none and so reads none of it.)
#[derive(Clone, Copy)]
#[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
pub(super) enum Side {
    Rows,
    Cols(BlockType),
}

impl Right<'_> {
    pub fn side(&self) -> Side {
        match self {
            Right::Rows(_) => Side::Rows,
            Right::Cols(w) => Side::Cols(w.ty),
        }
    }
}

/// An adapter's factor `[rank, cols]` in f32; the sum runs over its rows.
#[derive(Clone, Copy)]
pub(super) struct Factor<'a> {
    pub data: &'a [f32],
    pub rank: usize,
    pub cols: usize,
}

impl<'a> Factor<'a> {
    pub fn weight(&self) -> Weight<'a> {
        Weight::f32(self.rank, self.cols, self.data)
    }
}

/// What a sum goes on with: `low[m, rank] factor[rank, n]`.
pub(super) struct Tail<'a> {
    pub low: Low<'a>,
    pub factor: Factor<'a>,
}

/// A product to run. All slices have the lengths that the shapes ask for.
pub(super) struct Product<'a> {
    pub left: Left<'a>,
    pub right: Right<'a>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub out: ValuesMut<'a>,
    pub start: Start<'a>,
    pub tail: Option<Tail<'a>>,
    /// Whether the scratch memory is as a product with the same left operand and rank left it. (The reference makes nothing of it.)
    #[cfg_attr(not(any(target_arch = "x86_64", target_arch = "aarch64")), allow(dead_code))]
    pub again: bool,
}

impl<'a> Product<'a> {
    pub fn run(mut self, ctx: &mut Ctx) {
        if let Start::Bias(bias) = self.start {
            assert_eq!(bias.len(), self.n, "length of the bias for {} outputs", self.n);
        }
        let (shape, rank) = ((self.m, self.n, self.k), self.tail.as_ref().map_or(0, |tail| tail.factor.rank));
        let wanted = scratch(ctx.isa, ctx.precision, ctx.pool.threads(), shape, rank, self.right.side());
        assert!(ctx.scratch.len() >= wanted, "scratch has {} elements of {wanted}", ctx.scratch.len());
        assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
        if self.m == 0 || self.n == 0 {
            return;
        }
        match (ctx.isa, ctx.precision) {
            _ if self.k == 0 => self.begin(),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, Precision::Bf16) => return super::amx::run(ctx, &mut self),
            #[cfg(target_arch = "aarch64")]
            (Isa::NeonBf16, Precision::Bf16) => super::bfmmla::run(ctx, &mut self),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            (isa, _) if let Some(kernel) = kernel(isa) => return super::tiled::run(kernel, ctx, &mut self),
            _ => super::reference::run(ctx, &mut self),
        }
        self.run_tail(ctx);
    }

    /// The tail as products of its own, where it is not worked into the sum: the same chain, with the output written in between.
    fn run_tail(&mut self, ctx: &mut Ctx) {
        let Some((left, factor)) = self.take_tail(ctx) else { return };
        let (m, n, k, out) = (self.m, self.n, factor.rank, ValuesMut::F32(self.out.floats()));
        let right = Right::Cols(factor.weight());
        Product { left, right, m, n, k, out, start: Start::Output, tail: None, again: false }.run(ctx);
    }

    /// What the sum goes on with, if anything. Low-rank values that are to be made are made, by a product of their own.
    pub fn take_tail(&mut self, ctx: &mut Ctx) -> Option<(Left<'a>, Factor<'a>)> {
        let Tail { low, factor } = self.tail.take()?;
        let rank = factor.rank;
        let h = match low {
            Low::Given(h) => h,
            Low::Made { by, scale, into } => {
                let right = Right::Rows(Weight::f32(rank, self.k, by));
                let (left, m, k, out) = (self.left, self.m, self.k, ValuesMut::F32(into));
                Product { left, right, m, n: rank, k, out, start: Start::Zero, tail: None, again: false }.run(ctx);
                elementwise::scale(ctx.pool, into, scale);
                into
            }
        };
        Some((Left { data: Values::F32(h), row: rank, k: 1 }, factor))
    }

    /// Writes what the sums begin with to the output.
    pub fn begin(&mut self) {
        for row in self.out.floats().chunks_exact_mut(self.n) {
            match self.start {
                Start::Zero => row.fill(0.0),
                Start::Bias(bias) => row.copy_from_slice(bias),
                Start::Output => {}
            }
        }
    }
}

/// What tiles are run with, where there are any.
#[cfg(target_arch = "x86_64")]
fn kernel(isa: Isa) -> Option<&'static Kernel> {
    use super::{avx2, avx512};
    match isa {
        Isa::Avx512Vnni => Some(&avx512::VNNI),
        Isa::Amx | Isa::Avx512 => Some(&avx512::KERNEL),
        Isa::Avx2Vnni if is_x86_feature_detected!("avxvnni") => Some(&avx2::VNNI),
        Isa::Avx2Vnni => Some(&avx2::VNNI_OF_512),
        Isa::Avx2 => Some(&avx2::KERNEL),
        _ => None,
    }
}

/// What tiles are run with, where there are any.
#[cfg(target_arch = "aarch64")]
fn kernel(isa: Isa) -> Option<&'static Kernel> {
    matches!(isa, Isa::Neon | Isa::NeonBf16).then_some(&super::neon::KERNEL)
}

/// Scratch memory for a product of shape `(m, n, k)` with a tail of `rank`, or none (0).
pub(super) fn scratch(
    isa: Isa,
    precision: Precision,
    threads: usize,
    (m, n, k): (usize, usize, usize),
    rank: usize,
    side: Side,
) -> usize {
    let plain = |n, k, rank, side| match (isa, precision) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx, Precision::Bf16) => super::amx::Sizes::new((m, n, k), rank, side).total(threads),
        #[cfg(target_arch = "aarch64")]
        (Isa::NeonBf16, Precision::Bf16) => super::bfmmla::Sizes::new((m, n, k), side).total(threads),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        (isa, _) if let Some(kernel) = kernel(isa) => {
            super::tiled::Sizes::new(kernel, Form::of(precision), (m, n, k), rank, side).total(threads)
        }
        _ => {
            let _ = (m, n, k, rank, threads, side);
            0
        }
    };
    let main = plain(n, k, rank, side);
    match rank {
        0 => main,
        _ => main.max(plain(rank, k, 0, Side::Rows)).max(plain(n, rank, 0, Side::Cols(BlockType::F32))),
    }
}

/// How much of that, from its beginning, a product goes on with [again](Product::again).
pub(super) fn held(isa: Isa, precision: Precision, shape: (usize, usize, usize), rank: usize, side: Side) -> usize {
    match (isa, precision) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx, Precision::Bf16) => super::amx::Sizes::new(shape, rank, side).held(),
        #[cfg(target_arch = "aarch64")]
        (Isa::NeonBf16, Precision::Bf16) => 0,
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        (isa, _) if let Some(kernel) = kernel(isa) => {
            super::tiled::Sizes::new(kernel, Form::of(precision), shape, rank, side).held()
        }
        _ => {
            let _ = (shape, rank, side);
            0
        }
    }
}
