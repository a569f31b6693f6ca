//! AVX-512: 16 floats.

use std::arch::x86_64::*;

use super::Lanes;
use crate::avx512::{mask, transpose_16};

pub(crate) struct F32x16;

impl Lanes for F32x16 {
    type V = __m512;
    const LANES: usize = 16;
    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(*x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> __m512 {
        // SAFETY: the trait's contract; lanes outside the mask are not read.
        unsafe { _mm512_maskz_loadu_ps(mask(count), from) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn store_part(to: *mut f32, x: __m512, count: usize) {
        // SAFETY: the trait's contract; lanes outside the mask are not written.
        unsafe { _mm512_mask_storeu_ps(to, mask(count), x) }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
        // SAFETY: the trait's contract.
        unsafe { transpose(from, from_row, rows, to, to_row, len) }
    }
}

/// [`Lanes::transpose`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
    let whole = match (rows, to_row) {
        (16, _) | (12, 12) => len / 4 * 4,
        _ => 0,
    };
    for k in (0..whole).step_by(4) {
        // SAFETY: what is read and written of columns `k..k + 4` is inside both by the caller's promise.
        unsafe {
            let (columns, to) = (four_columns(from.add(k), from_row, rows / 4), to.add(k * to_row));
            if rows == 16 {
                for (r, x) in columns.into_iter().enumerate() {
                    _mm512_storeu_ps(to.add(r * to_row), x);
                }
            } else {
                // Four columns of twelve are three registers. The last quarter of each column is its third once more.
                let [a, b, c, d] = columns;
                _mm512_storeu_ps(to, _mm512_insertf32x4::<3>(a, _mm512_castps512_ps128(b)));
                _mm512_storeu_ps(to.add(16), _mm512_shuffle_f32x4::<0x49>(b, c));
                let last = _mm512_alignr_epi32::<12>(_mm512_castps_si512(d), _mm512_castps_si512(c));
                _mm512_storeu_ps(to.add(32), _mm512_castsi512_ps(last));
            }
        }
    }
    for k in (whole..len).step_by(16) {
        // SAFETY: what is read and written of columns `k..k + 16` is inside both by the caller's promise.
        unsafe {
            let mut square = [_mm512_setzero_ps(); 16];
            for (r, x) in square.iter_mut().enumerate().take(rows) {
                *x = F32x16::load_part(from.add(r * from_row + k), len - k);
            }
            for (r, x) in transpose_16(square).into_iter().enumerate().take(len - k) {
                F32x16::store_part(to.add((k + r) * to_row), x, rows);
            }
        }
    }
}

/// Four columns of so many `quarters` of sixteen rows, three or four; the last one fills the register. Quarters of a register come from rows that lie four
/// apart, so that half of the turning is done where they are loaded.
///
/// # Safety
/// Four floats can be read from each row on.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn four_columns(from: *const f32, row: usize, quarters: usize) -> [__m512; 4] {
    let mut x = [_mm512_setzero_ps(); 4];
    for (r, x) in x.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let quarter = |q: usize| unsafe { _mm_loadu_ps(from.add((r + 4 * q) * row)) };
        let first = _mm512_castps128_ps512(quarter(0));
        let half = _mm512_insertf32x4::<1>(first, quarter(1));
        *x = _mm512_insertf32x4::<3>(_mm512_insertf32x4::<2>(half, quarter(2)), quarter(quarters - 1));
    }
    let (ab, cd) = (_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpacklo_ps(x[2], x[3]));
    let (ab_high, cd_high) = (_mm512_unpackhi_ps(x[0], x[1]), _mm512_unpackhi_ps(x[2], x[3]));
    [
        _mm512_shuffle_ps::<0x44>(ab, cd),
        _mm512_shuffle_ps::<0xee>(ab, cd),
        _mm512_shuffle_ps::<0x44>(ab_high, cd_high),
        _mm512_shuffle_ps::<0xee>(ab_high, cd_high),
    ]
}
