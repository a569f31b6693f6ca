//! Cross-entropy of rows of logits: the loss, whether the label was the most likely token, and in place of the logits their gradient.
//!
//! The log-sum-exp is taken over strips of [`STRIP`] entries and then over the strips, so that it has the same bits when the
//! vocabulary arrives in pieces.

use crate::math::{exp, lane_sum};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Entries of the vocabulary that share a maximum.
pub const STRIP: usize = 1024;

/// For each row of `logits`: `loss = logsumexp - logits[label]` into `losses`, 1 or 0 for a right guess into `hits`, and, when
/// `gradient` is given, `(softmax - onehot) gradient` in place of the logits.
#[allow(clippy::too_many_arguments)]
pub fn rows(
    isa: Isa,
    pool: &Pool,
    logits: &mut [f32],
    labels: &[u32],
    gradient: Option<f32>,
    losses: &mut [f32],
    hits: &mut [f32],
) {
    assert!(losses.len() == labels.len() && hits.len() == labels.len());
    let Some(vocab) = logits.len().checked_div(labels.len()) else { return };
    let (logits, losses, hits) = (Rows::new(logits, vocab), Rows::new(losses, 1), Rows::new(hits, 1));
    pool.run(labels.len(), &|task, _| {
        let (row, _) = logits.piece(task);
        let (loss, hit) = one_row(isa, row, labels[task] as usize, gradient);
        (losses.piece(task).0[0], hits.piece(task).0[0]) = (loss, if hit { 1.0 } else { 0.0 });
    });
}

per_isa!(fn one_row(row: &mut [f32], label: usize, gradient: Option<f32>) -> (f32, bool) = row_body);

#[inline(always)]
fn row_body(row: &mut [f32], label: usize, gradient: Option<f32>) -> (f32, bool) {
    let (mut top, mut total) = (f32::NEG_INFINITY, 0.0);
    for strip in row.chunks(STRIP) {
        (top, total) = merge((top, total), strip_sum(strip));
    }
    let lse = top + total.ln();
    let label_logit = row[label];
    // The first of equals wins, as in argmax.
    let hit = label_logit == top && !row[..label].contains(&top);
    if let Some(scale) = gradient {
        for x in row.iter_mut() {
            *x = exp(*x - lse) * scale;
        }
        row[label] -= scale;
    }
    (lse - label_logit, hit)
}

/// The maximum of a strip and the sum of `exp(x - maximum)`.
#[inline(always)]
fn strip_sum(strip: &[f32]) -> (f32, f32) {
    let mut top = f32::NEG_INFINITY;
    for &x in strip {
        // A NaN is carried along: it must reach the loss.
        top = if x > top || x.is_nan() { x } else { top };
    }
    (top, lane_sum(strip.len(), |j| exp(strip[j] - top)))
}

/// Joins two (maximum, sum) pairs.
#[inline(always)]
fn merge((top_a, a): (f32, f32), (top_b, b): (f32, f32)) -> (f32, f32) {
    let top = if top_b > top_a || top_b.is_nan() { top_b } else { top_a };
    (top, a * exp(top_a - top) + b * exp(top_b - top))
}
