//! The products in plain Rust: what every faster form is compared with, and what a processor without one runs.
//!
//! It keeps the order of the sums and nothing else in mind.

use super::product::{Product, Right};
use super::{Ctx, Precision, Weight};
use crate::Isa;
use crate::rows::Rows;
use crate::values::round_bf16;

/// Weights that are dequantised at once: the longest block.
const PIECE: usize = 256;

pub(super) fn run(ctx: &mut Ctx, product: &mut Product) {
    product.begin();
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
