//! Sums on their way from and to the output. Squares of 32 by 32 are summed in a thread's memory and written in long pieces of rows:
//! tiles stored to rows that lie pages apart would stall the loads that follow them.

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;

use super::super::Start;
use super::super::out::Out;
use super::SIDE;
use crate::amx::Beside;
use crate::avx512::{mask, mask_32, round, transpose_8, transpose_16};
use crate::{Element, fetch};

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

/// A square: up to 32 rows and columns of the output. Its sums are `transposed` or not. What is done with it comes in [`PARTS`](crate::amx::PARTS).
pub(super) struct Stage {
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub transposed: bool,
}

impl Stage {
    /// Fills a part of the square with what the sums begin with, unless that is zero.
    ///
    /// # Safety
    /// The processor has AVX-512, and no other task touches these rows and columns of the output.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn begin<T: Stored>(&self, start: Start, out: &Out<T>, part: usize, sums: &mut [f32]) {
        match start {
            Start::Zero => {}
            // SAFETY: as many numbers as columns.
            Start::Bias(bias) => unsafe { self.bring(bias[self.cols.clone()].as_ptr(), 0, part, sums) },
            // SAFETY: the caller's promise.
            Start::Output => unsafe { self.bring(self.place(out).cast_const(), out.n(), part, sums) },
        }
    }

    /// Where the square begins in the output.
    fn place<T>(&self, out: &Out<T>) -> *mut T {
        out.tile(self.rows.clone(), self.cols.clone())
    }

    /// Fills a part, a tile, with rows that lie `apart` from `at` on.
    ///
    /// # Safety
    /// As [`Stage::begin`], and all rows and columns can be read there.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    unsafe fn bring<T: Stored>(&self, at: *const T, apart: usize, part: usize, sums: &mut [f32]) {
        let (i, j) = (part / 2 * 16, part % 2 * 16);
        let lanes = mask(self.cols.len().saturating_sub(j));
        let mut tile = [_mm512_setzero_ps(); 16];
        for (r, x) in tile.iter_mut().enumerate().take(self.rows.len().saturating_sub(i)) {
            // SAFETY: row `i + r` and the masked columns lie inside the square.
            *x = unsafe { T::load(at.wrapping_add((i + r) * apart + j), lanes) };
        }
        let (tile, to) = if self.transposed { (transpose_16(tile), j * SIDE + i) } else { (tile, i * SIDE + j) };
        for (r, x) in tile.into_iter().enumerate() {
            let to = &mut sums[to + r * SIDE..][..16];
            // SAFETY: `to` has 16 floats.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) };
        }
    }

    /// Asks for the output's cache lines of a part of the rows.
    pub fn fetch<T: Stored>(&self, out: &Out<T>, part: usize) {
        let at = self.place(out);
        for i in part * 8..self.rows.len().min(part * 8 + 8) {
            for j in (0..self.cols.len()).step_by(T::LINE) {
                fetch::line(at.wrapping_add(i * out.n() + j).cast());
            }
        }
    }

    /// Writes a part of the square to the output.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn end<T: Stored>(&self, out: &Out<T>, part: usize, sums: &[f32]) {
        let (at, n) = (self.place(out), out.n());
        let (rows, cols) = (self.rows.len(), self.cols.len());
        if self.transposed {
            // 16 rows of a cache line each, or of half of one.
            let (i, j) = (part / 2 * 16, part % 2 * 16);
            if i < rows && j < cols && j.is_multiple_of(T::LINE) {
                let from = &sums[j * SIDE + i..][..(T::LINE - 1) * SIDE + 16];
                // SAFETY: as many rows of sums, each with 16 floats from here on; the rows and columns that are left lie inside the square.
                unsafe { T::turn(from.as_ptr(), rows - i, cols - j, at.add(i * n + j), n) };
            }
            return;
        }
        for i in part * 8..rows.min(part * 8 + 8) {
            let from = &sums[i * SIDE..][..SIDE];
            // SAFETY: 32 floats; row `i` and the columns lie inside the square.
            unsafe {
                let (low, high) = (_mm512_loadu_ps(from.as_ptr()), _mm512_loadu_ps(from.as_ptr().add(16)));
                T::store_pair(at.add(i * n), cols, low, high);
            }
        }
    }
}

/// Cache lines that are asked for beside the steps of a sum, as many at each until all are, so that there is room for the tiles that are on their way. (A number that
/// changes from step to step is guessed wrongly by the processor.)
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    at: *const u8,
    /// Lines that are left, and how many at a time.
    left: usize,
    each: usize,
}

impl Ahead {
    /// Nothing.
    pub const NONE: Self = Self { at: std::ptr::null(), left: 0, each: 0 };

    /// Asks for `these`, as many as there is room for beside `steps`.
    pub fn new(these: &[f32], steps: usize) -> Self {
        let left = size_of_val(these).div_ceil(64);
        Self { at: these.as_ptr().cast(), left, each: left.div_ceil(steps.max(1)).min(MOST_LINES) }
    }
}

impl Beside for Ahead {
    #[inline(always)]
    unsafe fn step(&mut self) {
        for _ in 0..self.each.min(self.left) {
            // SAFETY: a hint; it faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.cast()) };
            self.at = self.at.wrapping_add(64);
            self.left -= 1;
        }
    }
}
