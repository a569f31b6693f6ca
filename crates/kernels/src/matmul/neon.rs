//! The tiles on NEON: 8 rows of two vectors of 4.
//!
//! Four elements of the left operand are loaded at once and multiplied by lane: broadcasts from memory would take turns with the
//! multiplications on many Arm cores. There is no instruction that adds products of pairs of 16-bit integers: those are no faster than floats here.

use std::arch::aarch64::*;

use super::sweep::{self, Floats, Pairs, Steps, Sweep, sweep, sweep_groups};
use super::thin::{Thin, thin};
use super::tiled::{Deal, Kernel, Scales, deal, interleave, interleave_floats};
use crate::lanes::{F32x4, Lanes};

pub(super) const KERNEL: Kernel = Kernel {
    lanes: 4,
    rows: 8,
    k_block: 288,
    thin: thin_8,
    floats: floats_8,
    integers: integers_8,
    transpose: F32x4::transpose,
    deal: deal_pieces,
    interleave: interleave_pieces,
    interleave_floats: interleave_floats_pieces,
};

impl Floats for F32x4 {
    #[inline(always)]
    unsafe fn steps<const MR: usize, const NV: usize>(s: Steps, sums: &mut [[float32x4_t; NV]; MR]) {
        if MR % 4 != 0 {
            // SAFETY: the trait's contract.
            return unsafe { sweep::steps::<Self, MR, NV>(s, sums) };
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

/// Four pairs of 16-bit integers.
struct Words;

impl Pairs for Words {
    type Floats = F32x4;
    type I = int32x4_t;
    const AHEAD: usize = 0;
    #[inline(always)]
    unsafe fn zero() -> int32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    unsafe fn splat(pair: *const f32) -> int32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vdupq_n_s32(pair.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> int32x4_t {
        // SAFETY: the trait's contract.
        unsafe { vld1q_s32(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(sum: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe {
            let (a, b) = (vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b));
            let (low, high) = (vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
            vaddq_s32(sum, vpaddq_s32(low, high))
        }
    }
    #[inline(always)]
    unsafe fn add(sum: float32x4_t, x: int32x4_t, a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // SAFETY: NEON is part of every 64-bit Arm.
        unsafe { vfmaq_f32(sum, vcvtq_f32_s32(x), vmulq_f32(a, b)) }
    }
}

unsafe fn floats_8(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x4, 8>(s) }
}

unsafe fn deal_pieces(d: Deal) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x4>(d) }
}

unsafe fn integers_8(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep_groups::<Words, 8>(s) }
}

unsafe fn interleave_pieces(d: Deal) {
    // SAFETY: the caller's promise.
    unsafe { interleave::<8>(d) }
}

unsafe fn interleave_floats_pieces(d: Deal, by: Scales) {
    // SAFETY: the caller's promise.
    unsafe { interleave_floats::<8>(d, by) }
}

unsafe fn thin_8(t: &Thin) {
    // SAFETY: the caller's promise.
    unsafe { thin::<F32x4, 8>(t) }
}
