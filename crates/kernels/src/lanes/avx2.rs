//! AVX2 with FMA: 8 floats.

use std::arch::x86_64::*;

use super::Lanes;

pub(crate) struct F32x8;

impl Lanes for F32x8 {
    type V = __m256;
    const LANES: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_setzero_ps() }
    }
    #[inline(always)]
    unsafe fn splat(x: *const f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_broadcast_ss(&*x) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> __m256 {
        // SAFETY: the trait's contract; lanes outside the mask are not read.
        unsafe { _mm256_maskload_ps(from, lowest(count)) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m256) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_ps(to, x) }
    }
    #[inline(always)]
    unsafe fn store_part(to: *mut f32, x: __m256, count: usize) {
        // SAFETY: the trait's contract; lanes outside the mask are not written.
        unsafe { _mm256_maskstore_ps(to, lowest(count), x) }
    }
    #[inline(always)]
    unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
        // SAFETY: the trait's contract.
        unsafe { transpose(from, from_row, rows, to, to_row, len) }
    }
}

/// The sign bits of the lowest `count` lanes, 8 at most.
#[inline]
#[target_feature(enable = "avx2")]
fn lowest(count: usize) -> __m256i {
    _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
}

/// [`Lanes::transpose`].
#[target_feature(enable = "avx2,fma")]
unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
    for k in (0..len).step_by(8) {
        // SAFETY: what is read and written of columns `k..k + 8` is inside both by the caller's promise.
        unsafe {
            let mut square = [_mm256_setzero_ps(); 8];
            for (r, x) in square.iter_mut().enumerate().take(rows) {
                *x = F32x8::load_up_to(from.add(r * from_row + k), len - k);
            }
            for (r, x) in transpose_8(square).into_iter().enumerate().take(len - k) {
                F32x8::store_up_to(to.add((k + r) * to_row), x, rows);
            }
        }
    }
}

/// Transposes a square of 8 x 8 floats: pairs, quads, then halves of a vector change places.
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_8(r: [__m256; 8]) -> [__m256; 8] {
    let mut quads = [_mm256_setzero_ps(); 8];
    for i in 0..2 {
        let [a, b, c, d] = [r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]];
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        // After this, half `h` of `quads[4 i + j]` holds column `4 h + j` of rows `4 i..4 i + 4`.
        quads[4 * i] = _mm256_shuffle_ps::<0x44>(ab, cd);
        quads[4 * i + 1] = _mm256_shuffle_ps::<0xee>(ab, cd);
        quads[4 * i + 2] = _mm256_shuffle_ps::<0x44>(ab_high, cd_high);
        quads[4 * i + 3] = _mm256_shuffle_ps::<0xee>(ab_high, cd_high);
    }
    let mut out = [_mm256_setzero_ps(); 8];
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(quads[j], quads[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(quads[j], quads[4 + j]);
    }
    out
}
