//! Weights of four bits: an element is one of the sixteen values that there can be in its run of 32, so a table of them is made in a register and looked up. Two rows
//! share one register as their table: the second one's values lie 16 after the first's, at (bits and 15) or 16.

use std::arch::x86_64::*;

use super::runs::{Numbers, Run, Sixteen};
use crate::avx512::round;

/// How runs of nibbles lie in a group, whose first four bytes hold its numbers.
pub(super) trait Nibbles {
    /// Runs of a group, and its bytes.
    const RUNS: usize = 1;
    const BYTES: usize;

    /// The sixteen values that elements of run `at` can have, by two numbers of its group.
    ///
    /// # Safety
    /// The processor has AVX-512.
    unsafe fn values(group: &[u8], at: usize, numbers: [__m512; 2]) -> __m512;

    /// Which value each element of run `at` has: the lower four bits of 32 words. What is above is anything.
    ///
    /// # Safety
    /// As [`Nibbles::values`].
    unsafe fn words(group: &[u8], at: usize) -> __m512i;

    /// The same of two rows, the first one's in lower words and the second one's in upper ones: those of the first 16 elements, and those of the others.
    ///
    /// # Safety
    /// As [`Nibbles::values`].
    unsafe fn pairs(groups: [&[u8]; 2], at: usize) -> [__m512i; 2];
}

impl<N: Nibbles> Run for N {
    const RUNS: usize = N::RUNS;
    const BYTES: usize = N::BYTES;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { looked_up(N::words(group, at), N::values(group, at, halves(group))) }
    }

    #[inline(always)]
    unsafe fn numbers(rows: Sixteen, at: usize) -> Numbers {
        // SAFETY: the caller's promise; arrays of 16 floats are as large as registers.
        unsafe {
            let both = rows.four_bytes(at / N::RUNS * N::BYTES);
            let first = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
            let second = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(both)));
            std::mem::transmute::<[__m512; 2], Numbers>([first, second])
        }
    }

    #[inline(always)]
    unsafe fn two(groups: [&[u8]; 2], at: usize, numbers: &Numbers, number: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            // (No closure: where the compiler does not inline one, it has none of these instructions.)
            let first = N::values(groups[0], at, of_row(numbers, number));
            let table = round(first, N::values(groups[1], at, of_row(numbers, number + 1)));
            let (low, sixteen) = (_mm512_set1_epi16(15), _mm512_set1_epi16(16));
            let first = _mm512_and_si512(N::words(groups[0], at), low);
            let second = _mm512_ternarylogic_epi32::<0xea>(N::words(groups[1], at), low, sixteen);
            [_mm512_permutexvar_epi16(first, table), _mm512_permutexvar_epi16(second, table)]
        }
    }

    #[inline(always)]
    unsafe fn in_turn(first: &[u8], second: Option<&[u8]>, at: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let high = match second {
                Some(group) => N::values(group, at, halves(group)),
                None => _mm512_setzero_ps(),
            };
            let table = round(N::values(first, at, halves(first)), high);
            let (low, sixteen) = (_mm512_set1_epi32(0x000f_000f), _mm512_set1_epi32(0x0010_0000));
            let [a, b] = N::pairs([first, second.unwrap_or(first)], at);
            let a = _mm512_ternarylogic_epi32::<0xea>(a, low, sixteen);
            let b = _mm512_ternarylogic_epi32::<0xea>(b, low, sixteen);
            [_mm512_permutexvar_epi16(a, table), _mm512_permutexvar_epi16(b, table)]
        }
    }
}

/// The two numbers of one of sixteen rows.
#[inline(always)]
unsafe fn of_row(numbers: &Numbers, row: usize) -> [__m512; 2] {
    // SAFETY: the caller's promise.
    unsafe { [_mm512_set1_ps(numbers[0][row]), _mm512_set1_ps(numbers[1][row])] }
}

/// Which of sixteen values each of 32 elements has, by the lower four bits of words. The values are there twice, so that the fifth does not matter.
#[inline(always)]
unsafe fn looked_up(words: __m512i, values: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe { _mm512_permutexvar_epi16(words, round(values, values)) }
}

