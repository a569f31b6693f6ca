//! Sixteen elements at a time on AVX2 and AVX-512, to f32 or rounded to bf16, and the byte arithmetic that layouts are taken apart with.

use std::arch::x86_64::*;

use super::bounds::{self, Halves};
use super::layouts::{self, At, Floats, Number, Sink, Sixteen, Writer};
use super::{ANY, Inverses, Source, Strip, integers};
use crate::matmul::int16::{Extent, ROUND};

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
    #[inline(always)]
    unsafe fn squared(self, sum: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(self, self, sum) }
    }
    #[inline(always)]
    unsafe fn fold([a, b, c, d]: [__m512; 4]) -> f32 {
        // SAFETY: as above.
        unsafe {
            let all = _mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d));
            fold_eight(_mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps::<1>(all)))
        }
    }
    #[inline(always)]
    unsafe fn integers(self, inverse: __m512, to: *mut i16) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_si256(to.cast(), to_words(self, inverse)) }
    }
    /// By a table of the 16 integers there can be.
    #[inline(always)]
    unsafe fn nibbles_to_integers<const A: i32, const B: i32>(
        q: [__m128i; 2],
        offset: i8,
        [d, m]: [__m512; 2],
        inverse: __m512,
        to: *mut i16,
    ) {
        // SAFETY: as above.
        unsafe {
            let table = to_words(table(offset, d, m), inverse);
            look_up_words([bits::<A>(q[0], 15), bits::<B>(q[1], 15)], table, to.cast());
        }
    }
    #[inline(always)]
    unsafe fn lookup_to_integers(q: [__m128i; 2], values: &[f32; 16], inverse: __m512, to: *mut i16) {
        // SAFETY: as above.
        unsafe { look_up_words(q, to_words(_mm512_loadu_ps(values.as_ptr()), inverse), to.cast()) }
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

/// The 16-bit integers nearest to `x` times `inverse`.
#[inline(always)]
unsafe fn to_words(x: __m512, inverse: __m512) -> __m256i {
    // SAFETY: the caller has AVX-512.
    unsafe {
        let sum = _mm512_fmadd_ps(x, inverse, _mm512_set1_ps(ROUND));
        _mm512_cvtepi32_epi16(_mm512_castps_si512(sum))
    }
}

/// Writes `table[q]` for 32 integers, of 16 words.
#[inline(always)]
unsafe fn look_up_words(q: [__m128i; 2], table: __m256i, to: *mut u16) {
    // SAFETY: the caller has AVX-512 and room for 32 words.
    unsafe {
        let q = _mm512_cvtepu8_epi16(_mm256_set_m128i(q[1], q[0]));
        _mm512_storeu_si512(to.cast(), _mm512_permutexvar_epi16(q, _mm512_castsi256_si512(table)));
    }
}

/// The sum of eight lanes, as [`crate::math::fold`] has it.
#[inline(always)]
unsafe fn fold_eight(x: __m256) -> f32 {
    // SAFETY: the caller has AVX2.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
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
            look_up_words(q, table, self.0.add(at.number()));
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
    type By = ();
    #[inline(always)]
    unsafe fn to(to: *mut u16, (): ()) -> Self {
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
    #[inline(always)]
    unsafe fn squared(self, sum: Eights) -> Eights {
        // SAFETY: as above.
        unsafe { [_mm256_fmadd_ps(self[0], self[0], sum[0]), _mm256_fmadd_ps(self[1], self[1], sum[1])] }
    }
    #[inline(always)]
    unsafe fn fold([a, b, c, d]: [Eights; 4]) -> f32 {
        // SAFETY: as above.
        unsafe {
            let low = _mm256_add_ps(_mm256_add_ps(a[0], c[0]), _mm256_add_ps(b[0], d[0]));
            let high = _mm256_add_ps(_mm256_add_ps(a[1], c[1]), _mm256_add_ps(b[1], d[1]));
            fold_eight(_mm256_add_ps(low, high))
        }
    }
    #[inline(always)]
    unsafe fn integers(self, inverse: __m256, to: *mut i16) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_si256(to.cast(), eights_to_words(self, inverse));
        }
    }
    /// By a table of the 16 integers there can be.
    #[inline(always)]
    unsafe fn nibbles_to_integers<const A: i32, const B: i32>(
        q: [__m128i; 2],
        offset: i8,
        [d, m]: [__m256; 2],
        inverse: __m256,
        to: *mut i16,
    ) {
        // SAFETY: as above.
        unsafe {
            let all = add(_mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), offset);
            let table = Eights::affine(all, d, m);
            look_up_bytes([bits::<A>(q[0], 15), bits::<B>(q[1], 15)], eights_to_words(table, inverse), to);
        }
    }
    #[inline(always)]
    unsafe fn lookup_to_integers(q: [__m128i; 2], values: &[f32; 16], inverse: __m256, to: *mut i16) {
        // SAFETY: as above.
        unsafe { look_up_bytes(q, eights_to_words(Eights::singles(values.as_ptr().cast()), inverse), to) }
    }
}

