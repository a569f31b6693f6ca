//! Cross-entropy of rows of logits that arrive strip by strip of the vocabulary: the loss, the most likely token, and in place of the
//! logits what their gradient is made of.
//!
//! A softmax needs the sum over all entries before it can give one of them. So each strip is given relative to the largest logit *so far*, and
//! whatever was summed of the strips before is rescaled when a larger one turns up: `Σ softmax(l) W` is made in one pass over `W`, and no
//! logit outlives its strip. Strips are the same whatever else is cut into pieces, and so are the bits.

use crate::math::{LANES, exp, exp_of_negative, lane_sum};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool, fetch};

/// Entries of the vocabulary in a strip; the last one may be shorter.
pub const STRIP: usize = 1024;

/// What is known of each row after some strips; each slice has one entry a row.
pub struct State<'a> {
    /// The largest logit so far.
    pub top: &'a mut [f32],
    /// The sum of `exp(logit - top)` so far.
    pub total: &'a mut [f32],
    /// What sums over earlier strips are to be multiplied with after the last one: `exp(top before - top)`.
    pub shift: &'a mut [f32],
    /// The label's logit, once its strip was seen.
    pub label: &'a mut [f32],
    /// The number of the largest logit, the first of equals, as the bits of a float.
    pub best: &'a mut [f32],
}

impl State<'_> {
    /// Nothing seen yet.
    pub fn clear(&mut self) {
        self.top.fill(f32::NEG_INFINITY);
        self.total.fill(0.0);
        self.shift.fill(0.0);
        self.label.fill(f32::NAN);
        self.best.fill(f32::from_bits(u32::MAX));
    }

    /// The loss of a row after the last strip: `logsumexp - logit[label]`.
    pub fn loss(&self, row: usize) -> f32 {
        self.lse(row) - self.label[row]
    }

    /// Whether the label was the most likely token.
    pub fn hit(&self, row: usize, label: u32) -> bool {
        self.best[row].to_bits() == label
    }

    /// The log-sum-exp of a row after the last strip.
    pub fn lse(&self, row: usize) -> f32 {
        self.top[row] + self.total[row].ln()
    }
}

/// Takes in the logits of entries `first..` of the vocabulary, equally many for each row, and leaves `exp(logit - top)` in their place.
pub fn take_in(isa: Isa, pool: &Pool, strip: &mut [f32], first: usize, labels: &[u32], state: &mut State) {
    let Some(len) = strip.len().checked_div(labels.len()) else { return };
    assert!(first.is_multiple_of(STRIP) && len <= STRIP && state.top.len() == labels.len());
    let State { top, total, shift, label, best } = state;
    let slices = [top, total, shift, label, best].map(|s| Rows::new(s, 1));
    let strip = Rows::new(strip, len.max(1));
    pool.run(labels.len(), &|row, _| {
        let [top, total, shift, label, best] = slices.each_ref().map(|slice| &mut slice.piece(row).0[0]);
        let (logits, _) = strip.piece(row);
        if let Some(&mut logit) = (labels[row] as usize).checked_sub(first).and_then(|at| logits.get_mut(at)) {
            *label = logit;
        }
        let taken = take_in_row(isa, logits, *top, *total);
        (*top, *total, *shift) = (taken.top, taken.total, taken.shift);
        if let Some(at) = taken.winner {
            *best = f32::from_bits((first + at) as u32);
        }
    });
}

/// Leaves of the logits of entries `first..` those of `choices`: the others are as if they were not in the vocabulary.
pub fn only(pool: &Pool, strip: &mut [f32], rows: usize, first: usize, choices: &[u32]) {
    let Some(len) = strip.len().checked_div(rows) else { return };
    let strip = Rows::new(strip, len.max(1));
    pool.run(rows, &|row, _| {
        let logits = strip.piece(row).0.iter_mut().enumerate();
        let others = logits.filter(|(at, _)| !choices.iter().any(|&choice| choice as usize == first + at));
        others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
    });
}

/// The loss of a row that has all of its few logits at once, and whether the label has the largest, the first of equals; `(softmax - onehot) scale` takes
/// their place.
pub fn few(logits: &mut [f32], label: usize, scale: f32) -> (f64, bool) {
    let (best, top) = logits
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (at, &logit)| if logit > best.1 { (at, logit) } else { best });
    let part = |logit: f32| (f64::from(logit) - f64::from(top)).exp();
    let total: f64 = logits.iter().map(|&logit| part(logit)).sum();
    let loss = total.ln() + f64::from(top) - f64::from(logits[label]);
    for (at, logit) in logits.iter_mut().enumerate() {
        let share = part(*logit) / total - if at == label { 1.0 } else { 0.0 };
        *logit = (share * f64::from(scale)) as f32;
    }
    (loss, best == label)
}

