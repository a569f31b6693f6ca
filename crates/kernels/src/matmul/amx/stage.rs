//! Sums on their way from and to the output. Squares of 32 by 32 are summed in a thread's memory and written in long pieces of rows:
//! tiles stored to rows that lie pages apart would stall the loads that follow them.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::Start;
use super::super::out::Out;
use super::SIDE;
use crate::Element;
use crate::amx::Beside;
use crate::avx512::{mask, mask_32, round, transpose_8, transpose_16};

/// Cache lines that are asked for beside a step of a sum at most.
const MOST_LINES: usize = 4;

/// What an output is stored as.
pub(super) trait Stored: Element {
    /// Elements of a cache line, which is also how wide a part is that is turned: see [`Stored::turn`].
    const LINE: usize = 64 / size_of::<Self>();

    /// The elements of `lanes` from `at` on.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16, and they can be read.
    unsafe fn load(at: *const Self, lanes: __mmask16) -> __m512;

    /// Transposes [`Stored::LINE`] rows of 16 sums that lie [`SIDE`] apart, and writes the first `count` elements of each of the first `rows` rows that come of it, `n` apart from `to` on.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16, all sums can be read, and the elements written.
    unsafe fn turn(sums: *const f32, rows: usize, count: usize, to: *mut Self, n: usize);

    /// Writes `count` elements from `at` on, 32 at most.
    ///
    /// # Safety
    /// The processor has AVX-512 with BF16, and they can be written.
    unsafe fn store_pair(at: *mut Self, count: usize, low: __m512, high: __m512);
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load(at: *const Self, lanes: __mmask16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_maskz_loadu_ps(lanes, at) }
    }

    #[inline(always)]
    unsafe fn turn(sums: *const f32, rows: usize, count: usize, to: *mut Self, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut tile = [_mm512_setzero_ps(); 16];
            for (r, x) in tile.iter_mut().enumerate() {
                *x = _mm512_loadu_ps(sums.add(r * SIDE));
            }
            let lanes = mask(count);
            for (r, x) in transpose_16(tile).into_iter().enumerate().take(rows) {
                _mm512_mask_storeu_ps(to.add(r * n), lanes, x);
            }
        }
    }

    #[inline(always)]
    unsafe fn store_pair(at: *mut Self, count: usize, low: __m512, high: __m512) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm512_mask_storeu_ps(at, mask(count), low);
            _mm512_mask_storeu_ps(at.wrapping_add(16), mask(count.saturating_sub(16)), high);
        }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load(at: *const Self, lanes: __mmask16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = _mm512_castsi512_si256(_mm512_maskz_loadu_epi16(u32::from(lanes), at.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
        }
    }

    #[inline(always)]
    unsafe fn turn(sums: *const f32, rows: usize, count: usize, to: *mut Self, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            // Rounded, two rows share a register; those of a quarter of the line are eight apart.
            let mut quarters = [[_mm512_setzero_si512(); 8]; 2];
            for (half, both) in quarters.iter_mut().enumerate() {
                let from = sums.add(16 * half * SIDE);
                for (r, both) in both.iter_mut().enumerate() {
                    *both = round(_mm512_loadu_ps(from.add(r * SIDE)), _mm512_loadu_ps(from.add((r + 8) * SIDE)));
                }
                *both = transpose_8(*both);
            }
            let [low, high] = quarters;
            let lanes = mask_32(count);
            for (r, (low, high)) in low.into_iter().zip(high).enumerate() {
                let (first, second) =
                    (_mm512_shuffle_i32x4::<0x88>(low, high), _mm512_shuffle_i32x4::<0xdd>(low, high));
                for (r, x) in [(r, first), (r + 8, second)] {
                    if r < rows {
                        _mm512_mask_storeu_epi16(to.add(r * n).cast(), lanes, x);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store_pair(at: *mut Self, count: usize, low: __m512, high: __m512) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mask_storeu_epi16(at.cast(), mask_32(count), round(low, high)) };
    }
}

/// Up to 32 rows and the columns of a task. Square `q` holds columns `32 q..` of them, `transposed` or not.
pub(super) struct Stage {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub transposed: bool,
}

impl Stage {
    /// Fills the squares with what the sums begin with, unless that is zero.
    ///
    /// # Safety
    /// The processor has AVX-512, and no other task touches these rows and columns of the output.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn begin<T: Stored>(&self, start: Start, out: &Out<T>, sums: &mut [f32]) {
        match start {
            Start::Zero => {}
            // SAFETY: as many numbers as columns.
            Start::Bias(bias) => unsafe { self.bring(bias[self.cols.clone()].as_ptr(), 0, sums) },
            // SAFETY: the caller's promise.
            Start::Output => unsafe {
                self.bring(out.tile(self.rows.clone(), self.cols.clone()).cast_const(), out.n(), sums);
            },
        }
    }

    /// Fills the squares with rows that lie `apart` from `at` on.
    ///
    /// # Safety
    /// As [`Stage::begin`], and all rows and columns can be read there.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn bring<T: Stored>(&self, at: *const T, apart: usize, sums: &mut [f32]) {
        for (q, sums) in sums.chunks_exact_mut(SIDE * SIDE).take(self.cols.len().div_ceil(SIDE)).enumerate() {
            let n = SIDE.min(self.cols.len() - q * SIDE);
            for half in (0..n).step_by(16) {
                let mask = mask(n - half);
                for i in (0..self.rows.len()).step_by(16) {
                    let mut tile = [_mm512_setzero_ps(); 16];
                    for (r, x) in tile.iter_mut().enumerate().take(self.rows.len() - i) {
                        // SAFETY: row `i + r` and the masked columns lie inside the stage.
                        *x = unsafe { T::load(at.add((i + r) * apart + q * SIDE + half), mask) };
                    }
                    let (tile, to) =
                        if self.transposed { (transpose_16(tile), half * SIDE + i) } else { (tile, i * SIDE + half) };
                    for (r, x) in tile.into_iter().enumerate() {
                        let to = &mut sums[to + r * SIDE..][..16];
                        // SAFETY: `to` has 16 floats.
                        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) };
                    }
                }
            }
        }
    }

    /// Asks for the output's cache lines beside `steps`, to be read or written after them.
    pub fn ahead<T: Stored>(&self, out: &Out<T>, steps: usize) -> Ahead {
        let at = out.tile(self.rows.clone(), self.cols.clone());
        let [bytes, apart] = [self.cols.len(), out.n()].map(|len| len * size_of::<T>());
        Ahead::new(at, self.rows.len(), bytes, apart, steps)
    }

    /// Asks for the output's cache lines at once, to be read now.
    pub fn fetch<T: Stored>(&self, out: &Out<T>) {
        let at = out.tile(self.rows.clone(), self.cols.clone());
        for i in 0..self.rows.len() {
            for j in (0..self.cols.len()).step_by(T::LINE) {
                // SAFETY: a hint; it faults at no address.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.wrapping_add(i * out.n() + j).cast()) };
            }
        }
    }

    /// Parts that the squares are written in: 16 rows of one cache line each where they are transposed, and otherwise rows, which go out in long pieces.
    fn parts<T: Stored>(&self) -> usize {
        if self.transposed { self.rows.len().div_ceil(16) * self.cols.len().div_ceil(T::LINE) } else { self.rows.len() }
    }

    /// Writes the squares to the output.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn end<T: Stored>(&self, out: &Out<T>, sums: &[f32]) {
        let at = out.tile(self.rows.clone(), self.cols.clone());
        for part in 0..self.parts::<T>() {
            // SAFETY: the caller's promise.
            unsafe { self.write(at, out.n(), sums, part) };
        }
    }

    /// Writes one part to the output, whose place for this stage is `at`, with rows `n` apart.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[inline(always)]
    unsafe fn write<T: Stored>(&self, at: *mut T, n: usize, sums: &[f32], part: usize) {
        if self.transposed {
            let across = self.cols.len().div_ceil(T::LINE);
            let (i, j) = (part / across * 16, part % across * T::LINE);
            let from = &sums[j / SIDE * SIDE * SIDE + j % SIDE * SIDE + i..][..(T::LINE - 1) * SIDE + 16];
            // SAFETY: as many rows of sums, each with 16 floats from here on; the rows and columns that are left lie inside the stage.
            unsafe { T::turn(from.as_ptr(), self.rows.len() - i, self.cols.len() - j, at.add(i * n + j), n) };
            return;
        }
        for (q, sums) in sums.chunks_exact(SIDE * SIDE).take(self.cols.len().div_ceil(SIDE)).enumerate() {
            let left = self.cols.len() - q * SIDE;
            let from = &sums[part * SIDE..][..SIDE];
            // SAFETY: 32 floats; row `part` and the columns that are left lie inside the stage.
            unsafe {
                let (low, high) = (_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from.as_ptr().add(16)));
                T::store_pair(at.add(part * n + q * SIDE), left.min(SIDE), low, high);
            }
        }
    }
}

