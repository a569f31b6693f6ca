//! The f32 tile and the transposition of weights on NEON: 8 rows of two 4-lane vectors.
//!
//! Where the left operand's rows are contiguous, four elements of each are loaded at once and multiplied by lane: broadcasts from
//! memory would take turns with the multiplications on many Arm cores. 16 vectors of sums, 8 of the left operand and 2 of the panel
//! fit the 32 registers.

use std::arch::aarch64::*;

use super::lanes::{self, Lanes, Steps, Sweep, sweep};
use super::tiled::Kernel;

pub(super) const KERNEL: Kernel = Kernel { lanes: 4, rows: 8, sweep: sweep_8, transpose };

struct F32x4;

impl Lanes for F32x4 {
    type V = float32x4_t;
    const LANES: usize = 4;
    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe { vdupq_n_f32(0.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vdupq_n_f32(*x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> float32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vld1q_f32(from) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> float32x4_t {
        let mut padded = [0.0; 4];
        // SAFETY: the trait's contract; `count` is 4 at most.
        unsafe {
            std::ptr::copy_nonoverlapping(from, padded.as_mut_ptr(), count.min(4));
            vld1q_f32(padded.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: float32x4_t) {
        // SAFETY: the trait's contract.
        unsafe { vst1q_f32(to, x) }
    }
    #[inline(always)]
    unsafe fn store_part(to: *mut f32, x: float32x4_t, count: usize) {
        let mut all = [0.0; 4];
        // SAFETY: the trait's contract; `count` is 4 at most.
        unsafe {
            vst1q_f32(all.as_mut_ptr(), x);
            std::ptr::copy_nonoverlapping(all.as_ptr(), to, count.min(4));
        }
    }
    #[inline(always)]
    unsafe fn steps<const MR: usize, const NV: usize>(s: Steps, sums: &mut [[float32x4_t; NV]; MR]) {
        let whole = if s.left_k == 1 { s.k / 4 * 4 } else { 0 };
        // SAFETY: `MR` rows have `k` elements side by side where this loop runs, and the panel has `k` rows; what is left of both
        // goes to the plain loop.
        unsafe {
            for k in (0..whole).step_by(4) {
                let mut a = [vdupq_n_f32(0.0); MR];
                for (i, a) in a.iter_mut().enumerate() {
                    *a = vld1q_f32(s.left.add(i * s.left_row + k));
                }
                step::<0, MR, NV>(s.panel.add(8 * k), &a, sums);
                step::<1, MR, NV>(s.panel.add(8 * k + 8), &a, sums);
                step::<2, MR, NV>(s.panel.add(8 * k + 16), &a, sums);
                step::<3, MR, NV>(s.panel.add(8 * k + 24), &a, sums);
            }
            let (left, panel) = (s.left.add(whole * s.left_k), s.panel.add(8 * whole));
            lanes::steps::<Self, MR, NV>(Steps { left, panel, k: s.k - whole, ..s }, sums);
        }
    }
}

/// Adds the products of lane `LANE` of each row with a row of the panel.
///
/// # Safety
/// `panel` has `NV` vectors.
#[inline(always)]
unsafe fn step<const LANE: i32, const MR: usize, const NV: usize>(
    panel: *const f32,
    a: &[float32x4_t; MR],
    sums: &mut [[float32x4_t; NV]; MR],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut b = [vdupq_n_f32(0.0); NV];
        for (j, b) in b.iter_mut().enumerate() {
            *b = vld1q_f32(panel.add(4 * j));
        }
        for (sums, &a) in sums.iter_mut().zip(a) {
            for (sum, &b) in sums.iter_mut().zip(&b) {
                *sum = vfmaq_laneq_f32::<LANE>(*sum, b, a);
            }
        }
    }
}

unsafe fn sweep_8(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x4, 8>(s) }
}

/// `to[k][r] = from[r][k]` for 4 rows `r` and `len` columns `k` rounded up to whole 4s, rows `from_row` and `to_row` apart.
unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize, len: usize) {
    for k in (0..len).step_by(4) {
        // SAFETY: columns `k..k + 4` of 4 rows are inside both buffers by the caller's promise.
        unsafe {
            let row = |r: usize| vld1q_f32(from.add(r * from_row + k));
            let (a, b, c, d) = (row(0), row(1), row(2), row(3));
            // Pairs of rows interleaved: elements 0 and 2 of both, then 1 and 3.
            let pair = |x, y| [vreinterpretq_f64_f32(vtrn1q_f32(x, y)), vreinterpretq_f64_f32(vtrn2q_f32(x, y))];
            let ([ab0, ab1], [cd0, cd1]) = (pair(a, b), pair(c, d));
            let columns = [vtrn1q_f64(ab0, cd0), vtrn1q_f64(ab1, cd1), vtrn2q_f64(ab0, cd0), vtrn2q_f64(ab1, cd1)];
            for (r, column) in columns.into_iter().enumerate() {
                vst1q_f32(to.add((k + r) * to_row), vreinterpretq_f32_f64(column));
            }
        }
    }
}
