//! The tiles on AVX-512: 12 rows of two vectors of 16.

use std::arch::x86_64::*;

use super::sweep::{Floats, Pairs, Sweep, sweep, sweep_groups};
use super::thin::{Thin, thin};
use super::tiled::{Deal, Kernel, Scales, deal, interleave, interleave_floats};
use crate::lanes::{F32x16, Lanes};

pub(super) const KERNEL: Kernel = Kernel {
    lanes: 16,
    rows: 12,
    k_block: 1024,
    thin: thin_16,
    floats: floats_12,
    integers: integers_12,
    transpose: F32x16::transpose,
    deal: deal_pieces,
    interleave: interleave_pieces,
    interleave_floats: interleave_floats_pieces,
};

/// With `vpdpwssd`.
pub(super) const VNNI: Kernel = Kernel { integers: vnni_12, ..KERNEL };

impl Floats for F32x16 {
    const AHEAD: usize = 16;
}

/// Sixteen pairs of 16-bit integers, multiplied and added by one instruction (`VNNI`) or by two.
struct Words<const VNNI: bool>;

impl<const VNNI: bool> Pairs for Words<VNNI> {
    type Floats = F32x16;
    type I = __m512i;
    const AHEAD: usize = 8;
    #[inline(always)]
    unsafe fn zero() -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn splat(pair: *const f32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi32(pair.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn dot(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { if VNNI { _mm512_dpwssd_epi32(sum, a, b) } else { _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)) } }
    }
    #[inline(always)]
    unsafe fn add(sum: __m512, x: __m512i, a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), _mm512_mul_ps(a, b), sum) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn floats_12(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x16, 12>(s) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn integers_12(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep_groups::<Words<false>, 12>(s) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
unsafe fn vnni_12(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep_groups::<Words<true>, 12>(s) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn deal_pieces(d: Deal) {
    // SAFETY: the caller's promise.
    unsafe { deal::<F32x16>(d) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn interleave_pieces(d: Deal) {
    // SAFETY: the caller's promise.
    unsafe { interleave::<32>(d) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn interleave_floats_pieces(d: Deal, by: Scales) {
    // SAFETY: the caller's promise.
    unsafe { interleave_floats::<32>(d, by) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn thin_16(t: &Thin) {
    // SAFETY: the caller's promise.
    unsafe { thin::<F32x16, 16>(t) }
}
