//! The f32 tile on NEON: 8 rows of two 4-lane vectors.
//!
//! Four elements of the left operand are loaded at once and multiplied by lane: broadcasts from memory would take turns with the
//! multiplications on many Arm cores.

use std::arch::aarch64::*;

use super::sweep::{self, Steps, Sweep, Tile, deal, sweep};
use super::tiled::Kernel;
use crate::lanes::{F32x4, Lanes};

pub(super) const KERNEL: Kernel =
    Kernel { lanes: 4, rows: 8, k_block: 288, sweep: sweep_8, transpose: F32x4::transpose, deal: deal_pieces };

impl Tile for F32x4 {
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

unsafe fn sweep_8(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x4, 8>(s) }
}

unsafe fn deal_pieces(from: *const f32, count: usize, to: *mut f32, apart: usize) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x4>(from, count, to, apart) }
}
