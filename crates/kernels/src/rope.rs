//! Rotary positions, in place. The derivative is the rotation by the opposite angle.

use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool, fetch};

/// How a rotation pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// `(i, i + d/2)`: Hugging Face's layout.
    Halves,
    /// `(2i, 2i + 1)`: the layout of GGUF's permuted llama weights.
    Interleaved,
}

/// Rotates each head of `d` elements in every row of `x` by its row's position; backwards when `inverse`.
///
/// `table` holds, for each position, `d/2` cosines and then `d/2` sines.
#[allow(clippy::too_many_arguments)]
pub fn rotate(
    isa: Isa,
    pool: &Pool,
    x: &mut [f32],
    width: usize,
    d: usize,
    table: &[f32],
    positions: &[u32],
    pairs: Pairs,
    inverse: bool,
) {
    assert!(
        x.len() == positions.len() * width && width.is_multiple_of(d) && d.is_multiple_of(2),
        "{} {width} {d}",
        x.len()
    );
    let rows = Rows::new(x, width * 8);
    pool.run(rows.pieces(), &|task, _| {
        let (x, range) = rows.piece(task);
        rotate_rows(isa, x, (width, d), table, &positions[range.start / width..], pairs, inverse);
    });
}

per_isa!(fn rotate_rows(x: &mut [f32], shape: (usize, usize), table: &[f32], positions: &[u32], pairs: Pairs, inverse: bool) = rows_body);

#[inline(always)]
fn rows_body(x: &mut [f32], (width, d): (usize, usize), table: &[f32], positions: &[u32], pairs: Pairs, inverse: bool) {
    for (row, &position) in x.chunks_exact_mut(width).zip(positions) {
        let (cos, sin) = table[position as usize * d..][..d].split_at(d / 2);
        for head in row.chunks_exact_mut(d) {
            fetch::behind(head, width);
            rotate_head(head, cos, sin, pairs, if inverse { -1.0 } else { 1.0 });
        }
    }
}

#[inline(always)]
fn rotate_head(head: &mut [f32], cos: &[f32], sin: &[f32], pairs: Pairs, sign: f32) {
    match pairs {
        Pairs::Halves => {
            let (first, second) = head.split_at_mut(cos.len());
            for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                let sin = sin * sign;
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
        Pairs::Interleaved => {
            for ((pair, &cos), &sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                let sin = sin * sign;
                (pair[0], pair[1]) = (pair[0] * cos - pair[1] * sin, pair[0] * sin + pair[1] * cos);
            }
        }
    }
}
