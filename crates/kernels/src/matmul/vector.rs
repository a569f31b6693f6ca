//! `W x` for one row of input: generation, where reading the weights is all the time. Threads split the weight's rows.
//!
//! The sum of an output runs in 64 lanes (`k mod 64`), each a chain of fused multiply-adds, folded as a tree: the same bits on every
//! instruction set, but not those of [`super::nt`], whose lanes run over outputs. Inputs are never rounded here.

use super::{Ctx, Start, Weight};
use crate::Isa;
use crate::per_isa::per_isa;
use crate::rows::Rows;

/// Elements that are dequantised at once: whole blocks of every type, whole rounds of the lanes.
const PIECE: usize = 1024;
const LANES: usize = 64;
/// Rows of a task.
const TASK: usize = 32;

/// Scratch memory of [`matvec`], in f32 elements.
pub fn matvec_scratch(threads: usize) -> usize {
    threads * PIECE
}

/// `y = start + W x`, with `x: [cols]` and `y: [rows]`, in f32 whatever the context's precision.
///
/// # Panics
/// When a slice or the scratch memory has another length than the shape asks for.
pub fn matvec(ctx: &mut Ctx, w: Weight, x: &[f32], y: &mut [f32], start: Start) {
    assert_eq!(x.len(), w.cols, "length of x");
    assert_eq!(y.len(), w.rows, "length of y");
    if let Start::Bias(bias) = start {
        assert_eq!(bias.len(), w.rows, "length of the bias");
    }
    let wanted = matvec_scratch(ctx.pool.threads());
    assert!(ctx.scratch.len() >= wanted, "scratch has {} elements of {wanted}", ctx.scratch.len());
    assert!(ctx.isa.available(), "this processor has no {}", ctx.isa.name());
    let isa = ctx.isa;
    let pieces = Rows::new(&mut ctx.scratch[..wanted], PIECE);
    let y = Rows::new(y, TASK);
    ctx.pool.run(y.pieces(), &|task, thread| {
        let piece = pieces.piece(thread).0;
        let (y, rows) = y.piece(task);
        for (y, row) in y.iter_mut().zip(rows) {
            let first = match start {
                Start::Zero => 0.0,
                Start::Bias(bias) => bias[row],
                Start::Output => *y,
            };
            *y = first + dot(isa, &w, row, x, piece);
        }
    });
}

fn dot(isa: Isa, w: &Weight, row: usize, x: &[f32], piece: &mut [f32]) -> f32 {
    let mut sums = [0.0; LANES];
    for (at, x) in (0..w.cols).step_by(PIECE).zip(x.chunks(PIECE)) {
        let piece = &mut piece[..x.len()];
        w.read(isa, row, at..at + x.len(), piece);
        add_products(isa, piece, x, &mut sums);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            sums[i] += sums[i + width];
        }
        width /= 2;
    }
    sums[0]
}

per_isa!(fn add_products(a: &[f32], b: &[f32], sums: &mut [f32; LANES]) = add_products_body);

#[inline(always)]
fn add_products_body(a: &[f32], b: &[f32], sums: &mut [f32; LANES]) {
    let (a, a_tail) = a.as_chunks::<LANES>();
    let (b, b_tail) = b.as_chunks::<LANES>();
    let mut lanes = *sums;
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    }
    for (i, (a, b)) in a_tail.iter().zip(b_tail).enumerate() {
        lanes[i] = a.mul_add(*b, lanes[i]);
    }
    *sums = lanes;
}