/// Brings sums over earlier strips, a row of them for each row of logits, up to the last strip.
pub fn rescale(pool: &Pool, sums: &mut [f32], state: &State) {
    let Some(len) = sums.len().checked_div(state.shift.len()) else { return };
    let sums = Rows::new(sums, len.max(1));
    pool.run(state.shift.len(), &|row, _| {
        let shift = state.shift[row];
        if shift != 1.0 {
            sums.piece(row).0.iter_mut().for_each(|x| *x *= shift);
        }
    });
}

/// Softmax entries below this are faint.
pub const FAINT: f32 = 1.0 / 4096.0;

/// The rows of a strip, as [`take_in`] left it, that have an entry which is not known to be faint: below [`FAINT`] of the sum so far, and so of the
/// whole. Their numbers go to the front of `rows`, in order; returns how many there are. A row with a NaN is one of them.
pub fn bright(isa: Isa, pool: &Pool, strip: &[f32], state: &State, rows: &mut [u32]) -> usize {
    let Some(len) = strip.len().checked_div(rows.len()) else { return 0 };
    let count = rows.len();
    let marks = Rows::new(&mut *rows, 1);
    pool.run(count, &|row, _| {
        let faint = highest_row(isa, &strip[row * len..][..len]) < FAINT * state.total[row];
        marks.piece(row).0[0] = u32::from(!faint);
    });
    let mut bright = 0;
    for row in 0..count {
        if rows[row] == 1 {
            rows[bright] = row as u32;
            bright += 1;
        }
    }
    bright
}

/// After all strips: `(softmax - onehot) scale` in place of the logits of entries `first..`, which were computed once more.
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

/// As [`gradient`], of rows whose log-sum-exp is known; those of which the label is beyond every vocabulary have none, and no gradient.
#[allow(clippy::too_many_arguments)]
pub fn gradient_of(isa: Isa, pool: &Pool, piece: &mut [f32], first: usize, labels: &[u32], lse: &[f32], scale: f32) {
    let Some(len) = piece.len().checked_div(labels.len()) else { return };
    assert_eq!(labels.len(), lse.len(), "a log-sum-exp for every label");
    let piece = Rows::new(piece, len.max(1));
    pool.run(labels.len(), &|row, _| {
        let (logits, _) = piece.piece(row);
        if labels[row] == u32::MAX {
            logits.fill(0.0);
            return;
        }
        gradient_row(isa, logits, lse[row], scale);
        if let Some(logit) = (labels[row] as usize).checked_sub(first).and_then(|at| logits.get_mut(at)) {
            *logit -= scale;
        }
    });
}

per_isa!(fn highest_row(strip: &[f32]) -> f32 = highest);
per_isa!(fn take_in_row(logits: &mut [f32], top: f32, total: f32) -> Taken = take_in_body);
per_isa!(fn gradient_row(logits: &mut [f32], lse: f32, scale: f32) = gradient_body);

/// A row after one more strip.
struct Taken {
    top: f32,
    total: f32,
    shift: f32,
    /// Where in the strip the largest logit is, if it is larger than all before.
    winner: Option<usize>,
}

/// A NaN is no maximum, but it reaches the sum and so the loss.
#[inline(always)]
fn take_in_body(logits: &mut [f32], before: f32, total: f32) -> Taken {
    let highest = highest(logits);
    let (top, winner) =
        if highest > before { (highest, logits.iter().position(|&x| x == highest)) } else { (before, None) };
    let (shift, len) = (exp_of_negative(before - top), logits.len());
    let (whole, rest) = logits.as_chunks_mut::<LANES>();
    for piece in whole {
        // The row behind is next.
        fetch::line(piece.as_ptr().wrapping_add(len).cast());
        for x in piece {
            *x = exp_of_negative(*x - top);
        }
    }
    for x in rest {
        *x = exp_of_negative(*x - top);
    }
    Taken { top, total: total * shift + lane_sum([logits], |[x]| x), shift, winner }
}

#[inline(always)]
fn gradient_body(logits: &mut [f32], lse: f32, scale: f32) {
    for x in logits.iter_mut() {
        *x = exp(*x - lse) * scale;
    }
}

#[inline(always)]
fn highest(strip: &[f32]) -> f32 {
    let higher = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (whole, rest) = strip.as_chunks::<LANES>();
    for piece in whole {
        for lane in 0..LANES {
            lanes[lane] = higher(lanes[lane], piece[lane]);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, higher)
}
