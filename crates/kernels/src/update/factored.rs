//! AdaLomo ([2310.10195](https://arxiv.org/abs/2310.10195)): a second moment of which only the means of rows and of columns are kept, steps whose root mean square is at most 1, and a
//! rate that goes with the root mean square of the parameter. A matrix is looked at three times: for the squares of its gradient, for the size of its
//! step, and to move. A vector has a second moment of its own.
//!
//! ```text
//! b = 1 - t^-0.8    R ← b R + (1-b) rowmean(g² + 1e-30)    C likewise of columns    U = g (R / mean R)^-1/2 C^-1/2
//! U ← U / max(1, rms U)    lr' = lr max(1e-3, rms p)    p ← p (1 - lr' wd) - lr' U
//! ```
//! Sums over a row go by lanes, those over a column row after row, and those over rows in f64: the same whatever the pieces.

use crate::math::{dot, lane_sum};
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Added to squares.
const TINY: f32 = 1e-30;
/// The rate is never scaled by less.
const LEAST: f64 = 1e-3;
/// Columns that one task sums.
const WIDTH: usize = 256;

/// The constants of one update.
#[derive(Clone, Copy, Debug)]
pub struct AdaLomo {
    /// Learning rate.
    pub lr: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// The update's number, from 1.
    pub step: u64,
}

/// What a matrix's numbers are multiplied with by row and by column to make its step.
pub struct Factors<'a> {
    /// `(R / mean R)^-1/2`.
    pub rows: &'a [f32],
    /// `C^-1/2`.
    pub cols: &'a [f32],
}

/// The sum of the squares of every row of `x`.
pub fn row_squares(isa: Isa, pool: &Pool, x: &[f32], rows: &mut [f32]) {
    let width = x.len() / rows.len().max(1);
    let rows = Rows::new(rows, 1);
    pool.run(rows.pieces(), &|task, _| rows.piece(task).0[0] = row_square(isa, &x[task * width..][..width]));
}

/// Adds the squares of every column of `g` to what `cols` holds, row after row.
pub fn add_column_squares(isa: Isa, pool: &Pool, g: &[f32], cols: &mut [f32]) {
    let width = cols.len();
    let cols = Rows::new(cols, WIDTH);
    pool.run(cols.pieces(), &|task, _| {
        let (sums, range) = cols.piece(task);
        column_squares(isa, &g[range.start.min(g.len())..], width, sums);
    });
}

/// `p ← p keep - length (g row col)`, with the factors of every row and of every column.
pub fn move_rows(isa: Isa, pool: &Pool, p: &mut [f32], g: &[f32], factors: &Factors, (keep, length): (f32, f32)) {
    let cols = factors.cols;
    let p = Rows::new(p, cols.len());
    pool.run(p.pieces(), &|task, _| {
        let (p, range) = p.piece(task);
        apply_row(isa, p, &g[range], factors.rows[task], cols, keep, length);
    });
}

per_isa!(fn row_square(g: &[f32]) -> f32 = row_body);
per_isa!(fn column_squares(g: &[f32], width: usize, sums: &mut [f32]) = column_body);
per_isa!(fn step_square(g: &[f32], row: f32, cols: &[f32]) -> f32 = step_square_body);
per_isa!(fn apply_row(p: &mut [f32], g: &[f32], row: f32, cols: &[f32], keep: f32, length: f32) = apply_body);

#[inline(always)]
fn row_body(g: &[f32]) -> f32 {
    dot(g, g)
}

#[inline(always)]
fn column_body(g: &[f32], width: usize, sums: &mut [f32]) {
    for row in g.chunks(width) {
        for (sum, g) in sums.iter_mut().zip(row) {
            *sum = g.mul_add(*g, *sum);
        }
    }
}

#[inline(always)]
fn step_square_body(g: &[f32], row: f32, cols: &[f32]) -> f32 {
    lane_sum([g, cols], |[g, col]| {
        let step = g * row * col;
        step * step
    })
}

#[inline(always)]
fn apply_body(p: &mut [f32], g: &[f32], row: f32, cols: &[f32], keep: f32, length: f32) {
    for ((p, &g), &col) in p.iter_mut().zip(g).zip(cols) {
        *p = *p * keep - length * (g * row * col);
    }
}

impl AdaLomo {
    /// How much stays of a mean.
    fn stays(&self) -> f32 {
        (1.0 - (self.step as f64).powf(-0.8)) as f32
    }

    /// Takes the sums of squares of rows and columns into the means that are kept, and leaves the factors of the step in their place.
    pub fn factors(&self, means: (&mut [f32], &mut [f32]), rows: &mut [f32], cols: &mut [f32]) {
        let stays = self.stays();
        let take = |means: &mut [f32], sums: &[f32], count: usize| {
            for (mean, sum) in means.iter_mut().zip(sums) {
                *mean = stays.mul_add(*mean, (1.0 - stays) * (sum / count as f32 + TINY));
            }
        };
        let (row_means, col_means) = means;
        take(row_means, rows, cols.len());
        take(col_means, cols, rows.len());
        let mean = row_means.iter().map(|&x| f64::from(x)).sum::<f64>() / row_means.len() as f64;
        for (factor, kept) in rows.iter_mut().zip(row_means) {
            *factor = 1.0 / (*kept / mean as f32).sqrt();
        }
        for (factor, kept) in cols.iter_mut().zip(col_means) {
            *factor = 1.0 / kept.sqrt();
        }
    }

    /// The sum of the squares of the steps of every row of `g`, whose factors are `factors`.
    pub fn sizes(isa: Isa, pool: &Pool, g: &[f32], factors: &Factors, sums: &mut [f32]) {
        let width = factors.cols.len();
        let sums = Rows::new(sums, 1);
        pool.run(sums.pieces(), &|task, _| {
            sums.piece(task).0[0] = step_square(isa, &g[task * width..][..width], factors.rows[task], factors.cols);
        });
    }

    /// How long steps are, and what stays of a number, from the sums of the squares of all steps and of all numbers, of which there are `len`.
    pub fn length(&self, steps: f64, numbers: f64, len: usize) -> (f32, f32) {
        let rms = |sum: f64| (sum / len as f64).sqrt();
        let rate = f64::from(self.lr) * rms(numbers).max(LEAST);
        ((1.0 - rate * f64::from(self.weight_decay)) as f32, (rate / rms(steps).max(1.0)) as f32)
    }

    /// Moves a vector with its second moment.
    pub fn vector(&self, isa: Isa, p: &mut [f32], g: &[f32], v: &mut [f32]) {
        let stays = self.stays();
        let mut steps = 0.0;
        for (v, g) in v.iter_mut().zip(g) {
            *v = stays.mul_add(*v, (1.0 - stays) * g.mul_add(*g, TINY));
            steps += f64::from(g / v.sqrt()).powi(2);
        }
        let (keep, length) = self.length(steps, f64::from(row_square(isa, p)), p.len());
        for ((p, g), v) in p.iter_mut().zip(g).zip(v) {
            *p = *p * keep - length * (g / v.sqrt());
        }
    }
}
