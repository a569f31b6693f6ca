//! Sixteen elements at a time on AVX2 and AVX-512, to f32 or rounded to bf16, and the byte arithmetic that layouts are taken apart with.

use std::arch::x86_64::*;

use super::Source;
use super::layouts::{self, Sixteen};

/// Sixteen small integers.
pub(super) type Bytes = __m128i;

/// The half float at byte `at`, widened.
///
/// # Safety
/// The processor has F16C.
#[inline(always)]
pub(super) unsafe fn half(block: &[u8], at: usize) -> f32 {
    let bits = i32::from(block[at]) | i32::from(block[at + 1]) << 8;
    // SAFETY: the caller's promise.
    unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))) }
}

/// Bytes `at..at + 16`.
#[inline(always)]
pub(super) fn bytes(block: &[u8], at: usize) -> Bytes {
    let from: &[u8] = &block[at..at + 16];
    // SAFETY: `from` has 16 bytes.
    unsafe { _mm_loadu_si128(from.as_ptr().cast()) }
}

/// Bits `SHIFT..` of each byte, as far as `mask` goes.
#[inline(always)]
pub(super) fn bits<const SHIFT: i32>(x: Bytes, mask: i8) -> Bytes {
    // SAFETY: SSE2 is part of x86-64. What crosses a byte's border is masked away.
    unsafe { _mm_and_si128(_mm_srli_epi16::<SHIFT>(x), _mm_set1_epi8(mask)) }
}

/// Each byte moved up by `SHIFT` bits, which are free.
#[inline(always)]
pub(super) fn left<const SHIFT: i32>(x: Bytes) -> Bytes {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_slli_epi16::<SHIFT>(x) }
}

/// The bits of both.
#[inline(always)]
pub(super) fn or(a: Bytes, b: Bytes) -> Bytes {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_or_si128(a, b) }
}

/// `n` added to each byte.
#[inline(always)]
pub(super) fn add(x: Bytes, n: i8) -> Bytes {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { _mm_add_epi8(x, _mm_set1_epi8(n)) }
}

/// The bytes of both, one of each in turn.
#[inline(always)]
pub(super) fn zip(a: Bytes, b: Bytes) -> [Bytes; 2] {
    // SAFETY: SSE2 is part of x86-64.
    unsafe { [_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)] }
}

/// 16 for each bit set in bytes `at` and `at + 1`, 0 for others: the fifth bits of 16 elements.
///
/// # Safety
/// The processor has AVX2, which brings SSSE3.
#[inline(always)]
pub(super) unsafe fn fifth(block: &[u8], at: usize) -> Bytes {
    let two = i16::from_le_bytes([block[at], block[at + 1]]);
    // SAFETY: the caller's promise.
    unsafe {
        let spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
        let each = _mm_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let set = _mm_and_si128(_mm_shuffle_epi8(_mm_set1_epi16(two), spread), each);
        _mm_and_si128(_mm_cmpeq_epi8(set, each), _mm_set1_epi8(16))
    }
}

struct Avx512;
struct Avx512Bf16;
struct Avx2;

impl Sixteen for Avx512 {
    type Out = f32;
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: f32, m: f32, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe {
            let q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
            _mm512_storeu_ps(to, _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(d), q), _mm512_set1_ps(m)));
        }
    }
    #[inline(always)]
    unsafe fn lookup(q: [__m128i; 2], values: &[f32; 16], to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let values = _mm512_loadu_ps(values.as_ptr());
            for (half, q) in q.into_iter().enumerate() {
                _mm512_storeu_ps(to.add(16 * half), _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(q), values));
            }
        }
    }
    #[inline(always)]
    unsafe fn singles(from: *const u8, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(to, _mm512_loadu_ps(from.cast())) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(to, _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_storeu_si512(to.cast(), _mm512_slli_epi32::<16>(bits));
        }
    }
}

/// Rounds 16 floats to bf16 and writes them.
#[inline(always)]
unsafe fn put_bf16(x: __m512, to: *mut u16) {
    // SAFETY: the trait's contract; both vectors are 32 bytes of plain bits.
    unsafe {
        let bits = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
        _mm256_storeu_si256(to.cast(), bits);
    }
}

