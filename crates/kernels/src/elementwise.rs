//! Sums, copies and scalings of whole values: one pass over memory each.

use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool, fetch};

const PIECE: usize = 8192;
/// Floats of a cache line, and how far ahead they are asked for.
const LINE: usize = 16;
const AHEAD: usize = 512;

/// `a += b`.
pub fn add(isa: Isa, pool: &Pool, a: &mut [f32], b: &[f32]) {
    assert!(a.len() == b.len(), "{} {}", a.len(), b.len());
    let a = Rows::new(a, PIECE);
    pool.run(a.pieces(), &|task, _| {
        let (a, range) = a.piece(task);
        add_piece(isa, a, &b[range]);
    });
}

per_isa!(fn add_piece(a: &mut [f32], b: &[f32]) = add_body);

#[inline(always)]
fn add_body(a: &mut [f32], b: &[f32]) {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks_mut::<LINE>(), b.as_chunks::<LINE>());
    for (a, b) in a.iter_mut().zip(b) {
        fetch::line(a.as_ptr().wrapping_add(AHEAD).cast());
        fetch::line(b.as_ptr().wrapping_add(AHEAD).cast());
        for (a, b) in a.iter_mut().zip(b) {
            *a += b;
        }
    }
    for (a, b) in a_rest.iter_mut().zip(b_rest) {
        *a += b;
    }
}

/// `to = from`.
pub fn copy(pool: &Pool, to: &mut [f32], from: &[f32]) {
    assert!(to.len() == from.len(), "{} {}", to.len(), from.len());
    let to = Rows::new(to, PIECE);
    pool.run(to.pieces(), &|task, _| {
        let (to, range) = to.piece(task);
        to.copy_from_slice(&from[range]);
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
