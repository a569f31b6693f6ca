//! Sixteen elements at a time on AVX2 and AVX-512, to f32 or rounded to bf16, and the byte arithmetic that layouts are taken apart with.

use std::arch::x86_64::*;

use super::Source;
use super::layouts::{self, At, Floats, Number, Sink, Sixteen, Writer};

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

impl Sixteen for __m512 {
    type Number = __m512;
    #[inline(always)]
    unsafe fn number(x: f32) -> __m512 {
        // SAFETY: the trait's contract, here and below.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn half(block: &[u8], at: usize) -> __m512 {
        let bits = i16::from_le_bytes([block[at], block[at + 1]]);
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_set1_epi16(bits)) }
    }
    /// Widened together.
    #[inline(always)]
    unsafe fn two_halves(block: &[u8], at: usize) -> [__m512; 2] {
        let bits = i32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
        // SAFETY: as above.
        unsafe {
            let both = _mm512_cvtph_ps(_mm256_set1_epi32(bits));
            [_mm512_moveldup_ps(both), _mm512_movehdup_ps(both)]
        }
    }
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: __m512, m: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_add_ps(_mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(q))), m) }
    }
    /// By a table of the 16 values there can be; a look-up takes no notice of more than four bits.
    #[inline(always)]
    unsafe fn nibbles<const SHIFT: i32>(q: __m128i, offset: i8, d: __m512, m: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let q = _mm512_cvtepu8_epi32(q);
            let q = if SHIFT == 0 { q } else { _mm512_srli_epi32::<4>(q) };
            _mm512_permutexvar_ps(q, table(offset, d, m))
        }
    }
    #[inline(always)]
    unsafe fn lookup(q: __m128i, values: &[f32; 16]) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(q), _mm512_loadu_ps(values.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn singles(from: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, self) }
    }
    #[inline(always)]
    unsafe fn times(self, x: *const f32, sum: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(self, _mm512_loadu_ps(x), sum) }
    }
}

/// `d (n + offset) + m` for `n` from 0 to 15.
#[inline(always)]
unsafe fn table(offset: i8, d: __m512, m: __m512) -> __m512 {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let all = _mm512_setr_ps(0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.);
        let all = _mm512_add_ps(all, _mm512_set1_ps(f32::from(offset)));
        _mm512_add_ps(_mm512_mul_ps(d, all), m)
    }
}

/// Writes bfloat16s, as AVX-512 rounds them.
struct Avx512Bf16(*mut u16);

impl Avx512Bf16 {
    /// `values[q]` for 32 integers, rounded to bf16.
    #[inline(always)]
    unsafe fn look_up(&mut self, at: At, q: [__m128i; 2], values: __m512) {
        // SAFETY: the trait's contract; the vectors that change type are 32 bytes of plain bits.
        unsafe {
            let table = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(values));
            let q = _mm512_cvtepu8_epi16(_mm256_set_m128i(q[1], q[0]));
            let found = _mm512_permutexvar_epi16(q, _mm512_castsi256_si512(table));
            _mm512_storeu_si512(self.0.add(at.number()).cast(), found);
        }
    }
}

