//! The products in plain Rust: what every faster form is compared with, and what a processor without one runs.
//!
//! It keeps the order of the sums and nothing else in mind.

use std::ops::Range;

use super::int16::{self, Extent, GROUP};
use super::product::{Product, Right};
use super::{Ctx, Precision, Weight};
use crate::Isa;
use crate::dequant::{MOST_RUNS, RUN, add_bounds, bounded, extents};
use crate::rows::Rows;
use crate::values::round_bf16;

/// Weights that are dequantised at once: the longest block.
const PIECE: usize = 256;
/// Outputs that a row's integers meet.
const OUTPUTS: usize = 16;

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    product.begin();
    if ctx.precision == Precision::Int16 {
        return integers(ctx, product);
    }
    let (m, n, k, left) = (product.m, product.n, product.k, product.left);
    let bf16 = ctx.precision == Precision::Bf16;
    let at = |i: usize, k: usize| round(left.data.at(i * left.row + k * left.k), bf16);
    let out = Rows::new(product.out.floats(), 1);
    match product.right {
        Right::Rows(w) => ctx.pool.run(n, &|j, _| {
            let mut piece = [0.0; PIECE];
            for k0 in (0..k).step_by(PIECE) {
                let b = load(&w, j, k0, k.min(k0 + PIECE), bf16, &mut piece);
                for i in 0..m {
                    // SAFETY: task `j` alone touches column `j`.
                    let sum = unsafe { &mut out.range(i * n + j..i * n + j + 1)[0] };
                    *sum = b.iter().enumerate().fold(*sum, |sum, (k, &b)| at(i, k0 + k).mul_add(b, sum));
                }
            }
        }),
        Right::Cols(w) => ctx.pool.run(n.div_ceil(PIECE), &|task, _| {
            let mut piece = [0.0; PIECE];
            let columns = task * PIECE..n.min((task + 1) * PIECE);
            for k in 0..k {
                let b = load(&w, k, columns.start, columns.end, bf16, &mut piece);
                for i in 0..m {
                    // SAFETY: `task` alone touches these columns.
                    let sums = unsafe { out.range(i * n + columns.start..i * n + columns.end) };
                    let a = at(i, k);
                    for (sum, &b) in sums.iter_mut().zip(b) {
                        *sum = a.mul_add(b, *sum);
                    }
                }
            }
        }),
    }
}

/// With both operands as [16-bit integers](int16): a group of some outputs, then each row with all of these.
fn integers(ctx: &mut Ctx, product: &mut Product) {
    let (m, n, k, left) = (product.m, product.n, product.k, product.left);
    let out = Rows::new(product.out.floats(), 1);
    ctx.pool.run(n.div_ceil(OUTPUTS), &|task, _| {
        let outputs = task * OUTPUTS..n.min((task + 1) * OUTPUTS);
        for k0 in (0..k).step_by(GROUP) {
            let ks = k0..k.min(k0 + GROUP);
            let (mut floats, mut a, mut b) = ([0.0; GROUP], [0; GROUP], [[0; GROUP]; OUTPUTS]);
            let (floats, a, mut scales) = (&mut floats[..ks.len()], &mut a[..ks.len()], [0.0; OUTPUTS]);
            for ((j, b), scale) in outputs.clone().zip(&mut b).zip(&mut scales) {
                let extent = match product.right {
                    Right::Rows(w) => row_of(&w, j, ks.clone(), floats),
                    Right::Cols(w) => column_of(&w, j, ks.clone(), floats),
                };
                *scale = extent.scale();
                let inverse = int16::inverse(*scale);
                b.iter_mut().zip(&*floats).for_each(|(b, &x)| *b = int16::integer(x, inverse));
            }
            for i in 0..m {
                ks.clone().zip(&mut *floats).for_each(|(k, x)| *x = left.data.at(i * left.row + k * left.k));
                let a_scale = int16::quantize(floats, a);
                // SAFETY: `task` alone touches these columns.
                let sums = unsafe { out.range(i * n + outputs.start..i * n + outputs.end) };
                for ((sum, b), &b_scale) in sums.iter_mut().zip(&b).zip(&scales) {
                    *sum = (int16::dot(a, b) as f32).mul_add(a_scale * b_scale, *sum);
                }
            }
        }
    });
}

/// A group of row `j`, and how large it is.
fn row_of(w: &Weight, j: usize, ks: Range<usize>, to: &mut [f32]) -> Extent {
    w.read(Isa::Scalar, j, ks.clone(), to);
    let mut extent = [Extent::NONE];
    extents(Isa::Scalar, w.strip(j..j + 1, ks), &mut extent);
    extent[0]
}

/// A group of column `j`.
fn column_of(w: &Weight, j: usize, ks: Range<usize>, to: &mut [f32]) -> Extent {
    let len = w.ty.block_len();
    let (first, mut block) = (j / len * len, [0.0; PIECE]);
    for (k, to) in ks.clone().zip(&mut *to) {
        w.read(Isa::Scalar, k, first..first + len, &mut block[..len]);
        *to = block[j - first];
    }
    let strip = w.strip(ks, first..first + len);
    if !bounded(&strip) {
        return Extent::measured(to.iter().fold(0.0, |sum, x| x.mul_add(*x, sum)));
    }
    let mut runs = [Extent::NONE; MOST_RUNS];
    add_bounds(Isa::Scalar, strip, &mut runs[..len / RUN]);
    runs[(j - first) / RUN]
}

/// Columns `from..to` of a row, as the product sees them.
fn load<'a>(w: &Weight, row: usize, from: usize, to: usize, bf16: bool, piece: &'a mut [f32; PIECE]) -> &'a [f32] {
    let piece = &mut piece[..to - from];
    w.read(Isa::Scalar, row, from..to, piece);
    for x in piece.iter_mut() {
        *x = round(*x, bf16);
    }
    piece
}

fn round(x: f32, bf16: bool) -> f32 {
    if bf16 { round_bf16(x) } else { x }
}
