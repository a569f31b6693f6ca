//! Weights of four bits: an element is one of the sixteen values that there can be in its run of 32, so a table of them is made in a register and looked up. Two rows
//! that are to be interleaved share one register as their table.

use std::arch::x86_64::*;

use super::runs::Run;
use crate::avx512::round;

/// How a run of nibbles lies in its row.
pub(super) trait Nibbles {
    /// The sixteen values that elements of run `at` can have, and which one each of the 32 has.
    ///
    /// # Safety
    /// The processor has AVX-512.
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i);
}

impl<N: Nibbles> Run for N {
    #[inline(always)]
    unsafe fn one(row: &[u8], at: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let (values, q) = N::take(row, at);
            _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(q), round(values, values))
        }
    }

    #[inline(always)]
    unsafe fn two(rows: [Option<&[u8]>; 2], at: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let take = |row: Option<&[u8]>| match row {
                Some(row) => N::take(row, at),
                None => (_mm512_setzero_ps(), _mm256_setzero_si256()),
            };
            let ((low, a), (high, b)) = (take(rows[0]), take(rows[1]));
            // The second row's values lie 16 after the first's.
            let (table, b) = (round(low, high), _mm256_or_si256(b, _mm256_set1_epi8(16)));
            // Unpacking works inside halves.
            let (even, odd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
            [_mm256_permute2x128_si256::<0x20>(even, odd), _mm256_permute2x128_si256::<0x31>(even, odd)]
                .map(|q| _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(q), table))
        }
    }
}

pub(super) struct Q4_0;
pub(super) struct Q4_1;
pub(super) struct Q4K;

/// The half float at byte `at` in all lanes.
#[inline(always)]
pub(super) unsafe fn half(block: &[u8], at: usize) -> __m512 {
    let bits = i16::from_le_bytes([block[at], block[at + 1]]);
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(bits)) }
}

/// `offset`, `offset + 1` and so on.
#[inline(always)]
unsafe fn integers(offset: f32) -> __m512 {
    // SAFETY: the caller's promise.
    unsafe {
        let all = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
        _mm512_add_ps(all, _mm512_set1_ps(offset))
    }
}

/// The lower halves of 16 bytes from byte `at` on, then the upper ones.
#[inline(always)]
unsafe fn halves_of_bytes(block: &[u8], at: usize) -> __m256i {
    let from: &[u8] = &block[at..at + 16];
    // SAFETY: 16 bytes are read; the rest is the caller's promise.
    unsafe {
        let q = _mm_loadu_si128(from.as_ptr().cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(q), q);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// The scale and the minimum of a run of Q4_K or Q5_K, of which eight are a block: six bits each, packed in its bytes 4 to 16.
#[inline(always)]
pub(super) fn scale_and_min(block: &[u8], run: usize) -> (u8, u8) {
    let packed = |i: usize| block[4 + i];
    if run < 4 {
        (packed(run) & 63, packed(run + 4) & 63)
    } else {
        let low = packed(run + 4);
        ((low & 15) | ((packed(run - 4) >> 2) & 0x30), (low >> 4) | ((packed(run) >> 2) & 0x30))
    }
}

impl Nibbles for Q4_0 {
    #[inline(always)]
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i) {
        let block: &[u8; 18] = &row.as_chunks().0[at];
        // SAFETY: the caller's promise.
        unsafe { (_mm512_mul_ps(half(block, 0), integers(-8.0)), halves_of_bytes(block, 2)) }
    }
}

impl Nibbles for Q4_1 {
    #[inline(always)]
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i) {
        let block: &[u8; 20] = &row.as_chunks().0[at];
        // SAFETY: the caller's promise.
        unsafe {
            let values = _mm512_add_ps(_mm512_mul_ps(half(block, 0), integers(0.0)), half(block, 2));
            (values, halves_of_bytes(block, 4))
        }
    }
}

impl Nibbles for Q4K {
    #[inline(always)]
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i) {
        let (block, run): (&[u8; 144], _) = (&row.as_chunks().0[at / 8], at % 8);
        let (scale, min) = scale_and_min(block, run);
        let from = &block[16 + 32 * (run / 2)..][..32];
        // SAFETY: 32 bytes are read; the rest is the caller's promise.
        unsafe {
            let d = _mm512_mul_ps(half(block, 0), _mm512_set1_ps(f32::from(scale)));
            let m = _mm512_mul_ps(half(block, 2), _mm512_set1_ps(f32::from(min)));
            let values = _mm512_sub_ps(_mm512_mul_ps(d, integers(0.0)), m);
            let q = _mm256_loadu_si256(from.as_ptr().cast());
            let q = if run.is_multiple_of(2) { q } else { _mm256_srli_epi16::<4>(q) };
            (values, _mm256_and_si256(q, _mm256_set1_epi8(15)))
        }
    }
}
