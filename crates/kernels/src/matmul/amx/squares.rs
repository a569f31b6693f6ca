//! The squares of a task, one strip of outputs after another: where the sums of each lie, and what is done of the one before and the one that follows while
//! one is summed.

use std::ops::Range;

use super::super::Start;
use super::super::out::Out;
use super::memory::RING;
use super::stage::{Stage, Stored};
use super::{SIDE, SQUARE};
use crate::amx::PARTS;

/// Pairs of tiles of rows, in the order in which they are taken: from one on, round.
#[derive(Clone, Copy)]
pub(super) struct Order {
    pub first: usize,
    pub end: usize,
    pub begin: usize,
}

impl Order {
    pub fn len(self) -> usize {
        self.end - self.first
    }

    /// The pair that is taken as number `at`, if there are so many.
    pub fn get(self, at: usize) -> Option<usize> {
        let len = self.len();
        (at < len).then(|| self.first + (self.begin - self.first + at) % len)
    }
}

/// The squares of a task.
pub(super) struct Squares<'a, T> {
    pub order: Order,
    /// The rows of the output from the first pair on, and its columns.
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    pub transposed: bool,
    pub start: Start<'a>,
    pub out: &'a Out<'a, T>,
    /// Places for squares: one for each where their sums wait from block to block, otherwise [`RING`].
    pub sums: &'a mut [f32],
    pub wait: bool,
}

/// Which square, and whether its block of the sum is the first, and the last.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub strip: usize,
    pub at: usize,
    pub first: bool,
    pub last: bool,
}

impl<T: Stored> Squares<'_, T> {
    fn number(&self, now: Now) -> usize {
        now.strip * self.order.len() + now.at
    }

    /// Square `number`, if there are so many.
    fn get(&self, number: usize) -> Option<Stage> {
        let pair = self.order.get(number % self.order.len())? - self.order.first;
        let col = self.cols.start + number / self.order.len() * SIDE;
        let row = self.rows.start + pair * SIDE;
        (col < self.cols.end).then(|| Stage {
            rows: row..self.rows.end.min(row + SIDE),
            cols: col..self.cols.end.min(col + SIDE),
            transposed: self.transposed,
        })
    }

    /// The sums of square `number`.
    pub fn sums(&mut self, number: usize) -> &mut [f32] {
        let place = if self.wait { number } else { number % RING };
        &mut self.sums[place * SQUARE..][..SQUARE]
    }

    /// Where a square's sums are made, and whether they begin with nothing.
    pub fn place(&mut self, now: Now) -> (*mut f32, bool) {
        let number = self.number(now);
        (self.sums(number).as_mut_ptr(), now.first && matches!(self.start, Start::Zero))
    }

    /// Before the first block: the first square begins, and the next one is asked for.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    pub unsafe fn begin(&mut self) {
        for part in 0..PARTS {
            // SAFETY: the caller's promise.
            unsafe { self.bring(0, part) };
        }
        if let (Start::Output, Some(next)) = (self.start, self.get(1)) {
            (0..PARTS).for_each(|part| next.fetch(self.out, part));
        }
    }

    /// # Safety
    /// As [`Stage::begin`].
    unsafe fn bring(&mut self, number: usize, part: usize) {
        if let Some(stage) = self.get(number) {
            let (start, out) = (self.start, self.out);
            // SAFETY: the caller's promise.
            unsafe { stage.begin(start, out, part, self.sums(number)) };
        }
    }

    /// What belongs between the parts of a square's sum: the one before is written, the next one begins.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    pub unsafe fn part(&mut self, now: Now, part: usize) {
        let number = self.number(now);
        let goes_on = now.first && matches!(self.start, Start::Output);
        // SAFETY: the caller's promise.
        unsafe {
            if now.last && number > 0 {
                self.write(number - 1, part);
            }
            if now.first && !matches!(self.start, Start::Zero) {
                self.bring(number + 1, part);
            }
        }
        let coming = if goes_on { number + 2 } else { number };
        if (goes_on || now.last)
            && let Some(stage) = self.get(coming)
        {
            stage.fetch(self.out, part);
        }
    }

    /// After the last block: the last square is written.
    ///
    /// # Safety
    /// As [`Stage::begin`].
    pub unsafe fn end(&mut self) {
        let last = self.order.len() * self.cols.len().div_ceil(SIDE) - 1;
        for part in 0..PARTS {
            // SAFETY: the caller's promise.
            unsafe { self.write(last, part) };
        }
    }

    /// # Safety
    /// As [`Stage::begin`].
    unsafe fn write(&mut self, number: usize, part: usize) {
        if let Some(stage) = self.get(number) {
            let out = self.out;
            // SAFETY: the caller's promise.
            unsafe { stage.end(out, part, self.sums(number)) };
        }
    }
}
