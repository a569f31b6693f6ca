//! The f32 tile and the transposition of weights on AVX-512: 12 rows of two 16-lane vectors.

use std::arch::x86_64::*;

use super::lanes::{Lanes, Sweep, sweep};
use super::tiled::Kernel;
use crate::avx512::{mask, transpose_16};

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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn sweep_12(s: &Sweep) {
    // SAFETY: the caller's promise.
    unsafe { sweep::<F32x16, 12>(s) }
}

/// [`Kernel::transpose`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn transpose(from: *const f32, from_row: usize, rows: usize, to: *mut f32, to_row: usize, len: usize) {
    for k in (0..len).step_by(16) {
        // SAFETY: what is read and written of columns `k..k + 16` is inside both by the caller's promise.
        unsafe {
            let mut square = [_mm512_setzero_ps(); 16];
            for (r, x) in square.iter_mut().enumerate().take(rows) {
                *x = F32x16::load_part(from.add(r * from_row + k), len - k);
            }
            for (r, x) in transpose_16(square).into_iter().enumerate().take(len - k) {
                F32x16::store_part(to.add((k + r) * to_row), x, rows);
            }
        }
    }
}
