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

    /// Asks for the output's cache lines, to be read now or written when the sums are there. (What is transposed and only written is asked for by the passage.)
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

/// What is done beside the sums of a stage where transposing makes writing dear: the stage before is written, and the output's cache lines
/// are asked for that this one is written to while the next is summed. A few lines at each step leave room for the tiles that are on
/// their way.
pub(super) struct Passage<'a, T> {
    ahead: Ahead,
    fetching: Share,
    at: *const T,
    /// Lines of a row of the output, the next one, and how far apart rows are.
    lines: usize,
    line: usize,
    n: usize,
    writing: Share,
    before: Option<(&'a Stage, *mut T, &'a [f32])>,
}

/// After each step, the share of `all` is done that the share of `steps` is.
struct Share {
    done: usize,
    all: usize,
    steps: usize,
    due: usize,
}

impl Share {
    fn new(all: usize, steps: usize) -> Self {
        Self { done: 0, all, steps, due: 0 }
    }

    /// Counts a step.
    #[inline(always)]
    fn step(&mut self) {
        self.due += self.all;
    }

    /// The number of the next part, as long as one is due.
    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.due < self.steps {
            return None;
        }
        self.due -= self.steps;
        self.done += 1;
        Some(self.done - 1)
    }
}

/// Asks for tiles of the left operand that another thread has packed: a tile's lines, loaded one tile after another, would be waited for.
pub(super) struct Ahead {
    share: Share,
    at: *const f32,
}

impl Ahead {
    /// Asks for all of `tiles` beside `steps` of the sums.
    pub fn new(tiles: &[f32], steps: usize) -> Self {
        Self { share: Share::new(tiles.len() / 16, steps), at: tiles.as_ptr() }
    }
}

impl Beside for Ahead {
    #[inline(always)]
    unsafe fn part(&mut self) {
        self.share.step();
        while let Some(line) = self.share.next() {
            // SAFETY: a hint; it faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(self.at.wrapping_add(16 * line).cast()) };
        }
    }
}

impl<'a, T: Stored> Passage<'a, T> {
    /// Beside sums of `steps` in all for the squares of `stage`: the one before it and its sums, where there is one.
    pub fn new(
        stage: &Stage,
        before: Option<(&'a Stage, &'a [f32])>,
        out: &Out<T>,
        steps: usize,
        ahead: Ahead,
    ) -> Self {
        let lines = stage.cols.len().div_ceil(T::LINE);
        let before = before.map(|(before, sums)| (before, out.tile(before.rows.clone(), before.cols.clone()), sums));
        Self {
            ahead,
            fetching: Share::new(stage.rows.len() * lines, steps),
            at: out.tile(stage.rows.clone(), stage.cols.clone()),
            lines,
            line: 0,
            n: out.n(),
            writing: Share::new(before.map_or(0, |(stage, ..)| stage.parts::<T>()), steps),
            before,
        }
    }

    /// Writes what is left.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    pub unsafe fn finish(self) {
        if let Some((stage, at, sums)) = self.before {
            for part in self.writing.done..self.writing.all {
                // SAFETY: the caller's promise.
                unsafe { stage.write(at, self.n, sums, part) };
            }
        }
    }
}

impl<T: Stored> Beside for Passage<'_, T> {
    #[inline(always)]
    unsafe fn part(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.ahead.part() };
        self.fetching.step();
        while self.fetching.next().is_some() {
            // SAFETY: a hint; it faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.at.wrapping_add(T::LINE * self.line).cast()) };
            self.line += 1;
            if self.line == self.lines {
                (self.line, self.at) = (0, self.at.wrapping_add(self.n));
            }
        }
        if let Some((stage, at, sums)) = self.before {
            self.writing.step();
            while let Some(part) = self.writing.next() {
                // SAFETY: the caller's promise; parts are counted.
                unsafe { stage.write(at, self.n, sums, part) };
            }
        }
    }
}