impl Sink for Avx512Bf16 {
    type Sixteen = __m512;
    #[inline(always)]
    unsafe fn put(&mut self, at: At, x: __m512) {
        // SAFETY: the trait's contract; both vectors are 32 bytes of plain bits.
        unsafe {
            let bits = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
            _mm256_storeu_si256(self.0.add(at.number()).cast(), bits);
        }
    }
    /// By a table of the 16 values there can be.
    #[inline(always)]
    unsafe fn nibbles<const A: i32, const B: i32>(&mut self, at: At, q: [Bytes; 2], offset: i8, by: [Number<Self>; 2]) {
        // SAFETY: the trait's contract.
        unsafe { self.look_up(at, [bits::<A>(q[0], 15), bits::<B>(q[1], 15)], table(offset, by[0], by[1])) }
    }
    #[inline(always)]
    unsafe fn lookup(&mut self, at: At, q: [Bytes; 2], values: &[f32; 16]) {
        // SAFETY: the trait's contract.
        unsafe { self.look_up(at, q, _mm512_loadu_ps(values.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn brains(&mut self, at: At, from: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_si256(self.0.add(at.number()).cast(), _mm256_loadu_si256(from.cast())) }
    }
}

impl Writer for Avx512Bf16 {
    type Out = u16;
    #[inline(always)]
    fn to(to: *mut u16) -> Self {
        Self(to)
    }
}

/// Twice eight floats.
type Eights = [__m256; 2];

impl Sixteen for Eights {
    type Number = __m256;
    #[inline(always)]
    unsafe fn number(x: f32) -> __m256 {
        // SAFETY: the trait's contract, here and below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn half(block: &[u8], at: usize) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_set1_ps(half(block, at)) }
    }
    #[inline(always)]
    unsafe fn affine(q: __m128i, d: __m256, m: __m256) -> Eights {
        // SAFETY: as above.
        unsafe {
            let [low, high] = [_mm256_cvtepi8_epi32(q), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(q))];
            [
                _mm256_add_ps(_mm256_mul_ps(d, _mm256_cvtepi32_ps(low)), m),
                _mm256_add_ps(_mm256_mul_ps(d, _mm256_cvtepi32_ps(high)), m),
            ]
        }
    }
    /// Of the lower eight and of the upper eight, chosen by the fourth bit.
    #[inline(always)]
    unsafe fn lookup(q: __m128i, values: &[f32; 16]) -> Eights {
        // SAFETY: as above.
        unsafe {
            let lower = _mm256_loadu_ps(values.as_ptr());
            let upper = _mm256_loadu_ps(values[8..].as_ptr());
            let (first, second) = (_mm256_cvtepu8_epi32(q), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(q)));
            [look_up_eight(first, lower, upper), look_up_eight(second, lower, upper)]
        }
    }
    #[inline(always)]
    unsafe fn singles(from: *const u8) -> Eights {
        // SAFETY: as above.
        unsafe { [_mm256_loadu_ps(from.cast()), _mm256_loadu_ps(from.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn halves(from: *const u8) -> Eights {
        // SAFETY: as above.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }
    #[inline(always)]
    unsafe fn brains(from: *const u8) -> Eights {
        // SAFETY: as above.
        unsafe {
            let (low, high) = (_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast()));
            let (low, high) = (_mm256_cvtepu16_epi32(low), _mm256_cvtepu16_epi32(high));
            [_mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)), _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high))]
        }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(to, self[0]);
            _mm256_storeu_ps(to.add(8), self[1]);
        }
    }
    #[inline(always)]
    unsafe fn times(self, x: *const f32, sum: Eights) -> Eights {
        // SAFETY: as above.
        unsafe {
            [
                _mm256_fmadd_ps(self[0], _mm256_loadu_ps(x), sum[0]),
                _mm256_fmadd_ps(self[1], _mm256_loadu_ps(x.add(8)), sum[1]),
            ]
        }
    }
}

/// Of `lower` by the lower three bits, or of `upper` where the fourth is set.
#[inline(always)]
unsafe fn look_up_eight(q: __m256i, lower: __m256, upper: __m256) -> __m256 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let (low, high) = (_mm256_permutevar8x32_ps(lower, q), _mm256_permutevar8x32_ps(upper, q));
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(q)))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn avx512(src: Source, dst: &mut [f32]) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::write::<Floats<__m512>>(src, dst) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn dots_avx512(src: Source, x: &[f32], out: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::dots::<__m512>(src, x, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn avx2(src: Source, dst: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::write::<Floats<Eights>>(src, dst) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots_avx2(src: Source, x: &[f32], out: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::dots::<Eights>(src, x, out) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn bf16(src: Source, dst: &mut [u16]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::write::<Avx512Bf16>(src, dst) }
}
