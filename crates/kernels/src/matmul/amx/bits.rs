//! Weights of five and six bits, whose low and high bits lie in two places of a block of 256.

use std::arch::x86_64::*;

use super::nibbles::{half, scale_and_min};
use super::runs::Run;
use crate::avx512::round;

pub(super) struct Q5K;
pub(super) struct Q6K;

/// `d q` or `d q + m` for the 32 signed bytes of a run, halves of which have scales of their own.
#[inline(always)]
unsafe fn scaled(q: __m256i, d: [__m512; 2], m: Option<__m512>) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        let of = |q: __m128i, d: __m512| {
            let product = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q)));
            m.map_or(product, |m| _mm512_add_ps(product, m))
        };
        round(of(_mm256_castsi256_si128(q), d[0]), of(_mm256_extracti128_si256::<1>(q), d[1]))
    }
}

/// `bits` of each of 32 bytes from byte `at` on, after so many others.
#[inline(always)]
unsafe fn part(block: &[u8], at: usize, after: usize, bits: i8) -> __m256i {
    let from: &[u8] = &block[at..at + 32];
    // SAFETY: 32 bytes are read; the rest is the caller's promise.
    unsafe {
        let all = _mm256_loadu_si256(from.as_ptr().cast());
        _mm256_and_si256(_mm256_srl_epi16(all, _mm_cvtsi32_si128(after as i32)), _mm256_set1_epi8(bits))
    }
}

impl Run for Q5K {
    const RUNS: usize = 8;
    const BYTES: usize = 176;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        let (block, run): (&[u8; 176], _) = (&group.as_chunks().0[0], at);
        // SAFETY: the caller's promise.
        unsafe {
            let (scale, min) = scale_and_min(block, run);
            let d = _mm512_mul_ps(half(block, 0), _mm512_set1_ps(f32::from(scale)));
            let m = _mm512_mul_ps(half(block, 2), _mm512_set1_ps(-f32::from(min)));
            let high = _mm256_slli_epi16::<4>(part(block, 16, run, 1));
            let low = part(block, 48 + 32 * (run / 2), 4 * (run % 2), 15);
            scaled(_mm256_or_si256(low, high), [d, d], Some(m))
        }
    }
}

impl Run for Q6K {
    const RUNS: usize = 8;
    const BYTES: usize = 210;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        let block: &[u8; 210] = &group.as_chunks().0[0];
        let (side, run) = (at / 4, at % 4);
        // SAFETY: the caller's promise.
        unsafe {
            let scale = |half: usize| _mm512_set1_ps(f32::from(block[192 + 8 * side + 2 * run + half] as i8));
            let d = half(block, 208);
            let high = _mm256_slli_epi16::<4>(part(block, 128 + 32 * side, 2 * run, 3));
            let low = part(block, 64 * side + 32 * (run % 2), 4 * (run / 2), 15);
            let q = _mm256_sub_epi8(_mm256_or_si256(low, high), _mm256_set1_epi8(32));
            scaled(q, [_mm512_mul_ps(d, scale(0)), _mm512_mul_ps(d, scale(1))], None)
        }
    }
}
