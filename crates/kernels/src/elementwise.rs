//! Sums, copies and scalings of whole values: one pass over memory each.

use crate::Pool;
use crate::rows::Rows;

const PIECE: usize = 8192;

/// `a += b`.
pub fn add(pool: &Pool, a: &mut [f32], b: &[f32]) {
    assert!(a.len() == b.len(), "{} {}", a.len(), b.len());
    let a = Rows::new(a, PIECE);
    pool.run(a.pieces(), &|task, _| {
        let (a, range) = a.piece(task);
        a.iter_mut().zip(&b[range]).for_each(|(a, &b)| *a += b);
    });
}

/// `a *= by`.
pub fn scale(pool: &Pool, a: &mut [f32], by: f32) {
    let a = Rows::new(a, PIECE);
    pool.run(a.pieces(), &|task, _| a.piece(task).0.iter_mut().for_each(|a| *a *= by));
}

/// The sum of every column of `x`, row after row: the gradient of a bias.
pub fn column_sums(x: &[f32], sums: &mut [f32]) {
    sums.fill(0.0);
    add_column_sums(x, sums);
}

/// The same, added to what `sums` holds.
pub fn add_column_sums(x: &[f32], sums: &mut [f32]) {
    x.chunks_exact(sums.len()).for_each(|row| sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x));
}

/// What a gradient looks like: the sum of its squares, in `f64` and in ascending order; not finite when an element isn't.
pub fn square_sum(g: &[f32]) -> f64 {
    g.iter().map(|&g| f64::from(g) * f64::from(g)).sum()
}

/// Whether every element is a finite number.
pub fn all_finite(x: &[f32]) -> bool {
    // A float is finite where its exponent is not all ones; an OR over whole chunks, without a way out, runs in lanes.
    x.chunks(1024).all(|chunk| !chunk.iter().fold(false, |bad, x| bad | (x.to_bits() & 0x7f80_0000 == 0x7f80_0000)))
}
