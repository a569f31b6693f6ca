//! Layer norm with weight and bias, forward and backward. The gradient of the weight is [`crate::norm::weight_gradient`], and the bias's is the sum of all rows. The
//! statistics are computed again in the backward pass, as in the RMS norm.

use crate::math::lane_sum;
use crate::norm::piece;
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// `y = (x - mean) w / sqrt(variance + eps) + b` for each row of `w.len()` elements.
#[allow(clippy::too_many_arguments)]
pub fn forward(isa: Isa, pool: &Pool, x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) {
    assert!(x.len() == y.len() && x.len().is_multiple_of(w.len()), "{} {} {}", x.len(), y.len(), w.len());
    assert!(w.len() == b.len(), "{} {}", w.len(), b.len());
    let y = Rows::new(y, piece(w.len()));
    pool.run(y.pieces(), &|task, _| {
        let (y, range) = y.piece(task);
        forward_rows(isa, &x[range], w, b, eps, y);
    });
}

/// With `n = (x - mean) rstd`: `gx = rstd (gy w - mean(gy w) - n mean(gy w n))`, added to what `gx` holds when `accumulate`.
#[allow(clippy::too_many_arguments)]
pub fn backward(isa: Isa, pool: &Pool, x: &[f32], w: &[f32], eps: f32, gy: &[f32], gx: &mut [f32], accumulate: bool) {
    assert!(x.len() == gx.len() && gy.len() == gx.len() && x.len().is_multiple_of(w.len()));
    let gx = Rows::new(gx, piece(w.len()));
    pool.run(gx.pieces(), &|task, _| {
        let (gx, range) = gx.piece(task);
        backward_rows(isa, &x[range.clone()], w, eps, &gy[range], gx, accumulate);
    });
}

per_isa!(fn forward_rows(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) = forward_body);
per_isa!(fn backward_rows(x: &[f32], w: &[f32], eps: f32, gy: &[f32], gx: &mut [f32], accumulate: bool) = backward_body);

/// The mean and the reciprocal of the standard deviation. Two passes: `mean(x²) - mean²` would cancel.
#[inline(always)]
pub(crate) fn statistics(row: &[f32], eps: f32) -> (f32, f32) {
    let c = row.len() as f32;
    let mean = lane_sum([row], |[x]| x) / c;
    let variance = lane_sum([row], |[x]| (x - mean) * (x - mean)) / c;
    (mean, 1.0 / (variance + eps).sqrt())
}

#[inline(always)]
fn forward_body(x: &[f32], w: &[f32], b: &[f32], eps: f32, y: &mut [f32]) {
    for (x, y) in x.chunks_exact(w.len()).zip(y.chunks_exact_mut(w.len())) {
        let (mean, rstd) = statistics(x, eps);
        for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(w).zip(b) {
            *y = ((x - mean) * rstd).mul_add(w, b);
        }
    }
}

#[inline(always)]
fn backward_body(x: &[f32], w: &[f32], eps: f32, gy: &[f32], gx: &mut [f32], accumulate: bool) {
    let c = w.len();
    for ((x, gy), gx) in x.chunks_exact(c).zip(gy.chunks_exact(c)).zip(gx.chunks_exact_mut(c)) {
        let (mean, rstd) = statistics(x, eps);
        let plain = lane_sum([gy, w], |[gy, w]| gy * w) / c as f32;
        let along = lane_sum([gy, w, x], |[gy, w, x]| gy * w * ((x - mean) * rstd)) / c as f32;
        for j in 0..c {
            let n = (x[j] - mean) * rstd;
            let g = rstd * (n.mul_add(-along, gy[j] * w[j]) - plain);
            gx[j] = if accumulate { gx[j] + g } else { g };
        }
    }
}