/// Cache lines that are asked for beside the steps of a sum, as many at each until all are, so that there is room for the tiles that are on their way. (A number that
/// changes from step to step is guessed wrongly by the processor.)
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// The next line, and where its row ends.
    at: *const u8,
    end: *const u8,
    /// Bytes of a row up to there, and from there to the next one.
    bytes: usize,
    apart: usize,
    /// Lines that are left, and how many at a time.
    left: usize,
    each: usize,
}

impl Ahead {
    /// Nothing.
    pub const NONE: Self = Self { at: std::ptr::null(), end: std::ptr::null(), bytes: 0, apart: 0, left: 0, each: 0 };

    /// Asks for rows of `bytes` that lie `apart` from `at` on, as many of `rows` as there is room for beside `steps`.
    pub fn new<T>(at: *const T, rows: usize, bytes: usize, apart: usize, steps: usize) -> Self {
        if rows * bytes * steps == 0 {
            return Self::NONE;
        }
        let (rows, bytes) = if bytes == apart { (1, rows * bytes) } else { (rows, bytes) };
        let aligned = at.addr().is_multiple_of(64) && (rows == 1 || apart.is_multiple_of(64));
        let lines = (bytes + if aligned { 0 } else { 63 }).div_ceil(64);
        let (at, bytes) = (at.cast::<u8>(), 64 * lines);
        let each = (rows * lines).div_ceil(steps).min(MOST_LINES);
        Self { at, end: at.wrapping_add(bytes), bytes, apart: apart.wrapping_sub(bytes), left: rows * lines, each }
    }
}

impl<const N: usize> Beside for [Ahead; N] {
    #[inline(always)]
    fn part(&mut self) {
        for ahead in self {
            for _ in 0..ahead.each.min(ahead.left) {
                // SAFETY: a hint; it faults at no address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(ahead.at.cast()) };
                ahead.at = ahead.at.wrapping_add(64);
                if ahead.at == ahead.end {
                    ahead.at = ahead.at.wrapping_add(ahead.apart);
                    ahead.end = ahead.at.wrapping_add(ahead.bytes);
                }
                ahead.left -= 1;
            }
        }
    }
}
