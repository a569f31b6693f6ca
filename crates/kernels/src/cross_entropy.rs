//! Cross-entropy of rows of logits that arrive in pieces of the vocabulary: the loss, the most likely token, and in place of the
//! logits their gradient.
//!
//! Sums run over strips of [`STRIP`] entries and then over the strips in ascending order, so that results have the same bits
//! however the vocabulary is cut into pieces of whole strips.

use crate::math::{LANES, exp, lane_sum};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Entries of the vocabulary that share a maximum. Pieces start at multiples of it.
pub const STRIP: usize = 1024;

/// What is known of each row after some pieces; each slice has one entry a row.
pub struct State<'a> {
    /// The largest logit so far.
    pub top: &'a mut [f32],
    /// The sum of `exp(logit - top)` so far.
    pub total: &'a mut [f32],
    /// The label's logit, once its piece was seen.
    pub label: &'a mut [f32],
    /// The number of the largest logit, the first of equals, as the bits of a float.
    pub best: &'a mut [f32],
}

impl State<'_> {
    /// Nothing seen yet.
    pub fn clear(&mut self) {
        self.top.fill(f32::NEG_INFINITY);
        self.total.fill(0.0);
        self.label.fill(f32::NAN);
        self.best.fill(f32::from_bits(u32::MAX));
    }

    /// The loss of a row after the last piece: `logsumexp - logit[label]`.
    pub fn loss(&self, row: usize) -> f32 {
        self.lse(row) - self.label[row]
    }

    /// Whether the label was the most likely token.
    pub fn hit(&self, row: usize, label: u32) -> bool {
        self.best[row].to_bits() == label
    }

    fn lse(&self, row: usize) -> f32 {
        self.top[row] + self.total[row].ln()
    }
}

/// Takes in the logits of entries `first..` of the vocabulary: `piece` holds equally many for each row.
pub fn take_in(isa: Isa, pool: &Pool, piece: &[f32], first: usize, labels: &[u32], state: &mut State) {
    let Some(len) = piece.len().checked_div(labels.len()) else { return };
    assert!(first.is_multiple_of(STRIP) && state.top.len() == labels.len());
    let slices = [&mut *state.top, &mut *state.total, &mut *state.label, &mut *state.best].map(|s| Rows::new(s, 1));
    pool.run(labels.len(), &|row, _| {
        let [top, total, label, best] = slices.each_ref().map(|slice| &mut slice.piece(row).0[0]);
        let logits = &piece[row * len..][..len];
        let (new_top, new_total, winner) = take_in_row(isa, logits, *top, *total);
        (*top, *total) = (new_top, new_total);
        if let Some(at) = winner {
            *best = f32::from_bits((first + at) as u32);
        }
        if let Some(&logit) = (labels[row] as usize).checked_sub(first).and_then(|at| logits.get(at)) {
            *label = logit;
        }
    });
}

/// After all pieces: `(softmax - onehot) scale` in place of the logits of entries `first..`.
#[allow(clippy::too_many_arguments)]
pub fn gradient(isa: Isa, pool: &Pool, piece: &mut [f32], first: usize, labels: &[u32], state: &State, scale: f32) {
    let Some(len) = piece.len().checked_div(labels.len()) else { return };
    let piece = Rows::new(piece, len.max(1));
    pool.run(labels.len(), &|row, _| {
        let (logits, _) = piece.piece(row);
        gradient_row(isa, logits, state.lse(row), scale);
        if let Some(logit) = (labels[row] as usize).checked_sub(first).and_then(|at| logits.get_mut(at)) {
            *logit -= scale;
        }
    });
}

per_isa!(fn take_in_row(logits: &[f32], top: f32, total: f32) -> (f32, f32, Option<usize>) = take_in_body);
per_isa!(fn gradient_row(logits: &mut [f32], lse: f32, scale: f32) = gradient_body);

#[inline(always)]
fn take_in_body(logits: &[f32], top: f32, total: f32) -> (f32, f32, Option<usize>) {
    let (mut top, mut total, mut winner) = (top, total, None);
    for (strip, start) in logits.chunks(STRIP).zip((0..).step_by(STRIP)) {
        let (strip_top, strip_total) = strip_sum(strip);
        if strip_top > top {
            winner = strip.iter().position(|&x| x == strip_top).map(|at| start + at);
        }
        (top, total) = merge((top, total), (strip_top, strip_total));
    }
    (top, total, winner)
}

#[inline(always)]
fn gradient_body(logits: &mut [f32], lse: f32, scale: f32) {
    for x in logits.iter_mut() {
        *x = exp(*x - lse) * scale;
    }
}

/// The maximum of a strip and the sum of `exp(x - maximum)`. A NaN is no maximum, but it reaches the sum and so the loss.
#[inline(always)]
fn strip_sum(strip: &[f32]) -> (f32, f32) {
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = strip.as_chunks::<LANES>();
    for piece in whole {
        for lane in 0..LANES {
            lanes[lane] = higher(lanes[lane], piece[lane]);
        }
    }
    let top = lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, higher);
    (top, lane_sum([strip], |[x]| exp(x - top)))
}

/// Joins two (maximum, sum) pairs.
#[inline(always)]
fn merge((top_a, a): (f32, f32), (top_b, b): (f32, f32)) -> (f32, f32) {
    let top = if top_b > top_a { top_b } else { top_a };
    (top, a * exp(top_a - top) + b * exp(top_b - top))
}
