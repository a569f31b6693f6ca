//! Norms in two parts, so that their derivative reads what the next linear's adapter needs anyway (memory-sharing norms,
//! [2406.16282](https://arxiv.org/abs/2406.16282)): `n = (x - mean) rstd`, then `y = n w + b`. The derivative reads `n` and `rstd` and never
//! `x`; `y` is one product away from `n`. Its paper folds `w` into the next linear instead, which frozen weights of 4 bits don't allow,
//! and dividing `y` by `w` would not give `n` where `w` is zero. Values have the bits of the norms in one part.

use crate::layer_norm::statistics;
use crate::math::lane_sum;
use crate::norm::{piece, rstd};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// `n = x rstd`, or `(x - mean) rstd` where the norm is `centred`, for each row of `width` elements.
#[allow(clippy::too_many_arguments)]
pub fn normalise(
    isa: Isa,
    pool: &Pool,
    centred: bool,
    width: usize,
    eps: f32,
    x: &[f32],
    n: &mut [f32],
    rstd: &mut [f32],
) {
    assert!(x.len() == n.len() && x.len() == width * rstd.len(), "{} {} {}", x.len(), n.len(), rstd.len());
    let (n, rstd) = (Rows::new(n, piece(width)), Rows::new(rstd, piece(width) / width));
    pool.run(n.pieces(), &|task, _| {
        let ((n, range), (rstd, _)) = (n.piece(task), rstd.piece(task));
        normalise_rows(isa, centred, eps, &x[range], n, rstd);
    });
}

/// `y = n w`, plus `b` where there is one.
pub fn affine(isa: Isa, pool: &Pool, n: &[f32], w: &[f32], b: Option<&[f32]>, y: &mut [f32]) {
    assert!(n.len() == y.len() && n.len().is_multiple_of(w.len()), "{} {} {}", n.len(), y.len(), w.len());
    assert!(b.is_none_or(|b| b.len() == w.len()), "{}", w.len());
    let y = Rows::new(y, piece(w.len()));
    pool.run(y.pieces(), &|task, _| {
        let (y, range) = y.piece(task);
        affine_rows(isa, &n[range], w, b, y);
    });
}

/// `gx = rstd (gy w - n mean(gy w n))`, less `rstd mean(gy w)` where the norm is `centred`; added to what `gx` holds when `accumulate`.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    isa: Isa,
    pool: &Pool,
    centred: bool,
    n: &[f32],
    rstd: &[f32],
    w: &[f32],
    gy: &[f32],
    gx: &mut [f32],
    accumulate: bool,
) {
    assert!(n.len() == gx.len() && gy.len() == gx.len() && n.len() == w.len() * rstd.len());
    let gx = Rows::new(gx, piece(w.len()));
    pool.run(gx.pieces(), &|task, _| {
        let (gx, range) = gx.piece(task);
        let rows = range.start / w.len()..range.end / w.len();
        backward_rows(isa, centred, &n[range.clone()], &rstd[rows], w, &gy[range], gx, accumulate);
    });
}

per_isa!(fn normalise_rows(centred: bool, eps: f32, x: &[f32], n: &mut [f32], rstd: &mut [f32]) = normalise_body);
per_isa!(fn affine_rows(n: &[f32], w: &[f32], b: Option<&[f32]>, y: &mut [f32]) = affine_body);
per_isa!(fn backward_rows(centred: bool, n: &[f32], rstd: &[f32], w: &[f32], gy: &[f32], gx: &mut [f32], accumulate: bool) = backward_body);

#[inline(always)]
fn normalise_body(centred: bool, eps: f32, x: &[f32], n: &mut [f32], rstds: &mut [f32]) {
    let width = x.len() / rstds.len().max(1);
    for ((x, n), kept) in x.chunks_exact(width.max(1)).zip(n.chunks_exact_mut(width.max(1))).zip(rstds) {
        if centred {
            let (mean, rstd) = statistics(x, eps);
            n.iter_mut().zip(x).for_each(|(n, &x)| *n = (x - mean) * rstd);
            *kept = rstd;
        } else {
            let rstd = rstd(x, eps);
            n.iter_mut().zip(x).for_each(|(n, &x)| *n = x * rstd);
            *kept = rstd;
        }
    }
}

#[inline(always)]
fn affine_body(n: &[f32], w: &[f32], b: Option<&[f32]>, y: &mut [f32]) {
    for (n, y) in n.chunks_exact(w.len()).zip(y.chunks_exact_mut(w.len())) {
        match b {
            None => y.iter_mut().zip(n).zip(w).for_each(|((y, &n), &w)| *y = n * w),
            Some(b) => y.iter_mut().zip(n).zip(w).zip(b).for_each(|(((y, &n), &w), &b)| *y = n.mul_add(w, b)),
        }
    }
}

#[inline(always)]
fn backward_body(centred: bool, n: &[f32], rstds: &[f32], w: &[f32], gy: &[f32], gx: &mut [f32], accumulate: bool) {
    let c = w.len();
    for (((n, gy), gx), &rstd) in n.chunks_exact(c).zip(gy.chunks_exact(c)).zip(gx.chunks_exact_mut(c)).zip(rstds) {
        let plain = if centred { lane_sum([gy, w], |[gy, w]| gy * w) / c as f32 } else { 0.0 };
        let along = lane_sum([gy, w, n], |[gy, w, n]| gy * w * n) / c as f32;
        for j in 0..c {
            let g = rstd * (n[j].mul_add(-along, gy[j] * w[j]) - plain);
            gx[j] = if accumulate { gx[j] + g } else { g };
        }
    }
}
