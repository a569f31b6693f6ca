//! RMS norm, forward and backward. The statistic is recomputed in the backward pass: it costs one pass over a row that is read anyway.

#[cfg(target_arch = "x86_64")]
mod halves;

use half::bf16;

use crate::layer_norm::statistics;
use crate::math::{dot, lane_sum};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Element, Isa, Pool, ValuesMut, fetch};

/// Elements that one task handles, about.
const PIECE: usize = 16384;

/// Elements for which those of the next row are asked for together.
const SPAN: usize = 32;

/// Whole rows of `width` elements for one task.
pub(crate) fn piece(width: usize) -> usize {
    (PIECE / width).max(1) * width
}

/// `y = x w / sqrt(mean(x²) + eps)` for each row of `w.len()` elements.
pub fn forward(isa: Isa, pool: &Pool, x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    forward_values(isa, pool, x, w, eps, ValuesMut::F32(y));
}

/// [`forward`] to values of either type.
pub fn forward_values(isa: Isa, pool: &Pool, x: &[f32], w: &[f32], eps: f32, y: ValuesMut) {
    match y {
        ValuesMut::F32(y) => forward_to(pool, x, w, y, &|x, y| forward_rows(isa, x, w, eps, y)),
        ValuesMut::Bf16(y) => forward_to(pool, x, w, y, &|x, y| match isa {
            // SAFETY: such an `Isa` is only made where the processor has its features.
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => unsafe { halves::forward(x, w, eps, y) },
            _ => forward_rows_bf16(isa, x, w, eps, y),
        }),
    }
}

fn forward_to<T: Element>(pool: &Pool, x: &[f32], w: &[f32], y: &mut [T], rows: &(dyn Fn(&[f32], &mut [T]) + Sync)) {
    assert!(x.len() == y.len() && x.len().is_multiple_of(w.len()), "{} {} {}", x.len(), y.len(), w.len());
    let y = Rows::new(y, piece(w.len()));
    pool.run(y.pieces(), &|task, _| {
        let (y, range) = y.piece(task);
        rows(&x[range], y);
    });
}

/// `gx = rstd (gy w) - x rstd³/c Σ (gy w x)`, added to what `gx` holds when `accumulate`.
#[allow(clippy::too_many_arguments)]
pub fn backward(isa: Isa, pool: &Pool, x: &[f32], w: &[f32], eps: f32, gy: &[f32], gx: &mut [f32], accumulate: bool) {
    assert!(x.len() == gx.len() && gy.len() == gx.len() && x.len().is_multiple_of(w.len()));
    let gx = Rows::new(gx, piece(w.len()));
    pool.run(gx.pieces(), &|task, _| {
        let (gx, range) = gx.piece(task);
        backward_rows(isa, &x[range.clone()], w, eps, &gy[range], gx, accumulate);
    });
}

/// `gw = Σ gy x rstd`, or `Σ gy (x - mean) rstd` where the norm is `centred`, over all rows, one after another.
pub fn weight_gradient(isa: Isa, centred: bool, x: &[f32], eps: f32, gy: &[f32], gw: &mut [f32]) {
    assert!(x.len() == gy.len() && x.len().is_multiple_of(gw.len()));
    weight_rows(isa, centred, x, eps, gy, gw);
}

per_isa!(fn weight_rows(centred: bool, x: &[f32], eps: f32, gy: &[f32], gw: &mut [f32]) = weight_body);
per_isa!(fn forward_rows(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) = forward_body);
per_isa!(fn forward_rows_bf16(x: &[f32], w: &[f32], eps: f32, y: &mut [bf16]) = forward_body);
per_isa!(fn backward_rows(x: &[f32], w: &[f32], eps: f32, gy: &[f32], gx: &mut [f32], accumulate: bool) = backward_body);

#[inline(always)]
pub(crate) fn rstd(row: &[f32], eps: f32) -> f32 {
    1.0 / (dot(row, row) / row.len() as f32 + eps).sqrt()
}

#[inline(always)]
fn weight_body(centred: bool, x: &[f32], eps: f32, gy: &[f32], gw: &mut [f32]) {
    gw.fill(0.0);
    let c = gw.len();
    for (x, gy) in x.chunks_exact(c).zip(gy.chunks_exact(c)) {
        let (mean, rstd) = if centred { statistics(x, eps) } else { (0.0, rstd(x, eps)) };
        for ((gw, &x), &gy) in gw.iter_mut().zip(x).zip(gy) {
            *gw = ((x - mean) * rstd).mul_add(gy, *gw);
        }
    }
}

#[inline(always)]
fn forward_body<T: Element>(x: &[f32], w: &[f32], eps: f32, y: &mut [T]) {
    let c = w.len();
    for (x, y) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)) {
        let rstd = rstd(x, eps);
        for ((x, y), w) in x.chunks(SPAN).zip(y.chunks_mut(SPAN)).zip(w.chunks(SPAN)) {
            fetch::behind(x, c);
            fetch::behind(y, c);
            for ((y, &x), &w) in y.iter_mut().zip(x).zip(w) {
                *y = T::of(x * rstd * w);
            }
        }
    }
}

#[inline(always)]
fn backward_body(x: &[f32], w: &[f32], eps: f32, gy: &[f32], gx: &mut [f32], accumulate: bool) {
    let c = w.len();
    for ((x, gy), gx) in x.chunks_exact(c).zip(gy.chunks_exact(c)).zip(gx.chunks_exact_mut(c)) {
        let rstd = rstd(x, eps);
        let back = lane_sum([gy, w, x], |[gy, w, x]| gy * w * x) * (rstd * rstd * rstd / c as f32);
        let runs = x.chunks(SPAN).zip(gy.chunks(SPAN)).zip(gx.chunks_mut(SPAN)).zip(w.chunks(SPAN));
        for (((x, gy), gx), w) in runs {
            fetch::behind(x, c);
            fetch::behind(gy, c);
            fetch::behind(gx, c);
            for (((gx, &x), &gy), &w) in gx.iter_mut().zip(x).zip(gy).zip(w) {
                let g = (gy * w).mul_add(rstd, -(x * back));
                *gx = if accumulate { *gx + g } else { g };
            }
        }
    }
}
