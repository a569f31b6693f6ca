//! Sixteen elements at a time on AVX2 and AVX-512: the one step that all layouts end in.

use std::arch::x86_64::*;

use super::layouts;
use crate::BlockType;

/// What a layout needs of a vector width.
///
/// # Safety
/// All functions need the instruction set that the type stands for, and room for 16 floats at `to`, of any alignment.
pub(super) trait Sixteen {
    /// Writes `d q + m` for 16 signed bytes `q`; the product is rounded before the sum. `m` is -0.0 where a layout has none: that
    /// changes no float.
    unsafe fn affine(q: __m128i, d: f32, m: f32, to: *mut f32);
    /// Widens 16 half floats.
    unsafe fn halves(from: *const u8, to: *mut f32);
    /// Widens 16 bfloat16s.
    unsafe fn brains(from: *const u8, to: *mut f32);
}

struct Avx512;
struct Avx2;

impl Sixteen for Avx512 {
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: f32, m: f32, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(d), q), _mm512_set1_ps(m)));
        }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_storeu_si512(to.cast(), _mm512_slli_epi32::<16>(bits));
        }
    }
}

impl Sixteen for Avx2 {
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: f32, m: f32, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            for (half, q) in [q, _mm_srli_si128::<8>(q)].into_iter().enumerate() {
                let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
                let y = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(d), q), _mm256_set1_ps(m));
                _mm256_storeu_ps(to.add(8 * half), y);
            }
        }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            for half in 0..2 {
                let bits = _mm_loadu_si128(from.add(16 * half).cast());
                _mm256_storeu_ps(to.add(8 * half), _mm256_cvtph_ps(bits));
            }
        }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8, to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            for half in 0..2 {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16 * half).cast()));
                _mm256_storeu_si256(to.add(8 * half).cast(), _mm256_slli_epi32::<16>(bits));
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn avx512(ty: BlockType, src: &[u8], dst: &mut [f32]) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::row::<Avx512>(ty, src, dst) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn avx2(ty: BlockType, src: &[u8], dst: &mut [f32]) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::row::<Avx2>(ty, src, dst) }
}