/// Writes `values[q]` for 32 integers, rounded to bf16.
#[inline(always)]
unsafe fn look_up_bf16(q: [__m128i; 2], values: __m512, to: *mut u16) {
    // SAFETY: the trait's contract; the vectors that change type are 32 bytes of plain bits.
    unsafe {
        let table = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(values));
        let q = _mm512_cvtepu8_epi16(_mm256_set_m128i(q[1], q[0]));
        _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(q, _mm512_castsi256_si512(table)));
    }
}

impl Sixteen for Avx512Bf16 {
    type Out = u16;
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: f32, m: f32, to: *mut u16) {
        // SAFETY: the trait's contract.
        unsafe {
            let q = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q));
            put_bf16(_mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(d), q), _mm512_set1_ps(m)), to);
        }
    }
    /// By a table of the 16 values there can be.
    #[inline(always)]
    unsafe fn nibbles(q: [__m128i; 2], offset: i8, d: f32, m: f32, to: *mut u16) {
        // SAFETY: the trait's contract.
        unsafe {
            let all = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
            let all = _mm512_add_ps(all, _mm512_set1_ps(f32::from(offset)));
            let values = _mm512_add_ps(_mm512_mul_ps(_mm512_set1_ps(d), all), _mm512_set1_ps(m));
            look_up_bf16(q, values, to);
        }
    }
    #[inline(always)]
    unsafe fn lookup(q: [__m128i; 2], values: &[f32; 16], to: *mut u16) {
        // SAFETY: the trait's contract.
        unsafe { look_up_bf16(q, _mm512_loadu_ps(values.as_ptr()), to) }
    }
    #[inline(always)]
    unsafe fn singles(from: *const u8, to: *mut u16) {
        // SAFETY: the trait's contract.
        unsafe { put_bf16(_mm512_loadu_ps(from.cast()), to) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8, to: *mut u16) {
        // SAFETY: the trait's contract.
        unsafe { put_bf16(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast())), to) }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8, to: *mut u16) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(to.cast(), _mm256_loadu_si256(from.cast())) }
    }
}

impl Sixteen for Avx2 {
    type Out = f32;
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: f32, m: f32, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe {
            for (half, q) in [q, _mm_srli_si128::<8>(q)].into_iter().enumerate() {
                let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(q));
                let y = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(d), q), _mm256_set1_ps(m));
                _mm256_storeu_ps(to.add(8 * half), y);
            }
        }
    }
    /// Of the lower eight and of the upper eight, chosen by the fourth bit.
    #[inline(always)]
    unsafe fn lookup(q: [__m128i; 2], values: &[f32; 16], to: *mut f32) {
        // SAFETY: the trait's contract.
        unsafe {
            let [low, high] = [0, 8].map(|at| _mm256_loadu_ps(values.as_ptr().add(at)));
            for (run, q) in q.into_iter().flat_map(|q| [q, _mm_srli_si128::<8>(q)]).enumerate() {
                let q = _mm256_cvtepu8_epi32(q);
                let [low, high] = [low, high].map(|values| _mm256_permutevar8x32_ps(values, q));
                let upper = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(q));
                _mm256_storeu_ps(to.add(8 * run), _mm256_blendv_ps(low, high, upper));
            }
        }
    }
    #[inline(always)]
    unsafe fn singles(from: *const u8, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe {
            for half in 0..2 {
                _mm256_storeu_ps(to.add(8 * half), _mm256_loadu_ps(from.add(32 * half).cast()));
            }
        }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe {
            for half in 0..2 {
                let bits = _mm_loadu_si128(from.add(16 * half).cast());
                _mm256_storeu_ps(to.add(8 * half), _mm256_cvtph_ps(bits));
            }
        }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8, to: *mut Self::Out) {
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
pub(super) unsafe fn avx512(src: Source, dst: &mut [f32]) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::row::<Avx512>(src, dst) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn avx2(src: Source, dst: &mut [f32]) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::row::<Avx2>(src, dst) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn bf16(src: Source, dst: &mut [u16]) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::row::<Avx512Bf16>(src, dst) }
}
