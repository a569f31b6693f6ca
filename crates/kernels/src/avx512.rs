//! Moves inside AVX-512 registers that several kernels need: transposing squares, rounding to bf16, interleaving rows.

use std::arch::x86_64::*;

use half::bf16;

/// The lowest `count` lanes, all from 16 on.
#[inline(always)]
pub(crate) fn mask(count: usize) -> __mmask16 {
    if count >= 16 { !0 } else { (1 << count) - 1 }
}

/// The same of 32 lanes.
#[inline(always)]
pub(crate) fn mask_32(count: usize) -> __mmask32 {
    if count >= 32 { !0 } else { (1 << count) - 1 }
}

/// 2 to the power of `x`: of its whole part, times a polynomial for the rest. Within 3e-6, where a bf16 has 4e-3.
#[inline]
#[target_feature(enable = "avx512f,avx512dq")]
pub(crate) fn exp2(x: __m512) -> __m512 {
    // What is left above the next whole number below; nothing for an infinity.
    let rest = _mm512_reduce_ps::<0x09>(x);
    let mut p = _mm512_set1_ps(1.342_670_3e-2);
    for term in [5.224_244_3e-2, 2.412_802_1e-1, 6.930_448_4e-1, 1.0] {
        p = _mm512_fmadd_ps(p, rest, _mm512_set1_ps(term));
    }
    _mm512_scalef_ps(p, x)
}

/// Rounds 32 floats to bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn round(low: __m512, high: __m512) -> __m512i {
    // SAFETY: both are 64 bytes of plain bits.
    unsafe { std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low)) }
}

/// Up to 16 floats, zeros after them.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn floats(from: &[f32]) -> __m512 {
    // SAFETY: no more are read than there are.
    unsafe { _mm512_maskz_loadu_ps(mask(from.len()), from.as_ptr()) }
}

/// Up to 32 values in bf16, zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn halves(from: &[bf16]) -> __m512i {
    // SAFETY: no more are read than there are.
    unsafe { _mm512_maskz_loadu_epi16(mask_32(from.len()), from.as_ptr().cast()) }
}

/// Up to 32 floats, rounded to bf16, zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) fn rounded(from: &[f32]) -> __m512i {
    if let Some(whole) = from.first_chunk::<32>() {
        // SAFETY: 32 floats are read.
        return unsafe { round(_mm512_loadu_ps(whole.as_ptr()), _mm512_loadu_ps(whole.as_ptr().add(16))) };
    }
    let (low, high) = from.split_at(from.len().min(16));
    round(floats(low), floats(high))
}

/// 32 values in bf16 as floats: those at even places, and those at odd ones.
pub(crate) type Both = [__m512; 2];

/// Up to 32 of them, zeros after.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn load(from: &[bf16]) -> Both {
    let x = halves(from);
    let odd = _mm512_and_si512(x, _mm512_set1_epi32(0xffff_0000_u32.cast_signed()));
    [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(x)), _mm512_castsi512_ps(odd)]
}

/// Rounds and writes as many as there is room for.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(crate) fn store([even, odd]: Both, to: &mut [bf16]) {
    let x = _mm512_permutexvar_epi16(interleaved(), round(even, odd));
    // SAFETY: no more than there is room for.
    unsafe { _mm512_mask_storeu_epi16(to.as_mut_ptr().cast(), mask_32(to.len()), x) };
}

/// Where elements come from when 16 are followed by 16 and both are to alternate.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn interleaved() -> __m512i {
    const ORDER: [u16; 32] = {
        let mut order = [0; 32];
        let mut at = 0;
        while at < 16 {
            order[2 * at] = at as u16;
            order[2 * at + 1] = at as u16 + 16;
            at += 1;
        }
        order
    };
    // SAFETY: 64 bytes are read.
    unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) }
}

/// `a[0], b[0], a[1], b[1]` and so on, of 32 16-bit elements each.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn interleave(a: __m512i, b: __m512i) -> [__m512i; 2] {
    // Unpacking works inside quarters: these hold elements 8 q.. of both, and those 8 q + 4..; the quarters then change places.
    let (low, high) = (_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b));
    [
        _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high),
        _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high),
    ]
}

/// Transposes a square of 16 x 16 32-bit elements: pairs, quads, then quarters of a vector change places.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn transpose_16(r: [__m512; 16]) -> [__m512; 16] {
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

/// Transposes squares of 8 x 8 16-bit elements, in each quarter of the vectors one: elements, pairs, then quads change places.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn transpose_8(r: [__m512i; 8]) -> [__m512i; 8] {
    let mut pairs = r;
    for i in 0..4 {
        pairs[i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        pairs[4 + i] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    // `pairs[4 h + i]` holds columns `4 h..4 h + 4` of rows `2 i` and `2 i + 1`.
    let mut quads = r;
    for h in 0..2 {
        for i in 0..2 {
            let (a, b) = (pairs[4 * h + 2 * i], pairs[4 * h + 2 * i + 1]);
            quads[4 * h + i] = _mm512_unpacklo_epi32(a, b);
            quads[4 * h + 2 + i] = _mm512_unpackhi_epi32(a, b);
        }
    }
    // `quads[2 c + i]` holds columns `2 c` and `2 c + 1` of rows `4 i..4 i + 4`.
    let mut out = r;
    for c in 0..4 {
        out[2 * c] = _mm512_unpacklo_epi64(quads[2 * c], quads[2 * c + 1]);
        out[2 * c + 1] = _mm512_unpackhi_epi64(quads[2 * c], quads[2 * c + 1]);
    }
    out
}
