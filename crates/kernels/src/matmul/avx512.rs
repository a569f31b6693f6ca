//! The f32 tile on AVX-512: 12 rows of two 16-lane vectors.

use super::sweep::{Sweep, Tile, deal, sweep};
use super::tiled::Kernel;
use crate::lanes::{F32x16, Lanes};

pub(super) const KERNEL: Kernel =
    Kernel { lanes: 16, rows: 12, k_block: 1024, sweep: sweep_12, transpose: F32x16::transpose, deal: deal_pieces };

impl Tile for F32x16 {}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn sweep_12(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x16, 12>(s) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn deal_pieces(from: *const f32, count: usize, to: *mut f32, apart: usize) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x16>(from, count, to, apart) }
}