/// The 16-bit integers nearest to `x` times `inverse`.
#[inline(always)]
unsafe fn eights_to_words(x: Eights, inverse: __m256) -> __m256i {
    // SAFETY: the caller has AVX2 and FMA.
    unsafe {
        let (round, low) = (_mm256_set1_ps(ROUND), _mm256_set1_epi32(0xffff));
        let first = _mm256_and_si256(_mm256_castps_si256(_mm256_fmadd_ps(x[0], inverse, round)), low);
        let second = _mm256_and_si256(_mm256_castps_si256(_mm256_fmadd_ps(x[1], inverse, round)), low);
        // Packing works inside halves.
        _mm256_permute4x64_epi64::<0xd8>(_mm256_packus_epi32(first, second))
    }
}

/// Writes `table[q]` for 32 integers, of 16 words: their low bytes, and their high ones.
#[inline(always)]
unsafe fn look_up_bytes(q: [__m128i; 2], table: __m256i, to: *mut i16) {
    // SAFETY: the caller has AVX2 and room for 32 words.
    unsafe {
        let (first, second) = (_mm256_castsi256_si128(table), _mm256_extracti128_si256::<1>(table));
        let low = _mm_set1_epi16(0xff);
        let lows = _mm_packus_epi16(_mm_and_si128(first, low), _mm_and_si128(second, low));
        let highs = _mm_packus_epi16(_mm_srli_epi16::<8>(first), _mm_srli_epi16::<8>(second));
        for (i, q) in q.into_iter().enumerate() {
            let (low, high) = (_mm_shuffle_epi8(lows, q), _mm_shuffle_epi8(highs, q));
            let to = to.add(16 * i);
            _mm_storeu_si128(to.cast(), _mm_unpacklo_epi8(low, high));
            _mm_storeu_si128(to.add(8).cast(), _mm_unpackhi_epi8(low, high));
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
pub(super) unsafe fn avx512(src: Strip, dst: &mut [f32], apart: usize) {
    // SAFETY: the features are enabled here; the lengths agree by the caller's check.
    unsafe { layouts::write_rows::<Floats<__m512>>(src, dst, apart) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn dots_avx512(src: Source, x: &[f32], out: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::dots::<__m512>(src, x, out) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn avx2(src: Strip, dst: &mut [f32], apart: usize) {
    // SAFETY: as `avx512`.
    unsafe { layouts::write_rows::<Floats<Eights>>(src, dst, apart) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn dots_avx2(src: Source, x: &[f32], out: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::dots::<Eights>(src, x, out) }
}

/// By its own instructions.
struct Quick;

impl Halves for Quick {
    #[inline(always)]
    unsafe fn half(block: &[u8], at: usize) -> f32 {
        // SAFETY: the trait's contract.
        unsafe { half(block, at) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn bounds_of_rows(src: Strip, to: &mut [Extent]) {
    // SAFETY: as `avx512`.
    unsafe { bounds::rows::<Quick>(src, to) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn bounds_of_columns(src: Strip, to: &mut [Extent]) {
    // SAFETY: as `avx512`.
    unsafe { bounds::add_columns::<Quick>(src, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn squares_avx512(src: Strip, to: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { integers::squares::<__m512>(src, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn add_squares_avx512(src: Strip, to: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { integers::add_squares::<__m512>(src, to) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn integers_avx512(src: Strip, inverses: Inverses, to: &mut [i16], apart: usize) {
    // SAFETY: as `avx512`.
    unsafe { integers::integers::<__m512>(src, inverses, to, apart) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn squares_avx2(src: Strip, to: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { integers::squares::<Eights>(src, to) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn add_squares_avx2(src: Strip, to: &mut [f32]) {
    // SAFETY: as `avx512`.
    unsafe { integers::add_squares::<Eights>(src, to) }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn integers_avx2(src: Strip, inverses: Inverses, to: &mut [i16], apart: usize) {
    // SAFETY: as `avx512`.
    unsafe { integers::integers::<Eights>(src, inverses, to, apart) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn bf16(src: Source, dst: &mut [u16]) {
    // SAFETY: as `avx512`.
    unsafe { layouts::write::<Avx512Bf16, ANY>(src, dst) }
}
