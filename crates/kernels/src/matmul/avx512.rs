//! The f32 tile and the transposition of weights on AVX-512: 12 rows of two 16-lane vectors.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Sweep, sweep};
use super::tiled::Kernel;

pub(super) const KERNEL: Kernel = Kernel { lanes: 16, rows: 12, sweep: sweep_12, transpose };

struct F32x16;

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
}

/// The lowest `count` lanes, 16 at most.
#[inline(always)]
fn mask(count: usize) -> __mmask16 {
    ((1_u32 << count) - 1) as u16
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn sweep_12(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x16, 12>(s) }
}

/// `to[k][r] = from[r][k]` for 16 rows `r` and `len` columns `k` rounded up to whole 16s, rows `from_row` and `to_row` apart.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn transpose(from: *const f32, from_row: usize, to: *mut f32, to_row: usize, len: usize) {
    for k in (0..len).step_by(16) {
        // SAFETY: columns `k..k + 16` of 16 rows are inside both buffers by the caller's promise.
        unsafe {
            let mut rows = [_mm512_setzero_ps(); 16];
            for (r, row) in rows.iter_mut().enumerate() {
                *row = _mm512_loadu_ps(from.add(r * from_row + k));
            }
            for (r, row) in transpose_16(rows).into_iter().enumerate() {
                _mm512_storeu_ps(to.add((k + r) * to_row), row);
            }
        }
    }
}

/// Transposes a square of 16 x 16 32-bit elements: pairs, quads, then quarters of a vector change places.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transpose_16(r: [__m512; 16]) -> [__m512; 16] {
    let mut quads = [_mm512_setzero_ps(); 16];
    for i in 0..4 {
        let [a, b, c, d] = [r[4 * i], r[4 * i + 1], r[4 * i + 2], r[4 * i + 3]];
        let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        // After this, quarter `q` of `quads[4 i + j]` holds column `4 q + j` of rows `4 i..4 i + 4`.
        quads[4 * i] = _mm512_shuffle_ps::<0x44>(ab, cd);
        quads[4 * i + 1] = _mm512_shuffle_ps::<0xee>(ab, cd);
        quads[4 * i + 2] = _mm512_shuffle_ps::<0x44>(ab_high, cd_high);
        quads[4 * i + 3] = _mm512_shuffle_ps::<0xee>(ab_high, cd_high);
    }
    let mut out = [_mm512_setzero_ps(); 16];
    for j in 0..4 {
        let [a, b, c, d] = [quads[j], quads[4 + j], quads[8 + j], quads[12 + j]];
        let even = [_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(c, d)];
        let odd = [_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(c, d)];
        out[j] = _mm512_shuffle_f32x4::<0x88>(even[0], even[1]);
        out[4 + j] = _mm512_shuffle_f32x4::<0x88>(odd[0], odd[1]);
        out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(even[0], even[1]);
        out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(odd[0], odd[1]);
    }
    out
}
