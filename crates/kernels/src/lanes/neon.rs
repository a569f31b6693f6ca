//! NEON: 4 floats.

use std::arch::aarch64::*;

use super::Lanes;

pub(crate) struct F32x4;

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
    unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
        // SAFETY: the trait's contract.
        unsafe { transpose(from, from_row, rows, to, to_row, len) }
    }
}

/// [`Lanes::transpose`].
unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
    for k in (0..len).step_by(4) {
        // SAFETY: what is read and written of columns `k..k + 4` is inside both by the caller's promise.
        unsafe {
            let mut square = [vdupq_n_f32(0.0); 4];
            for (r, x) in square.iter_mut().enumerate().take(rows) {
                *x = F32x4::load_up_to(from.add(r * from_row + k), len - k);
            }
            let [a, b, c, d] = square;
            // Pairs of rows interleaved: elements 0 and 2 of both, then 1 and 3.
            let pair = |x, y| [vreinterpretq_f64_f32(vtrn1q_f32(x, y)), vreinterpretq_f64_f32(vtrn2q_f32(x, y))];
            let ([ab0, ab1], [cd0, cd1]) = (pair(a, b), pair(c, d));
            let columns = [vtrn1q_f64(ab0, cd0), vtrn1q_f64(ab1, cd1), vtrn2q_f64(ab0, cd0), vtrn2q_f64(ab1, cd1)];
            for (r, column) in columns.into_iter().enumerate().take(len - k) {
                F32x4::store_up_to(to.add((k + r) * to_row), vreinterpretq_f32_f64(column), rows);
            }
        }
    }
}
