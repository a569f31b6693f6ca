//! The tiles on AVX2 with FMA: 6 rows of two vectors of 8.

use std::arch::x86_64::*;

use super::sweep::{Floats, Pairs, Sweep, sweep, sweep_groups};
use super::thin::{Thin, thin};
use super::tiled::{Deal, Kernel, Scales, deal, interleave, interleave_floats};
use crate::lanes::{F32x8, Lanes};

pub(super) const KERNEL: Kernel = Kernel {
    lanes: 8,
    rows: 6,
    k_block: 288,
    thin: thin_8,
    floats: floats_6,
    integers: integers_6,
    transpose: F32x8::transpose,
    deal: deal_pieces,
    interleave: interleave_pieces,
    interleave_floats: interleave_floats_pieces,
};

/// With `vpdpwssd` as AVX-VNNI has it, and as AVX-512 does.
pub(super) const VNNI: Kernel = Kernel { integers: vnni_6, ..KERNEL };
pub(super) const VNNI_OF_512: Kernel = Kernel { integers: vnni_of_512_6, ..KERNEL };

impl Floats for F32x8 {}

/// How pairs are multiplied and added: by two instructions, or by one of either encoding.
const TWO: u8 = 0;
const ONE: u8 = 1;
const ONE_OF_512: u8 = 2;

/// Eight pairs of 16-bit integers.
struct Words<const BY: u8>;

impl<const BY: u8> Pairs for Words<BY> {
    type Floats = F32x8;
    type I = __m256i;
    const AHEAD: usize = 0;
    #[inline(always)]
    unsafe fn zero() -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn splat(pair: *const f32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi32(pair.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_si256(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe {
            match BY {
                ONE => _mm256_dpwssd_avx_epi32(sum, a, b),
                ONE_OF_512 => _mm256_dpwssd_epi32(sum, a, b),
                _ => _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)),
            }
        }
    }
    #[inline(always)]
    unsafe fn add(sum: __m256, x: __m256i, a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), _mm256_mul_ps(a, b), sum) }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn floats_6(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x8, 6>(s) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn integers_6(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep_groups::<Words<TWO>, 6>(s) }
}

#[target_feature(enable = "avx2,fma,avxvnni")]
unsafe fn vnni_6(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep_groups::<Words<ONE>, 6>(s) }
}

#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512vnni")]
unsafe fn vnni_of_512_6(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep_groups::<Words<ONE_OF_512>, 6>(s) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn deal_pieces(d: Deal) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x8>(d) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn interleave_pieces(d: Deal) {
    // SAFETY: the caller's promise.
    unsafe { interleave::<16>(d) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn interleave_floats_pieces(d: Deal, by: Scales) {
    // SAFETY: the caller's promise.
    unsafe { interleave_floats::<16>(d, by) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn thin_8(t: &Thin) {
    // SAFETY: the caller's promise.
    unsafe { thin::<F32x8, 8>(t) }
}
