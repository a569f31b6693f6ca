//! The f32 tile that is held in registers, written once over a vector type: lanes run over outputs, so each output element is one
//! chain of fused multiply-adds over ascending `k`.

use crate::lanes::Lanes;

/// A vector of floats with which a tile sums.
pub(super) trait Tile: Lanes {
    /// [`steps`], or the same chains in a way that suits the vector better.
    #[inline(always)]
    unsafe fn steps<const MR: usize, const NV: usize>(s: Steps, sums: &mut [[Self::V; NV]; MR]) {
        // SAFETY: as for all of a vector's functions.
        unsafe { steps::<Self, MR, NV>(s, sums) }
    }
}

/// What a tile sums: `k` steps of its rows of the left operand and of its panel.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// Element `(i, k)` lies at `i + k left_k`.
    pub left: *const f32,
    pub left_k: usize,
    /// Rows of two vectors.
    pub panel: *const f32,
    pub k: usize,
}

/// One panel of the right operand against rows of the left one: `out[i][j] = init[i][j] + Σ_k left(i, k) panel[k][j]`.
pub(super) struct Sweep {
    /// Tiles of rows one after the other: each has `k` steps of one element of each of its rows.
    pub left: *const f32,
    /// Rows of two vectors.
    pub panel: *const f32,
    pub m: usize,
    pub k: usize,
    /// Outputs of this panel, two vectors at most.
    pub n: usize,
    /// Null for zeros; `init_row` is 0 for a bias.
    pub init: *const f32,
    pub init_row: usize,
    pub out: *mut f32,
    pub out_row: usize,
}

/// Deals `count` pieces of two vectors, side by side from `from` on, to places that lie `apart` from `to` on.
///
/// # Safety
/// The processor has `L`'s instructions, and all pieces can be read and written.
#[inline(always)]
pub(super) unsafe fn deal<L: Lanes>(from: *const f32, count: usize, to: *mut f32, apart: usize) {
    for piece in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, to) = (from.add(piece * 2 * L::LANES), to.add(piece * apart));
            L::store(to, L::load(from));
            L::store(to.add(L::LANES), L::load(from.add(L::LANES)));
        }
    }
}

/// All rows of `s`, `MR` at a time, then what is left by powers of two.
///
/// # Safety
/// The processor has `L`'s instructions, and the pointers of `s` reach what its shape says.
#[inline(always)]
pub(super) unsafe fn sweep<L: Tile, const MR: usize>(s: &Sweep) {
    // SAFETY: rows `i..i + step` are below `m`; the rest is the caller's promise.
    unsafe { if s.n > L::LANES { rows::<L, MR, 2>(s) } else { rows::<L, MR, 1>(s) } }
}

#[inline(always)]
unsafe fn rows<L: Tile, const MR: usize, const NV: usize>(s: &Sweep) {
    // SAFETY: rows from `i` on are as many as their tile has, or as are left of them.
    unsafe {
        let whole = s.m / MR * MR;
        for i in (0..whole).step_by(MR) {
            tile::<L, MR, NV>(s, i, s.left.add(i * s.k), MR);
        }
        let rest = s.m - whole;
        let left = s.left.wrapping_add(whole * s.k);
        let mut i = 0;
        if MR > 8 && rest - i >= 8 {
            tile::<L, 8, NV>(s, whole + i, left.add(i), rest);
            i += 8;
        }
        if rest - i >= 4 {
            tile::<L, 4, NV>(s, whole + i, left.add(i), rest);
            i += 4;
        }
        if rest - i >= 2 {
            tile::<L, 2, NV>(s, whole + i, left.add(i), rest);
            i += 2;
        }
        if rest - i >= 1 {
            tile::<L, 1, NV>(s, whole + i, left.add(i), rest);
        }
    }
}

/// Rows `row..row + MR`, whose elements begin at `left`, `left_k` from one step to the next.
#[inline(always)]
unsafe fn tile<L: Tile, const MR: usize, const NV: usize>(s: &Sweep, row: usize, left: *const f32, left_k: usize) {
    let count = |j: usize| s.n - j * L::LANES;
    // SAFETY: rows `row..row + MR` and columns `..n` are inside all three operands. The panel has whole vectors.
    unsafe {
        let mut sums = [[L::zero(); NV]; MR];
        if !s.init.is_null() {
            for (i, sums) in sums.iter_mut().enumerate() {
                let at = s.init.add((row + i) * s.init_row);
                for (j, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load_up_to(at.add(j * L::LANES), count(j));
                }
            }
        }
        L::steps(Steps { left, left_k, panel: s.panel, k: s.k }, &mut sums);
        for (i, sums) in sums.iter().enumerate() {
            let at = s.out.add((row + i) * s.out_row);
            for (j, &sum) in sums.iter().enumerate() {
                L::store_up_to(at.add(j * L::LANES), sum, count(j));
            }
        }
    }
}

/// Adds the products of `s` to the sums of a tile, one step after the other.
///
/// # Safety
/// The processor has `L`'s instructions, `MR` rows of the left operand have `k` steps, and the panel has `k` rows.
#[inline(always)]
pub(super) unsafe fn steps<L: Lanes + ?Sized, const MR: usize, const NV: usize>(s: Steps, sums: &mut [[L::V; NV]; MR]) {
    let (mut left, mut panel) = (s.left, s.panel);
    // SAFETY: the caller's promise.
    unsafe {
        for _ in 0..s.k {
            let mut b = [L::zero(); NV];
            for (j, b) in b.iter_mut().enumerate() {
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
