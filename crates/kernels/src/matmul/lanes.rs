//! The f32 tile that is held in registers, written once over a vector type: lanes run over outputs, so each output element is one
//! chain of fused multiply-adds over ascending `k`.

/// A vector of floats and what the tile needs of it.
///
/// # Safety
/// All functions need the instruction set that the type stands for; pointers need room for the floats that are read or written,
/// and no alignment.
pub(super) trait Lanes {
    type V: Copy;
    const LANES: usize;
    unsafe fn zero() -> Self::V;
    unsafe fn splat(x: *const f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    /// The first `count` floats, zeros after them.
    unsafe fn load_part(from: *const f32, count: usize) -> Self::V;
    /// `a b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn store(to: *mut f32, x: Self::V);
    /// Writes the first `count` floats only.
    unsafe fn store_part(to: *mut f32, x: Self::V, count: usize);
    /// [`steps`], or the same chains in a way that suits the vector better.
    #[inline(always)]
    unsafe fn steps<const MR: usize, const NV: usize>(s: Steps, sums: &mut [[Self::V; NV]; MR]) {
        // SAFETY: the trait's contract.
        unsafe { steps::<Self, MR, NV>(s, sums) }
    }
}

/// What a tile sums: `k` steps of its rows of the left operand and of its panel.
#[derive(Clone, Copy)]
pub(super) struct Steps {
    /// Element `(i, k)` lies at `i left_row + k left_k`.
    pub left: *const f32,
    pub left_row: usize,
    pub left_k: usize,
    /// Rows of two vectors.
    pub panel: *const f32,
    pub k: usize,
}

/// One panel of the right operand against rows of the left one: `out[i][j] = init[i][j] + Σ_k left(i, k) panel[k][j]`.
pub(super) struct Sweep {
    /// Element `(i, k)` lies at `i left_row + k left_k`.
    pub left: *const f32,
    pub left_row: usize,
    pub left_k: usize,
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

/// All rows of `s`, `MR` at a time, then what is left by powers of two.
///
/// # Safety
/// The processor has `L`'s instructions, and the pointers of `s` reach what its shape says.
#[inline(always)]
pub(super) unsafe fn sweep<L: Lanes, const MR: usize>(s: &Sweep) {
    // SAFETY: rows `i..i + step` are below `m`; the rest is the caller's promise.
    unsafe { if s.n > L::LANES { rows::<L, MR, 2>(s) } else { rows::<L, MR, 1>(s) } }
}

#[inline(always)]
unsafe fn rows<L: Lanes, const MR: usize, const NV: usize>(s: &Sweep) {
    let mut i = 0;
    // SAFETY: `i` plus the rows of a tile stays at most `m`.
    unsafe {
        while s.m - i >= MR {
            tile::<L, MR, NV>(s, i);
            i += MR;
        }
        if MR > 8 && s.m - i >= 8 {
            tile::<L, 8, NV>(s, i);
            i += 8;
        }
        if s.m - i >= 4 {
            tile::<L, 4, NV>(s, i);
            i += 4;
        }
        if s.m - i >= 2 {
            tile::<L, 2, NV>(s, i);
            i += 2;
        }
        if s.m - i >= 1 {
            tile::<L, 1, NV>(s, i);
        }
    }
}

#[inline(always)]
unsafe fn tile<L: Lanes, const MR: usize, const NV: usize>(s: &Sweep, row: usize) {
    let last = s.n - (NV - 1) * L::LANES;
    // SAFETY: rows `row..row + MR` and columns `..n` are inside all three operands; the last vector of a row is read and written
    // only as far as `last`. The panel has whole vectors.
    unsafe {
        let mut sums = [[L::zero(); NV]; MR];
        if !s.init.is_null() {
            for (i, sums) in sums.iter_mut().enumerate() {
                let at = s.init.add((row + i) * s.init_row);
                for (j, sum) in sums.iter_mut().enumerate() {
                    let at = at.add(j * L::LANES);
                    let whole = j + 1 < NV || last == L::LANES;
                    *sum = if whole { L::load(at) } else { L::load_part(at, last) };
                }
            }
        }
        let left = s.left.add(row * s.left_row);
        L::steps(Steps { left, left_row: s.left_row, left_k: s.left_k, panel: s.panel, k: s.k }, &mut sums);
        for (i, sums) in sums.iter().enumerate() {
            let at = s.out.add((row + i) * s.out_row);
            for (j, &sum) in sums.iter().enumerate() {
                let at = at.add(j * L::LANES);
                let whole = j + 1 < NV || last == L::LANES;
                if whole { L::store(at, sum) } else { L::store_part(at, sum, last) }
            }
        }
    }
}

/// Adds the products of `s` to the sums of a tile, one step after the other.
///
/// # Safety
/// The processor has `L`'s instructions, `MR` rows of the left operand have `k` elements, and the panel has `k` rows.
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
                let a = L::splat(left.wrapping_add(i * s.left_row));
                for (sum, &b) in sums.iter_mut().zip(&b) {
                    *sum = L::fma(a, b, *sum);
                }
            }
            left = left.wrapping_add(s.left_k);
            panel = panel.wrapping_add(2 * L::LANES);
        }
    }
}
