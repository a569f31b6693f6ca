//! Sums on their way from and to the output. Squares of 32 by 32 are summed in a thread's memory and written in long pieces of rows:
//! tiles stored to rows that lie pages apart would stall the loads that follow them.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Start;
use super::super::out::Out;
use super::SIDE;
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
        self.fetch(out);
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

    /// Writes the squares to the output.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    #[target_feature(enable = "avx512f")]
    pub unsafe fn end(&self, out: &Out, sums: &[f32]) {
        let at = out.tile(self.rows.clone(), self.cols.clone());
        if !self.transposed {
            for i in 0..self.rows.len() {
                for (q, sums) in sums.chunks_exact(SIDE * SIDE).take(self.cols.len().div_ceil(SIDE)).enumerate() {
                    let n = SIDE.min(self.cols.len() - q * SIDE);
                    for half in (0..n).step_by(16) {
                        // SAFETY: row `i` and the masked columns lie inside the stage; a row of sums has both halves.
                        unsafe {
                            let x = _mm512_loadu_ps(sums[i * SIDE + half..][..16].as_ptr());
                            _mm512_mask_storeu_ps(at.add(i * out.n() + q * SIDE + half), mask(n - half), x);
                        }
                    }
                }
            }
            return;
        }
        for i in (0..self.rows.len()).step_by(16) {
            for (q, sums) in sums.chunks_exact(SIDE * SIDE).take(self.cols.len().div_ceil(SIDE)).enumerate() {
                let n = SIDE.min(self.cols.len() - q * SIDE);
                for half in (0..n).step_by(16) {
                    let mask = mask(n - half);
                    let from = if self.transposed { half * SIDE + i } else { i * SIDE + half };
                    let mut tile = [_mm512_setzero_ps(); 16];
                    for (r, x) in tile.iter_mut().enumerate() {
                        let from = &sums[from + r * SIDE..][..16];
                        // SAFETY: `from` has 16 floats.
                        *x = unsafe { _mm512_loadu_ps(from.as_ptr()) };
                    }
                    let tile = if self.transposed { transpose_16(tile) } else { tile };
                    for (r, x) in tile.into_iter().enumerate().take(self.rows.len() - i) {
                        // SAFETY: row `i + r` and the masked columns lie inside the stage.
                        unsafe { _mm512_mask_storeu_ps(at.add((i + r) * out.n() + q * SIDE + half), mask, x) };
                    }
                }
            }
        }
    }
}
