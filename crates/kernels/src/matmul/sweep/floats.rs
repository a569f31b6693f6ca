//! Tiles of floats: a step is one element of each row and output, and each output is one chain of fused multiply-adds over ascending `k`.

use super::{Sweep, Tile};
use crate::fetch;
use crate::lanes::Lanes;

/// A vector of floats with which a tile sums.
pub(in super::super) trait Floats: Lanes {
    /// How many steps ahead both operands are asked for; 0 where panels are short enough to lie in the first-level cache.
    const AHEAD: usize = 0;

    /// [`steps`], or the same chains in a way that suits the vector better.
    #[inline(always)]
    unsafe fn steps<const MR: usize, const NV: usize>(s: Steps, sums: &mut [[Self::V; NV]; MR]) {
        // SAFETY: as for all of a vector's functions.
        unsafe { steps::<Self, MR, NV>(s, sums) }
    }
}

/// What a tile sums: `k` steps of its rows of the left operand and of its panel.
#[derive(Clone, Copy)]
pub(in super::super) struct Steps {
    /// Element `(i, k)` lies at `i + k left_k`.
    pub left: *const f32,
    pub left_k: usize,
    /// Rows of two vectors.
    pub panel: *const f32,
    pub k: usize,
}

impl<L: Floats> Tile for L {
    const LANES: usize = L::LANES;

    #[inline(always)]
    unsafe fn tile<const MR: usize, const NV: usize>(s: &Sweep, row: usize, left: *const f32, left_k: usize) {
        let count = |j: usize| s.n - j * <L as Lanes>::LANES;
        // SAFETY: rows `row..row + MR` and columns `..n` are inside all three operands. The panel has whole vectors.
        unsafe {
            let mut sums = [[L::zero(); NV]; MR];
            if !s.init.is_null() {
                for (i, sums) in sums.iter_mut().enumerate() {
                    let at = s.init.add((row + i) * s.init_row);
                    for (j, sum) in sums.iter_mut().enumerate() {
                        *sum = L::load_up_to(at.add(j * <L as Lanes>::LANES), count(j));
                    }
                }
            }
            let panel = s.panel.add(s.first * 2 * <L as Lanes>::LANES);
            L::steps(Steps { left, left_k, panel, k: s.k + s.tail }, &mut sums);
            for (i, sums) in sums.iter().enumerate() {
                let at = s.out.add((row + i) * s.out_row);
                for (j, &sum) in sums.iter().enumerate() {
                    L::store_up_to(at.add(j * <L as Lanes>::LANES), sum, count(j));
                }
            }
        }
    }
}

/// Adds the products of `s` to the sums of a tile, one step after the other.
///
/// # Safety
/// The processor has `L`'s instructions, `MR` rows of the left operand have `k` steps, and the panel has `k` rows.
#[inline(always)]
pub(in super::super) unsafe fn steps<L: Floats + ?Sized, const MR: usize, const NV: usize>(
    s: Steps,
    sums: &mut [[L::V; NV]; MR],
) {
    let (mut left, mut panel) = (s.left, s.panel);
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..s.k {
            if L::AHEAD > 0 {
                fetch::line(left.wrapping_add(L::AHEAD * s.left_k).cast());
            }
            let mut b = [L::zero(); NV];
            for (j, b) in b.iter_mut().enumerate() {
                if L::AHEAD > 0 {
                    fetch::line(panel.wrapping_add((2 * L::AHEAD + j) * L::LANES).cast());
                }
                *b = L::load(panel.add(j * L::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let a = L::splat(left.wrapping_add(i));
                for (sum, &b) in sums.iter_mut().zip(&b) {
                    *sum = L::fma(a, b, *sum);
                }
            }
            left = left.wrapping_add(s.left_k);
            panel = panel.wrapping_add(2 * L::LANES);
        }
    }
}
