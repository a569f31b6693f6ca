//! Weights of which every element is stored by itself: floats, and integers of eight bits.

use std::arch::x86_64::*;

use super::runs::Run;
use crate::avx512::round;

pub(super) struct Bf16;
pub(super) struct F16;
pub(super) struct F32;
pub(super) struct Q8_0;

impl Run for Bf16 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        // SAFETY: 64 bytes are read; the rest is the caller's promise.
        unsafe { _mm512_loadu_si512(group[at * 64..][..64].as_ptr().cast()) }
    }
}

impl Run for F16 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        let from: &[u8] = &group[at * 64..][..64];
        // SAFETY: twice 32 bytes are read; the rest is the caller's promise.
        unsafe {
            let half = |at: usize| _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().add(at).cast()));
            round(half(0), half(32))
        }
    }
}

impl Run for F32 {
    const BYTES: usize = 128;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        let from: &[u8] = &group[at * 128..][..128];
        // SAFETY: twice 64 bytes are read, of any alignment; the rest is the caller's promise.
        unsafe { round(_mm512_loadu_ps(from.as_ptr().cast()), _mm512_loadu_ps(from.as_ptr().add(64).cast())) }
    }
}

impl Run for Q8_0 {
    const BYTES: usize = 34;

    #[inline(always)]
    unsafe fn alone(group: &[u8], at: usize) -> __m512i {
        let block: &[u8; 34] = &group.as_chunks().0[at];
        let scale = i16::from_le_bytes([block[0], block[1]]);
        // SAFETY: twice 16 bytes are read; the rest is the caller's promise.
        unsafe {
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(scale));
            let half = |at: usize| {
                let integers = _mm512_cvtepi8_epi32(_mm_loadu_si128(block.as_ptr().add(at).cast()));
                _mm512_mul_ps(scale, _mm512_cvtepi32_ps(integers))
            };
            round(half(2), half(18))
        }
    }
}
