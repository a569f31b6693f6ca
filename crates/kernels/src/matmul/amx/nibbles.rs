//! Weights of four bits straight into bf16 tiles, without a buffer between: an element is one of the sixteen values that there can be in its run
//! of 32, so a table of them is made in a register and looked up. Two rows that are to be interleaved share one register as their table.
//!
//! The bits are those of [`crate::dequant`]; other layouts go through it.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Weight;
use super::fill::Place;
use super::{K_TILE, SIDE, TILE};
use crate::BlockType;

/// A matrix whose rows are runs of 32 elements of four bits.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<'a> {
    ty: BlockType,
    data: &'a [u8],
    /// Bytes of a row.
    stride: usize,
    rows: usize,
}

impl<'a> Nibbles<'a> {
    /// The matrix as such, where it is one.
    pub fn of(w: &Weight<'a>) -> Option<Self> {
        let ours = matches!(w.ty, BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4_K);
        let data = w.bytes().filter(|_| ours)?;
        Some(Self { ty: w.ty, data, stride: data.len() / w.rows.max(1), rows: w.rows })
    }

    /// Columns `ks` of rows `js` into tiles of rows.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16.
    pub unsafe fn rows(self, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.ty {
                BlockType::Q4_0 => rows::<Q4_0>(self, js, ks, place, to),
                BlockType::Q4_1 => rows::<Q4_1>(self, js, ks, place, to),
                _ => rows::<Q4K>(self, js, ks, place, to),
            }
        }
    }

    /// Columns `js` of rows `ks` into tiles of columns.
    ///
    /// # Safety
    /// As [`Nibbles::rows`].
    pub unsafe fn cols(self, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.ty {
                BlockType::Q4_0 => cols::<Q4_0>(self, js, ks, place, to),
                BlockType::Q4_1 => cols::<Q4_1>(self, js, ks, place, to),
                _ => cols::<Q4K>(self, js, ks, place, to),
            }
        }
    }

    /// A row; no bytes where there is no such row.
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [u8] {
        if row < self.rows { &self.data[row * self.stride..(row + 1) * self.stride] } else { &[] }
    }

    /// Asks for the runs `runs` of a row, if there is such a row.
    #[inline(always)]
    fn fetch<R: Run>(&self, row: usize, runs: &Range<usize>) {
        let (from, to) = (R::begins(runs.start), R::begins(runs.end));
        for line in self.row(row).get(from..to).unwrap_or_default().chunks(64) {
            // SAFETY: a hint; it faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
}

/// How a run lies in its row.
trait Run {
    /// Roughly the byte that run `at` begins at.
    fn begins(at: usize) -> usize;
    /// The sixteen values that elements of run `at` can have, and which one each of the 32 has.
    ///
    /// # Safety
    /// The processor has AVX-512.
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i);
}

struct Q4_0;
struct Q4_1;
struct Q4K;

/// The half float at byte `at` in all lanes.
#[inline(always)]
unsafe fn half(block: &[u8], at: usize) -> __m512 {
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

impl Run for Q4_0 {
    #[inline(always)]
    fn begins(at: usize) -> usize {
        at * 18
    }

    #[inline(always)]
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i) {
        let block: &[u8; 18] = &row.as_chunks().0[at];
        // SAFETY: the caller's promise.
        unsafe { (_mm512_mul_ps(half(block, 0), integers(-8.0)), halves_of_bytes(block, 2)) }
    }
}

impl Run for Q4_1 {
    #[inline(always)]
    fn begins(at: usize) -> usize {
        at * 20
    }

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

impl Run for Q4K {
    #[inline(always)]
    fn begins(at: usize) -> usize {
        at * 18
    }

    /// Eight runs are a block; their scales and minima have six bits, packed in its bytes 4 to 16.
    #[inline(always)]
    unsafe fn take(row: &[u8], at: usize) -> (__m512, __m256i) {
        let (block, run): (&[u8; 144], _) = (&row.as_chunks().0[at / 8], at % 8);
        let packed = |i: usize| block[4 + i];
        let (scale, min) = if run < 4 {
            (packed(run) & 63, packed(run + 4) & 63)
        } else {
            let low = packed(run + 4);
            ((low & 15) | ((packed(run - 4) >> 2) & 0x30), (low >> 4) | ((packed(run) >> 2) & 0x30))
        };
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

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn rows<R: Run>(w: Nibbles, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
    let runs = ks.start / K_TILE..ks.end / K_TILE;
    for (half, tiles) in to.chunks_exact_mut(place.steps * TILE).enumerate().take(js.len().div_ceil(SIDE) * 2) {
        let first = js.start + half * 16;
        let mut from: [&[u8]; 16] = [&[]; 16];
        from.iter_mut().zip(first..js.end).for_each(|(from, row)| *from = w.row(row));
        let tiles = tiles[place.first * TILE..].as_chunks_mut::<TILE>().0;
        for (ahead, (run, tile)) in (first + 16..).zip(runs.clone().zip(tiles)) {
            if ahead < js.end.min(first + 32) {
                w.fetch::<R>(ahead, &runs);
            }
            for (row, to) in from.into_iter().zip(tile.as_chunks_mut::<16>().0) {
                // SAFETY: the features are enabled here; 64 bytes are written.
                unsafe {
                    let mut found = _mm512_setzero_si512();
                    if !row.is_empty() {
                        let (values, q) = R::take(row, run);
                        let table = crate::avx512::round(values, values);
                        found = _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(q), table);
                    }
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), found);
                }
            }
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn cols<R: Run>(w: Nibbles, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
    let runs = js.start / SIDE..js.end / SIDE;
    let end = ks.end;
    for (step, k0) in ks.step_by(K_TILE).enumerate() {
        for (v, run) in runs.clone().enumerate() {
            // Each run of columns asks for its share of the rows of the next step.
            for row in K_TILE * v / runs.len()..K_TILE * (v + 1) / runs.len() {
                w.fetch::<R>(k0 + K_TILE + row, &runs);
            }
            let tiles = &mut to[(v * place.steps + place.first + step) * 2 * TILE..][..2 * TILE];
            let (left, right) = tiles.split_at_mut(TILE);
            let places = left.as_chunks_mut::<16>().0.iter_mut().zip(right.as_chunks_mut::<16>().0);
            for (k, (left, right)) in (k0..).step_by(2).zip(places) {
                // SAFETY: the features are enabled here; twice 64 bytes are written.
                unsafe {
                    let take = |k: usize| match k < end {
                        true => R::take(w.row(k), run),
                        false => (_mm512_setzero_ps(), _mm256_setzero_si256()),
                    };
                    let ((low, a), (high, b)) = (take(k), take(k + 1));
                    // The second row's values lie 16 after the first's.
                    let (table, b) = (crate::avx512::round(low, high), _mm256_or_si256(b, _mm256_set1_epi8(16)));
                    // Unpacking works inside halves.
                    let (even, odd) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                    let pairs = [
                        (_mm256_permute2x128_si256::<0x20>(even, odd), left),
                        (_mm256_permute2x128_si256::<0x31>(even, odd), right),
                    ];
                    for (q, to) in pairs {
                        let found = _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(q), table);
                        _mm512_storeu_si512(to.as_mut_ptr().cast(), found);
                    }
                }
            }
        }
    }
}
