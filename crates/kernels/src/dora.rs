//! DoRA's magnitudes: `y = z m / n + bias`, where `n` holds the lengths of the rows of `W + scale Bᵀ A`. In the derivative `n` is a
//! constant, as in the paper: `gz = g m / n`, `gm = Σ g z / n`.

use crate::math::dot;
use crate::matmul::Weight;
use crate::norm::piece;
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Rows whose lengths one task computes, and columns whose magnitudes' gradients it sums.
const LINES: usize = 32;

/// Floats of scratch memory that [`lengths`] needs for rows of `cols`.
pub const fn lengths_scratch(cols: usize, threads: usize) -> usize {
    cols.next_multiple_of(16) * threads
}

/// The length of every row of `W + scale Bᵀ A`, with `a` of `[rank, in]` and `b` of `[rank, out]`.
#[allow(clippy::too_many_arguments)]
pub fn lengths(isa: Isa, pool: &Pool, w: Weight, a: &[f32], b: &[f32], scale: f32, scratch: &mut [f32], n: &mut [f32]) {
    let (rows, cols) = (w.rows, w.cols);
    assert!(n.len() == rows && a.len() / cols == b.len() / rows, "{} {} {rows} x {cols}", a.len(), b.len());
    let (n, buffers) = (Rows::new(n, LINES), Rows::new(scratch, cols.next_multiple_of(16)));
    pool.run(n.pieces(), &|task, thread| {
        let (n, range) = n.piece(task);
        // No two tasks run on one thread at a time.
        let buffer = &mut buffers.piece(thread).0[..cols];
        for (n, row) in n.iter_mut().zip(range) {
            w.read(isa, row, 0..cols, buffer);
            *n = length(isa, buffer, a, &b[row..], rows, scale);
        }
    });
}

/// `y = z m / n + bias`, row by row.
#[allow(clippy::too_many_arguments)]
pub fn forward(isa: Isa, pool: &Pool, z: &[f32], m: &[f32], n: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    assert!(z.len() == y.len() && y.len().is_multiple_of(m.len()) && m.len() == n.len());
    let y = Rows::new(y, piece(m.len()));
    pool.run(y.pieces(), &|task, _| {
        let (y, range) = y.piece(task);
        forward_rows(isa, &z[range], m, n, bias, y);
    });
}

/// `gz = g m / n`, added to what `gz` holds when `add_z`; `gm = Σ g z / n` over all rows, continuing from what `gm` holds when `add_m`.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    isa: Isa,
    pool: &Pool,
    (z, g): (&[f32], &[f32]),
    (m, n): (&[f32], &[f32]),
    (gz, add_z): (&mut [f32], bool),
    (gm, add_m): (&mut [f32], bool),
) {
    let cols = m.len();
    assert!(z.len() == g.len() && gz.len() == g.len() && g.len().is_multiple_of(cols) && gm.len() == cols);
    let gz = Rows::new(gz, piece(cols));
    pool.run(gz.pieces(), &|task, _| {
        let (gz, range) = gz.piece(task);
        scale_rows(isa, &g[range], m, n, gz, add_z);
    });
    let gm = Rows::new(gm, LINES);
    pool.run(gm.pieces(), &|task, _| {
        let (gm, range) = gm.piece(task);
        if !add_m {
            gm.fill(0.0);
        }
        for row in 0..g.len() / cols {
            let at = row * cols + range.start..row * cols + range.end;
            sum_row(isa, &g[at.clone()], &z[at], &n[range.clone()], gm);
        }
    });
}

per_isa!(fn length(buffer: &mut [f32], a: &[f32], b: &[f32], stride: usize, scale: f32) -> f32 = length_body);
per_isa!(fn forward_rows(z: &[f32], m: &[f32], n: &[f32], bias: Option<&[f32]>, y: &mut [f32]) = forward_body);
per_isa!(fn scale_rows(g: &[f32], m: &[f32], n: &[f32], gz: &mut [f32], add: bool) = scale_body);
per_isa!(fn sum_row(g: &[f32], z: &[f32], n: &[f32], gm: &mut [f32]) = sum_body);

#[inline(always)]
fn length_body(buffer: &mut [f32], a: &[f32], b: &[f32], stride: usize, scale: f32) -> f32 {
    for (a, b) in a.chunks_exact(buffer.len()).zip(b.iter().step_by(stride)) {
        let by = scale * b;
        buffer.iter_mut().zip(a).for_each(|(x, a)| *x = by.mul_add(*a, *x));
    }
    dot(buffer, buffer).sqrt()
}

#[inline(always)]
fn forward_body(z: &[f32], m: &[f32], n: &[f32], bias: Option<&[f32]>, y: &mut [f32]) {
    for (z, y) in z.chunks_exact(m.len()).zip(y.chunks_exact_mut(m.len())) {
        for j in 0..m.len() {
            y[j] = z[j] * (m[j] / n[j]);
        }
        if let Some(bias) = bias {
            y.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
        }
    }
}

#[inline(always)]
fn scale_body(g: &[f32], m: &[f32], n: &[f32], gz: &mut [f32], add: bool) {
    for (g, gz) in g.chunks_exact(m.len()).zip(gz.chunks_exact_mut(m.len())) {
        for j in 0..m.len() {
            let x = g[j] * (m[j] / n[j]);
            gz[j] = if add { gz[j] + x } else { x };
        }
    }
}

#[inline(always)]
fn sum_body(g: &[f32], z: &[f32], n: &[f32], gm: &mut [f32]) {
    for j in 0..gm.len() {
        gm[j] = g[j].mul_add(z[j] / n[j], gm[j]);
    }
}
