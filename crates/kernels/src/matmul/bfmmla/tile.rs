//! The instruction itself, and the tile of 8 by 8 sums that is held in registers: 16 blocks of 2 by 2.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{SIDE, STEP};

/// `sum + a bᵀ`, with `sum: [2, 2]` and `a, b: [2, 4]`.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfmmla(mut sum: float32x4_t, a: uint16x8_t, b: uint16x8_t) -> float32x4_t {
    // SAFETY: the feature is enabled; nothing but registers is touched.
    unsafe {
        asm!(
            "bfmmla {sum:v}.4s, {a:v}.8h, {b:v}.8h",
            sum = inout(vreg) sum, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Adds the products of a group of rows and a group of outputs to their sums.
///
/// # Safety
/// The processor has BF16.
#[target_feature(enable = "neon,bf16")]
pub(super) unsafe fn sum(rows: &[u16], outputs: &[u16], sums: &mut [[f32; SIDE]; SIDE]) {
    assert_eq!(rows.len(), outputs.len());
    let mut blocks = [[vdupq_n_f32(0.0); 4]; 4];
    for (p, blocks) in blocks.iter_mut().enumerate() {
        for (q, block) in blocks.iter_mut().enumerate() {
            // SAFETY: two floats of rows `2 p` and `2 p + 1`, inside both.
            let half = |r: usize| unsafe { vld1_f32(sums[2 * p + r][2 * q..2 * q + 2].as_ptr()) };
            *block = vcombine_f32(half(0), half(1));
        }
    }
    let pairs = |step: &[u16; SIDE * STEP]| {
        // SAFETY: a step has four times eight numbers.
        [0, 8, 16, 24].map(|at| unsafe { vld1q_u16(step.as_ptr().add(at)) })
    };
    for (rows, outputs) in rows.as_chunks().0.iter().zip(outputs.as_chunks().0) {
        let (a, b) = (pairs(rows), pairs(outputs));
        for (blocks, a) in blocks.iter_mut().zip(a) {
            for (block, b) in blocks.iter_mut().zip(b) {
                *block = bfmmla(*block, a, b);
            }
        }
    }
    for (p, blocks) in blocks.iter().enumerate() {
        for (q, &block) in blocks.iter().enumerate() {
            for (r, half) in [vget_low_f32(block), vget_high_f32(block)].into_iter().enumerate() {
                // SAFETY: two floats of row `2 p + r`, inside it.
                unsafe { vst1_f32(sums[2 * p + r][2 * q..2 * q + 2].as_mut_ptr(), half) };
            }
        }
    }
}
