//! Sums on their way from and to the output. Squares of 32 by 32 are summed in a thread's memory and written in long pieces of rows:
//! tiles stored to rows that lie pages apart would stall the loads that follow them.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Start;
use super::super::out::Out;
use super::SIDE;
use crate::amx::Beside;
use crate::avx512::{mask, transpose_16};

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
    #[target_feature(enable = "avx512f")]
    pub unsafe fn begin(&self, start: Start, out: &Out, sums: &mut [f32]) {
        // What is transposed and not read here is asked for by the passage.
        if !self.transposed || matches!(start, Start::Output) {
            self.fetch(out);
        }
        let (at, apart) = match start {
            Start::Zero => return,
            Start::Bias(bias) => (bias[self.cols.clone()].as_ptr(), 0),
            Start::Output => (out.tile(self.rows.clone(), self.cols.clone()).cast_const(), out.n()),
        };
        for (q, sums) in sums.chunks_exact_mut(SIDE * SIDE).take(self.cols.len().div_ceil(SIDE)).enumerate() {
            let n = SIDE.min(self.cols.len() - q * SIDE);
            for half in (0..n).step_by(16) {
                let mask = mask(n - half);
                for i in (0..self.rows.len()).step_by(16) {
                    let mut tile = [_mm512_setzero_ps(); 16];
                    for (r, x) in tile.iter_mut().enumerate().take(self.rows.len() - i) {
                        // SAFETY: row `i + r` and the masked columns lie inside the stage.
                        *x = unsafe { _mm512_maskz_loadu_ps(mask, at.add((i + r) * apart + q * SIDE + half)) };
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

    /// Asks for the output's cache lines, to be written: they are there when the sums are.
    fn fetch(&self, out: &Out) {
        let at = out.tile(self.rows.clone(), self.cols.clone());
        for i in 0..self.rows.len() {
            for j in (0..self.cols.len()).step_by(16) {
                // SAFETY: a hint; it faults at no address.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(at.wrapping_add(i * out.n() + j).cast()) };
            }
        }
    }

    /// Parts that the squares are written in: 16 by 16 where they are transposed, and otherwise rows, which go out in long pieces.
    fn parts(&self) -> usize {
        if self.transposed { self.rows.len().div_ceil(16) * self.cols.len().div_ceil(16) } else { self.rows.len() }
    }

    /// Writes the squares to the output.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn end(&self, out: &Out, sums: &[f32]) {
        let at = out.tile(self.rows.clone(), self.cols.clone());
        for part in 0..self.parts() {
            // SAFETY: the caller's promise.
            unsafe { self.write(at, out.n(), sums, part) };
        }
    }

    /// Writes one part to the output, whose place for this stage is `at`, with rows `n` apart.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[inline(always)]
    unsafe fn write(&self, at: *mut f32, n: usize, sums: &[f32], part: usize) {
        if self.transposed {
            let across = self.cols.len().div_ceil(16);
            let (i, j) = (part / across * 16, part % across * 16);
            let from = &sums[j / SIDE * SIDE * SIDE + j % SIDE * SIDE + i..][..15 * SIDE + 16];
            // SAFETY: 16 rows of sums, each with 16 floats from here on; row `i + r` and the masked columns lie inside the stage.
            unsafe {
                let mut tile = [_mm512_setzero_ps(); 16];
                for (r, x) in tile.iter_mut().enumerate() {
                    *x = _mm512_loadu_ps(from.as_ptr().add(r * SIDE));
                }
                let mask = mask(self.cols.len() - j);
                for (r, x) in transpose_16(tile).into_iter().enumerate().take(self.rows.len() - i) {
                    _mm512_mask_storeu_ps(at.add((i + r) * n + j), mask, x);
                }
            }
            return;
        }
        for (q, sums) in sums.chunks_exact(SIDE * SIDE).take(self.cols.len().div_ceil(SIDE)).enumerate() {
            let left = self.cols.len() - q * SIDE;
            for half in (0..SIDE.min(left)).step_by(16) {
                let from = &sums[part * SIDE + half..][..16];
                // SAFETY: 16 floats; row `part` and the masked columns lie inside the stage.
                unsafe {
                    let x = _mm512_loadu_ps(from.as_ptr());
                    _mm512_mask_storeu_ps(at.add(part * n + q * SIDE + half), mask(left - half), x);
                }
            }
        }
    }
}

/// What is done beside the sums of a stage.
pub(super) enum Work<'a> {
    Passage(Passage<'a>),
    Ahead(Ahead),
}

/// What is done beside them where transposing makes writing dear: the stage before is written, and the output's cache lines
/// are asked for that this one is written to while the next is summed. A few lines at each step leave room for the tiles that are on
/// their way.
pub(super) struct Passage<'a> {
    ahead: Ahead,
    fetching: Share,
    at: *const f32,
    /// Lines of a row of the output, the next one, and how far apart rows are.
    lines: usize,
    line: usize,
    n: usize,
    writing: Share,
    before: Option<(&'a Stage, *mut f32, &'a [f32])>,
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

impl<'a> Passage<'a> {
    /// Beside sums of `steps` in all for the squares of `stage`: the one before it and its sums, where there is one.
    pub fn new(stage: &Stage, before: Option<(&'a Stage, &'a [f32])>, out: &Out, steps: usize, ahead: Ahead) -> Self {
        let lines = stage.cols.len().div_ceil(16);
        let before = before.map(|(before, sums)| (before, out.tile(before.rows.clone(), before.cols.clone()), sums));
        Self {
            ahead,
            fetching: Share::new(stage.rows.len() * lines, steps),
            at: out.tile(stage.rows.clone(), stage.cols.clone()),
            lines,
            line: 0,
            n: out.n(),
            writing: Share::new(before.map_or(0, |(stage, ..)| stage.parts()), steps),
            before,
        }
    }

    /// Writes what is left.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn finish(self) {
        if let Some((stage, at, sums)) = self.before {
            for part in self.writing.done..self.writing.all {
                // SAFETY: the caller's promise.
                unsafe { stage.write(at, self.n, sums, part) };
            }
        }
    }
}

impl Beside for Passage<'_> {
    #[inline(always)]
    unsafe fn part(&mut self) {
        // SAFETY: the caller's promise.
        unsafe { self.ahead.part() };
        self.fetching.step();
        while self.fetching.next().is_some() {
            // SAFETY: a hint; it faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_ET0>(self.at.wrapping_add(16 * self.line).cast()) };
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
