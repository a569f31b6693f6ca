//! The tile that is held in registers, written once over a vector type: lanes run over outputs. A sweep takes the rows of a left operand
//! over one panel of the right one, tile by tile.

mod floats;
mod integers;

pub(super) use floats::Floats;
#[cfg(target_arch = "aarch64")]
pub(super) use floats::{Steps, steps};
pub(super) use integers::{Pairs, sweep_groups};

/// Vectors with which a tile sums, and how.
pub(super) trait Tile {
    /// Outputs of a vector.
    const LANES: usize;

    /// The sums of rows `row..row + MR`, whose first step lies at `left`, `left_k` from one step to the next.
    ///
    /// # Safety
    /// The processor has the vectors' instructions, the rows are below `s.m`, the left operand has all their steps, and the rest is as [`Sweep`] says.
    unsafe fn tile<const MR: usize, const NV: usize>(s: &Sweep, row: usize, left: *const f32, left_k: usize);
}

/// One panel of the right operand against rows of the left one: `out[i][j] = init[i][j] + Σ_k left(i, k) panel[k][j]`. What a step holds
/// is the tile's matter: an element of each row and output, or a pair of 16-bit integers.
pub(super) struct Sweep {
    /// Tiles of rows one after the other: each has `left_steps` steps of one element of each of its rows.
    pub left: *const f32,
    pub left_steps: usize,
    /// Rows of two vectors, one for each step.
    pub panel: *const f32,
    pub m: usize,
    /// The first step, and how many there are of the sum and of what it goes on with.
    pub first: usize,
    pub k: usize,
    pub tail: usize,
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
/// The processor has `T`'s instructions, and the pointers of `s` reach what its shape says.
#[inline(always)]
pub(super) unsafe fn sweep<T: Tile, const MR: usize>(s: &Sweep) {
    // SAFETY: rows `i..i + step` are below `m`; the rest is the caller's promise.
    unsafe { if s.n > T::LANES { rows::<T, MR, 2>(s) } else { rows::<T, MR, 1>(s) } }
}

#[inline(always)]
unsafe fn rows<T: Tile, const MR: usize, const NV: usize>(s: &Sweep) {
    // SAFETY: rows from `i` on are as many as their tile has, or as are left of them.
    unsafe {
        let whole = s.m / MR * MR;
        for i in (0..whole).step_by(MR) {
            T::tile::<MR, NV>(s, i, s.left.add(i * s.left_steps + s.first * MR), MR);
        }
        let rest = s.m - whole;
        let left = s.left.wrapping_add(whole * s.left_steps + s.first * rest);
        let mut i = 0;
        if MR > 8 && rest - i >= 8 {
            T::tile::<8, NV>(s, whole + i, left.add(i), rest);
            i += 8;
        }
        if rest - i >= 4 {
            T::tile::<4, NV>(s, whole + i, left.add(i), rest);
            i += 4;
        }
        if rest - i >= 2 {
            T::tile::<2, NV>(s, whole + i, left.add(i), rest);
            i += 2;
        }
        if rest - i >= 1 {
            T::tile::<1, NV>(s, whole + i, left.add(i), rest);
        }
    }
}
