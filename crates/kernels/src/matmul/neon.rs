//! The f32 tile and the transposition of weights on NEON: 8 rows of two 4-lane vectors.
//!
//! Four elements of the left operand are loaded at once and multiplied by lane: broadcasts from memory would take turns with the
//! multiplications on many Arm cores.

use std::arch::aarch64::*;

use super::lanes::{self, Lanes, Steps, Sweep, deal, sweep};
use super::tiled::Kernel;

pub(super) const KERNEL: Kernel =
    Kernel { lanes: 4, rows: 8, k_block: 288, sweep: sweep_8, transpose, deal: deal_pieces };

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
        if MR % 4 != 0 {
            // SAFETY: the trait's contract.
            return unsafe { lanes::steps::<Self, MR, NV>(s, sums) };
        }
        // SAFETY: each step has `MR` elements side by side, and the panel has `k` rows.
        unsafe {
            for k in 0..s.k {
                let mut b = [vdupq_n_f32(0.0); NV];
                for (j, b) in b.iter_mut().enumerate() {
                    *b = vld1q_f32(s.panel.add(8 * k + 4 * j));
                }
                for (i, sums) in sums.chunks_exact_mut(4).enumerate() {
                    let a = vld1q_f32(s.left.add(k * s.left_k + 4 * i));
                    for (j, &b) in b.iter().enumerate() {
                        sums[0][j] = vfmaq_laneq_f32::<0>(sums[0][j], b, a);
                        sums[1][j] = vfmaq_laneq_f32::<1>(sums[1][j], b, a);
                        sums[2][j] = vfmaq_laneq_f32::<2>(sums[2][j], b, a);
                        sums[3][j] = vfmaq_laneq_f32::<3>(sums[3][j], b, a);
                    }
                }
            }
        }
    }
}

unsafe fn sweep_8(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x4, 8>(s) }
}

unsafe fn deal_pieces(from: *const f32, count: usize, to: *mut f32, apart: usize) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x4>(from, count, to, apart) }
}

/// [`Kernel::transpose`].
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
