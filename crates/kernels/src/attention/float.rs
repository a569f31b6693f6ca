//! The products of attention in f32, as plain loops that are compiled for each instruction set: the same bits on all of them.

use super::TILE;
use super::body::{Kit, LANES, padded};
use crate::math::exp;
use crate::rows::Rows;
use crate::tile::{COLUMNS, Left, View, mm};

/// Holds the owner's rows transposed, `[element][lane]`. `ROWS` by `COLS` outputs are summed in registers.
pub(super) struct Float<'a, const ROWS: usize, const COLS: usize> {
    d: usize,
    owners: [&'a mut [f32]; 2],
    /// The owner's rows as they are, with zeros after them.
    across: &'a mut [f32],
}

impl<'a, const ROWS: usize, const COLS: usize> Float<'a, ROWS, COLS> {
    /// Floats for heads of `d` elements.
    pub const fn len(d: usize) -> usize {
        2 * TILE * d + TILE * padded(d)
    }

    #[inline(always)]
    pub fn new(scratch: &'a mut [f32], d: usize) -> Self {
        let (first, rest) = scratch.split_at_mut(TILE * d);
        let (second, rest) = rest.split_at_mut(TILE * d);
        Self { d, owners: [first, second], across: &mut rest[..TILE * padded(d)] }
    }
}

impl<const ROWS: usize, const COLS: usize> Kit for Float<'_, ROWS, COLS> {
    #[inline(always)]
    fn own(&mut self, slot: usize, x: View, rows: usize) {
        let to = &mut *self.owners[slot];
        if rows < TILE {
            to.fill(0.0);
        }
        // Eight rows at a time, so that whole pieces of a cache line are written.
        for first in (0..rows).step_by(8) {
            for e in 0..self.d {
                for lane in first..rows.min(first + 8) {
                    to[e * TILE + lane] = x.data[lane * x.stride + e];
                }
            }
        }
    }

    #[inline(always)]
    fn scores(&mut self, slot: usize, y: View, rows: usize, lanes: usize, scores: &mut [f32]) {
        let (y, x) = (Left { data: y.data, row: y.stride, k: 1 }, View { data: &*self.owners[slot], stride: TILE });
        mm::<ROWS, COLS>((rows, lanes, self.d), y, x, scores, TILE, false);
    }

    #[inline(always)]
    fn add(&mut self, z: View, rows: usize, w: &[f32], lanes: usize, sums: &mut [f32]) {
        let z = Left { data: z.data, row: 1, k: z.stride };
        mm::<ROWS, COLS>((self.d, lanes, rows), z, View { data: w, stride: TILE }, sums, TILE, true);
    }

    #[inline(always)]
    fn own_across(&mut self, x: View, rows: usize) {
        self.across.fill(0.0);
        for (row, to) in self.across.chunks_exact_mut(padded(self.d)).enumerate().take(rows) {
            to[..self.d].copy_from_slice(&x.data[row * x.stride..][..self.d]);
        }
    }

    #[inline(always)]
    fn across(&mut self, w: &[f32], rows: usize, lanes: usize, c: &mut [f32]) {
        let (w, width) = (Left { data: w, row: TILE, k: 1 }, padded(self.d));
        let n = self.d.next_multiple_of(COLUMNS);
        mm::<ROWS, COLS>((rows, n, lanes), w, View { data: self.across, stride: width }, c, width, true);
    }

    #[inline(always)]
    fn exps(mut x: [f32; LANES]) -> [f32; LANES] {
        for x in &mut x {
            *x = exp(*x);
        }
        x
    }

    #[inline(always)]
    fn finish(&mut self, sums: &[f32], factor: &[f32; TILE], rows: usize, to: &Rows, at: usize, stride: usize) {
        for (row, factor) in factor.iter().enumerate().take(rows) {
            // SAFETY: the caller owns these rows.
            let to = unsafe { to.range(at + row * stride..at + row * stride + self.d) };
            for (to, sums) in to.iter_mut().zip(sums.chunks_exact(TILE)) {
                *to = sums[row] * factor;
            }
        }
    }
}
