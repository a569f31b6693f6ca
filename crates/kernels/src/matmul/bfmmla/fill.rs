//! Operands into groups of eight: `[steps][8][4 of the sum]` in bf16. What no operand fills is zero.

use std::arch::aarch64::*;
use std::ops::Range;

use super::super::Weight;
use super::super::product::Left;
use super::{SIDE, STEP};
use crate::dequant::round;

/// How many rows of a weight ahead are asked for while columns of them are dequantised.
const ROWS_AHEAD: usize = 12;

/// Elements `ks` of row `i` of the left operand, four at most, zeros after them.
#[inline(always)]
fn four(left: Left, i: usize, ks: Range<usize>) -> float32x4_t {
    let from = left.from(i, ks.start).data.floats();
    let mut padded = [0.0; STEP];
    let four = match from.first_chunk() {
        Some(whole) if left.k == 1 && ks.len() == STEP => whole,
        _ => {
            padded.iter_mut().zip(from.iter().step_by(left.k)).take(ks.len()).for_each(|(to, from)| *to = *from);
            &padded
        }
    };
    // SAFETY: there are four floats.
    unsafe { vld1q_f32(four.as_ptr()) }
}

/// `rows` (8 at most) and `len` columns of the left operand into a group.
///
/// # Safety
/// The processor has BF16.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn left(left: Left, rows: Range<usize>, len: usize, to: &mut [u16]) {
    for (step, to) in to.as_chunks_mut::<{ SIDE * STEP }>().0.iter_mut().enumerate() {
        let ks = step * STEP..len.min((step + 1) * STEP);
        let row = |i| if i < rows.end { four(left, i, ks.clone()) } else { vdupq_n_f32(0.0) };
        for (i, to) in (rows.start..).step_by(2).zip(to.as_chunks_mut::<8>().0) {
            // SAFETY: two rows are eight numbers.
            unsafe { vst1q_u16(to.as_mut_ptr(), round(row(i), row(i + 1))) };
        }
    }
}

/// Columns `ks` of rows `js` of `w` into groups. `buffer` has room for a row.
///
/// # Safety
/// The processor has BF16.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn weight_rows(w: &Weight, js: Range<usize>, ks: Range<usize>, buffer: &mut [u16], to: &mut [u16]) {
    let steps = ks.len().div_ceil(STEP);
    let buffer = &mut buffer[..steps * STEP];
    buffer.fill(0);
    for j in 0..js.len().next_multiple_of(SIDE) {
        if j < js.len() {
            w.fetch(js.start + j + 2, ks.start, ks.end);
            // SAFETY: the caller's promise.
            unsafe { w.read_bf16(js.start + j, ks.clone(), &mut buffer[..ks.len()]) };
        } else {
            buffer.fill(0);
        }
        let group = &mut to[j / SIDE * steps * SIDE * STEP..][..steps * SIDE * STEP];
        for (from, to) in buffer.as_chunks::<STEP>().0.iter().zip(group.as_chunks_mut::<{ SIDE * STEP }>().0) {
            to[j % SIDE * STEP..][..STEP].copy_from_slice(from);
        }
    }
}

/// Columns `js` of rows `ks` of `w` into groups, four rows side by side. `buffer` has room for four rows.
///
/// # Safety
/// The processor has BF16.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn weight_cols(w: &Weight, js: Range<usize>, ks: Range<usize>, buffer: &mut [u16], to: &mut [u16]) {
    let steps = ks.len().div_ceil(STEP);
    let padded = js.len().next_multiple_of(SIDE);
    let buffer = &mut buffer[..STEP * padded];
    buffer.fill(0);
    for step in 0..steps {
        for (k, row) in (ks.start + STEP * step..).zip(buffer.chunks_exact_mut(padded)) {
            let row = &mut row[..js.len()];
            if k < ks.end {
                w.fetch(k + ROWS_AHEAD, js.start, js.end);
                // SAFETY: the caller's promise.
                unsafe { w.read_bf16(k, js.clone(), row) };
            } else {
                row.fill(0);
            }
        }
        for v in 0..padded / SIDE {
            // SAFETY: a row has `padded` numbers, and `v` counts its whole eights.
            let row = |r: usize| unsafe { vld1q_u16(buffer[r * padded + v * SIDE..][..SIDE].as_ptr()) };
            let to = &mut to[(v * steps + step) * SIDE * STEP..][..SIDE * STEP];
            for (to, outputs) in to.as_chunks_mut::<8>().0.iter_mut().zip(transpose([row(0), row(1), row(2), row(3)])) {
                // SAFETY: there is room for eight numbers.
                unsafe { vst1q_u16(to.as_mut_ptr(), outputs) };
            }
        }
    }
}

/// From four rows of eight outputs to eight outputs of four, two in a vector.
#[inline]
#[target_feature(enable = "neon")]
fn transpose(rows: [uint16x8_t; 4]) -> [uint16x8_t; 4] {
    let pairs = |a, b| [vreinterpretq_u32_u16(vzip1q_u16(a, b)), vreinterpretq_u32_u16(vzip2q_u16(a, b))];
    let ([low01, high01], [low23, high23]) = (pairs(rows[0], rows[1]), pairs(rows[2], rows[3]));
    [
        vreinterpretq_u16_u32(vzip1q_u32(low01, low23)),
        vreinterpretq_u16_u32(vzip2q_u32(low01, low23)),
        vreinterpretq_u16_u32(vzip1q_u32(high01, high23)),
        vreinterpretq_u16_u32(vzip2q_u32(high01, high23)),
    ]
}
