//! The one shape behind the three products, `out[m, n] = start + left[m, k] right[k, n]`, and the choice of the code that runs it.

use super::{Ctx, Precision, Start, Weight};
use crate::{BlockType, Isa};

/// The left operand: element `(i, k)` lies at `i row + k k`.
#[derive(Clone, Copy)]
pub(super) struct Left<'a> {
    pub data: &'a [f32],
    pub row: usize,
    pub k: usize,
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
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
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

/// What a sum goes on with: `left[m, rank] factor[rank, n]`.
#[derive(Clone, Copy)]
pub(super) struct Tail<'a> {
    pub left: Left<'a>,
    pub factor: Factor<'a>,
}

/// A product to run. All slices have the lengths that the shapes ask for.
pub(super) struct Product<'a> {
    pub left: Left<'a>,
    pub right: Right<'a>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub out: &'a mut [f32],
    pub start: Start<'a>,
    pub tail: Option<Tail<'a>>,
}

impl Product<'_> {
    pub fn run(mut self, ctx: &mut Ctx) {
        if let Start::Bias(bias) = self.start {
            assert_eq!(bias.len(), self.n, "length of the bias for {} outputs", self.n);
        }
        let (shape, rank) = ((self.m, self.n, self.k), self.tail.map_or(0, |tail| tail.factor.rank));
        let wanted = scratch(ctx.isa, ctx.precision, ctx.pool.threads(), shape, rank, self.right.side());
        assert!(ctx.scratch.len() >= wanted, "scratch has {} elements of {wanted}", ctx.scratch.len());
        assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.k == 0 {
            self.begin();
            return self.run_tail(ctx);
        }
        match (ctx.isa, ctx.precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, Precision::Bf16) => return super::amx::run(ctx, &mut self),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx | Isa::Avx512, _) => super::tiled::run(&super::avx512::KERNEL, ctx, &mut self),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => super::tiled::run(&super::avx2::KERNEL, ctx, &mut self),
            _ => super::reference::run(ctx, &mut self),
        }
        self.run_tail(ctx);
    }

    /// The tail as a product of its own, where it is not worked into the sum: the same chain, with the output written in between.
    fn run_tail(&mut self, ctx: &mut Ctx) {
        let Some(Tail { left, factor }) = self.tail.take() else { return };
        let (right, k) = (Right::Cols(factor.weight()), factor.rank);
        let out = &mut *self.out;
        Product { left, right, m: self.m, n: self.n, k, out, start: Start::Output, tail: None }.run(ctx);
    }

    /// Writes what the sums begin with to the output.
    pub fn begin(&mut self) {
        for row in self.out.chunks_exact_mut(self.n) {
            match self.start {
                Start::Zero => row.fill(0.0),
                Start::Bias(bias) => row.copy_from_slice(bias),
                Start::Output => {}
            }
        }
    }
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
    let plain = |k, side| match (isa, precision) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx, Precision::Bf16) => super::amx::Sizes::new((m, n, k), rank, side).total(threads),
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx | Isa::Avx512, _) => {
            super::tiled::Sizes::new(&super::avx512::KERNEL, precision, (m, n, k), side).total(threads)
        }
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, _) => super::tiled::Sizes::new(&super::avx2::KERNEL, precision, (m, n, k), side).total(threads),
        _ => {
            let _ = (m, n, k, threads, side);
            0
        }
    };
    let main = plain(k, side);
    if rank == 0 { main } else { main.max(plain(rank, Side::Cols(BlockType::F32))) }
}

/// `x` rounded to bfloat16, to nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    f32::from_bits(if x.is_nan() { (bits | 0x0040_0000) & 0xffff_0000 } else { rounded })
}