/// The two numbers of a group.
#[inline(always)]
unsafe fn halves(group: &[u8]) -> [__m512; 2] {
    // SAFETY: the caller's promise.
    unsafe { [half(group, 0), half(group, 2)] }
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

/// 16 bytes from byte `at` on.
#[inline(always)]
unsafe fn sixteen_bytes(block: &[u8], at: usize) -> __m128i {
    let from: &[u8] = &block[at..at + 16];
    // SAFETY: 16 bytes are read.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// The lower halves of 16 bytes from byte `at` on, as words, then the upper ones.
#[inline(always)]
unsafe fn halves_of_bytes(block: &[u8], at: usize) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        // Each byte becomes a word, in every half; those of the second half lose their lower bits.
        let bytes = _mm512_broadcast_i32x4(sixteen_bytes(block, at));
        // Which byte goes where, four words at a time; 0x80 stands for a zero.
        let place = |first: i64| first * 0x0001_0001_0001_0001 + 0x8003_8002_8001_8000_u64.cast_signed();
        let places =
            _mm512_setr_epi64(place(0), place(4), place(8), place(12), place(0), place(4), place(8), place(12));
        let four = 0x0004_0004_0004_0004;
        _mm512_srlv_epi16(_mm512_shuffle_epi8(bytes, places), _mm512_setr_epi64(0, 0, 0, 0, four, four, four, four))
    }
}

/// The bytes of two rows as words, one of each in turn, and the same without their lower halves.
#[inline(always)]
unsafe fn halves_of_both(a: __m128i, b: __m128i) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let both = beside(a, b);
        [both, _mm512_srli_epi32::<4>(both)]
    }
}

/// The bytes of `a` in lower words, those of `b` in upper ones. (What is above them is the same once more.)
#[inline(always)]
unsafe fn beside(a: __m128i, b: __m128i) -> __m512i {
    const PLACES: [u8; 64] = {
        let mut places = [0; 64];
        let mut at = 0;
        while at < 64 {
            places[at] = (at / 4 + at % 4 / 2 * 16) as u8;
            at += 1;
        }
        places
    };
    // SAFETY: the caller's promise; 64 bytes are read.
    unsafe {
        let both = _mm512_castsi256_si512(_mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b));
        _mm512_permutexvar_epi8(_mm512_loadu_si512(PLACES.as_ptr().cast()), both)
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
    const BYTES: usize = 18;

    #[inline(always)]
    unsafe fn values(_: &[u8], _: usize, [d, _]: [__m512; 2]) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mul_ps(d, integers(-8.0)) }
    }

    #[inline(always)]
    unsafe fn words(group: &[u8], _: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { halves_of_bytes(group, 2) }
    }

    #[inline(always)]
    unsafe fn pairs(groups: [&[u8]; 2], _: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { halves_of_both(sixteen_bytes(groups[0], 2), sixteen_bytes(groups[1], 2)) }
    }
}

impl Nibbles for Q4_1 {
    const BYTES: usize = 20;

    #[inline(always)]
    unsafe fn values(_: &[u8], _: usize, [d, m]: [__m512; 2]) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_ps(_mm512_mul_ps(d, integers(0.0)), m) }
    }

    #[inline(always)]
    unsafe fn words(group: &[u8], _: usize) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { halves_of_bytes(group, 4) }
    }

    #[inline(always)]
    unsafe fn pairs(groups: [&[u8]; 2], _: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe { halves_of_both(sixteen_bytes(groups[0], 4), sixteen_bytes(groups[1], 4)) }
    }
}

impl Q4K {
    /// The byte that the elements of run `at` begin at, two runs in the halves of 32 bytes.
    #[inline(always)]
    const fn elements_at(at: usize) -> usize {
        16 + 32 * (at / 2)
    }
}

impl Nibbles for Q4K {
    const RUNS: usize = 8;
    const BYTES: usize = 144;

    #[inline(always)]
    unsafe fn values(group: &[u8], at: usize, [d, m]: [__m512; 2]) -> __m512 {
        let (scale, min) = scale_and_min(group, at);
        // SAFETY: the caller's promise.
        unsafe {
            let d = _mm512_mul_ps(d, _mm512_set1_ps(f32::from(scale)));
            let m = _mm512_mul_ps(m, _mm512_set1_ps(f32::from(min)));
            _mm512_sub_ps(_mm512_mul_ps(d, integers(0.0)), m)
        }
    }

    #[inline(always)]
    unsafe fn words(group: &[u8], at: usize) -> __m512i {
        let from: &[u8] = &group[Self::elements_at(at)..][..32];
        // SAFETY: 32 bytes are read; the rest is the caller's promise.
        unsafe {
            let q = _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.as_ptr().cast()));
            if at.is_multiple_of(2) { q } else { _mm512_srli_epi16::<4>(q) }
        }
    }

    #[inline(always)]
    unsafe fn pairs(groups: [&[u8]; 2], at: usize) -> [__m512i; 2] {
        // SAFETY: the caller's promise.
        unsafe {
            let (from, more) = (Self::elements_at(at), Self::elements_at(at) + 16);
            let low = beside(sixteen_bytes(groups[0], from), sixteen_bytes(groups[1], from));
            let high = beside(sixteen_bytes(groups[0], more), sixteen_bytes(groups[1], more));
            if at.is_multiple_of(2) { [low, high] } else { [_mm512_srli_epi32::<4>(low), _mm512_srli_epi32::<4>(high)] }
        }
    }
}
