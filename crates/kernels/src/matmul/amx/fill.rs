//! Operands into bf16 tiles: the left one row by row, the weights in pairs of the sum, as `tdpbf16ps` wants them.
//!
//! A left tile is `[16 rows][32 k]`; a panel's tile is `[16 pairs of k][16 outputs][2]`. What no operand fills is zero.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Weight;
use super::super::avx512::transpose_16;
use super::super::product::Left;
use super::{K_TILE, PAIR};
use crate::Isa;
use crate::dequant::dequantize_row;

/// Rounds 32 floats to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn round(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Up to 32 rows and `len` columns of the left operand into two rows of tiles.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn left(left: Left, rows: Range<usize>, len: usize, to: &mut [f32]) {
    let steps = len.div_ceil(K_TILE);
    for (half, tiles) in to.chunks_exact_mut(steps * PAIR / 2).enumerate() {
        for (step, tile) in tiles.chunks_exact_mut(PAIR / 2).enumerate() {
            let ks = step * K_TILE..len.min((step + 1) * K_TILE);
            for (r, to) in tile.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let i = rows.start + half * 16 + r;
                let mut copy = [0.0; K_TILE];
                let from = if i >= rows.end {
                    &copy
                } else if left.k == 1 && ks.len() == K_TILE {
                    left.data[i * left.row + ks.start..].first_chunk().expect("the left operand holds this row")
                } else {
                    for (to, k) in copy.iter_mut().zip(ks.clone()) {
                        *to = left.data[i * left.row + k * left.k];
                    }
                    &copy
                };
                // SAFETY: `from` has 32 floats, `to` 64 bytes.
                unsafe {
                    let (low, high) = (_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from.as_ptr().add(16)));
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), round(low, high));
                }
            }
        }
    }
}

/// Columns `ks` of rows `js` of `w`, transposed, into a panel. `buffer` has 16 rows, `apart` floats each.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn from_rows(
    isa: Isa,
    w: &Weight,
    js: Range<usize>,
    ks: Range<usize>,
    buffer: &mut [f32],
    apart: usize,
    panel: &mut [f32],
) {
    for half in 0..2 {
        let j0 = js.start + half * 16;
        for (r, row) in buffer.chunks_exact_mut(apart).take(16).enumerate() {
            let (row, tail) = row.split_at_mut(ks.len());
            tail.fill(0.0);
            if j0 + r < js.end {
                dequantize_row(isa, w.ty, w.blocks(j0 + r, ks.start, ks.end), row);
            } else {
                row.fill(0.0);
            }
        }
        for (step, pair) in panel.chunks_exact_mut(PAIR).take(ks.len().div_ceil(K_TILE)).enumerate() {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (r, row) in rows.iter_mut().enumerate() {
                let from: &[f32; K_TILE] = buffer[r * apart + step * K_TILE..].first_chunk().expect("a padded row");
                // SAFETY: `from` has 32 floats.
                let (low, high) = unsafe { (_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from.as_ptr().add(16))) };
                *row = _mm512_castsi512_ps(round(low, high));
            }
            let tile = &mut pair[half * PAIR / 2..][..PAIR / 2];
            for (to, pairs) in tile.as_chunks_mut::<16>().0.iter_mut().zip(transpose_16(rows)) {
                // SAFETY: `to` has 64 bytes.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), pairs) };
            }
        }
    }
}

/// Columns `js` of rows `ks` of `w` into panels, two rows interleaved. `buffer` has room for two rows.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn from_cols(
    isa: Isa,
    w: &Weight,
    js: Range<usize>,
    ks: Range<usize>,
    buffer: &mut [f32],
    panels: &mut [f32],
) {
    let steps = ks.len().div_ceil(K_TILE);
    let (first, second) = buffer.split_at_mut(buffer.len() / 2);
    first.fill(0.0);
    second.fill(0.0);
    let interleave = interleave();
    for pair in 0..steps * K_TILE / 2 {
        for (k, row) in (ks.start + 2 * pair..).zip([&mut *first, &mut *second]) {
            let (row, _) = row.split_at_mut(js.len());
            if k < ks.end {
                dequantize_row(isa, w.ty, w.blocks(k, js.start, js.end), row);
            } else {
                row.fill(0.0);
            }
        }
        // Pair `pair` is row `pair mod 16` of tile `pair / 16`, for each 16 outputs.
        let (step, row) = (pair / 16, pair % 16);
        for (v, (low, high)) in first.as_chunks::<16>().0.iter().zip(second.as_chunks::<16>().0).enumerate() {
            let at = v / 2 * steps * PAIR + step * PAIR + v % 2 * (PAIR / 2) + row * 16;
            let to = &mut panels[at..at + 16];
            // SAFETY: `low` and `high` have 16 floats, `to` 64 bytes.
            unsafe {
                let both = round(_mm512_loadu_ps(low.as_ptr()), _mm512_loadu_ps(high.as_ptr()));
                _mm512_storeu_si512(to.as_mut_ptr().cast(), _mm512_permutexvar_epi16(interleave, both));
            }
        }
    }
}

/// Element `i` of the first 16, then element `i` of the second 16, for each `i`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave() -> __m512i {
    let order: [u16; 32] = std::array::from_fn(|i| (i / 2 + i % 2 * 16) as u16);
    // SAFETY: 64 bytes are read.
    unsafe { _mm512_loadu_si512(order.as_ptr().cast()) }
}
