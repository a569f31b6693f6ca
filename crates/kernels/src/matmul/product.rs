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

/// A product to run. All slices have the lengths that the shapes ask for.
pub(super) struct Product<'a> {
    pub left: Left<'a>,
    pub right: Right<'a>,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub out: &'a mut [f32],
    pub start: Start<'a>,
}

impl Product<'_> {
    pub fn run(mut self, ctx: &mut Ctx) {
        if let Start::Bias(bias) = self.start {
            assert_eq!(bias.len(), self.n, "length of the bias for {} outputs", self.n);
        }
        let wanted = scratch(ctx.isa, ctx.precision, ctx.pool.threads(), (self.m, self.n, self.k), self.right.side());
        assert!(ctx.scratch.len() >= wanted, "scratch has {} elements of {wanted}", ctx.scratch.len());
        assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.k == 0 {
            return self.begin();
        }
        match (ctx.isa, ctx.precision) {
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx, Precision::Bf16) => super::amx::run(ctx, &mut self),
            #[cfg(target_arch = "x86_64")]
            (Isa::Amx | Isa::Avx512, _) => super::tiled::run(&super::avx512::KERNEL, ctx, &mut self),
            #[cfg(target_arch = "x86_64")]
            (Isa::Avx2, _) => super::tiled::run(&super::avx2::KERNEL, ctx, &mut self),
            #[cfg(target_arch = "aarch64")]
            (Isa::NeonBf16, Precision::Bf16) => super::bfmmla::run(ctx, &mut self),
            #[cfg(target_arch = "aarch64")]
            (Isa::NeonBf16 | Isa::Neon, _) => super::tiled::run(&super::neon::KERNEL, ctx, &mut self),
            _ => super::reference::run(ctx, &mut self),
        }
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

/// Scratch memory for a product of shape `(m, n, k)`.
pub(super) fn scratch(
    isa: Isa,
    precision: Precision,
    threads: usize,
    (m, n, k): (usize, usize, usize),
    side: Side,
) -> usize {
    match (isa, precision) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx, Precision::Bf16) => super::amx::Sizes::new((m, n, k), side).total(threads),
        #[cfg(target_arch = "x86_64")]
        (Isa::Amx | Isa::Avx512, _) => {
            super::tiled::Sizes::new(&super::avx512::KERNEL, precision, (m, n, k), side).total(threads)
        }
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx2, _) => super::tiled::Sizes::new(&super::avx2::KERNEL, precision, (m, n, k), side).total(threads),
        #[cfg(target_arch = "aarch64")]
        (Isa::NeonBf16, Precision::Bf16) => super::bfmmla::Sizes::new((m, n, k), side).total(threads),
        #[cfg(target_arch = "aarch64")]
        (Isa::NeonBf16 | Isa::Neon, _) => {
            super::tiled::Sizes::new(&super::neon::KERNEL, precision, (m, n, k), side).total(threads)
        }
        _ => {
            let _ = (m, n, k, threads, side);
            0
        }
    }
}

/// `x` rounded to bfloat16, to nearest, ties to even; NaN stays NaN.
#[inline(always)]
pub(super) fn round_bf16(x: f32) -> f32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    f32::from_bits(if x.is_nan() { (bits | 0x0040_0000) & 0xffff_0000 } else { rounded })
}
