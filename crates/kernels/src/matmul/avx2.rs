//! The f32 tile on AVX2 with FMA: 6 rows of two 8-lane vectors.

use super::sweep::{Sweep, Tile, deal, sweep};
use super::tiled::Kernel;
use crate::lanes::{F32x8, Lanes};

pub(super) const KERNEL: Kernel =
    Kernel { lanes: 8, rows: 6, k_block: 288, sweep: sweep_6, transpose: F32x8::transpose, deal: deal_pieces };

impl Tile for F32x8 {}

#[target_feature(enable = "avx2,fma")]
unsafe fn sweep_6(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x8, 6>(s) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn deal_pieces(from: *const f32, count: usize, to: *mut f32, apart: usize) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x8>(from, count, to, apart) }
}
