//! VeRA's vectors around the products with matrices that all modules share: `y += ((x Aᵀ) ∘ d) Bᵀ ∘ b`. The products are made elsewhere, a strip of
//! outputs at a time; here are the passes between them. Sums run over rows in their order, so that pieces of rows and threads change no bit.

use crate::Pool;
use crate::rows::Rows;

/// Outputs of a linear that are worked with at a time.
pub const STRIP: usize = 256;

/// Elements of a task, in whole rows.
const PIECE: usize = 16384;

/// `out = h ∘ d` for every row.
pub fn times(pool: &Pool, h: &[f32], d: &[f32], out: &mut [f32]) {
    assert!(h.len() == out.len() && out.len().is_multiple_of(d.len()), "{} {} {}", h.len(), out.len(), d.len());
    let out = Rows::new(out, piece(d.len()));
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        for (out, h) in out.chunks_exact_mut(d.len()).zip(h[range].chunks_exact(d.len())) {
            out.iter_mut().zip(h).zip(d).for_each(|((out, h), d)| *out = h * d);
        }
    });
}

/// `y[first..] += u ∘ b` for every row, where `b` belongs to the columns of `y` from `first` on and rows of `y` have `width` elements.
pub fn add_strip(pool: &Pool, u: &[f32], b: &[f32], first: usize, width: usize, y: &mut [f32]) {
    assert!(y.len() / width == u.len() / b.len() && first + b.len() <= width, "{} {} {width}", y.len(), u.len());
    let y = Rows::new(y, piece(width));
    pool.run(y.pieces(), &|task, _| {
        let (y, range) = y.piece(task);
        let u = u[range.start / width * b.len()..].chunks_exact(b.len());
        for (y, u) in y.chunks_exact_mut(width).zip(u) {
            y[first..].iter_mut().zip(u).zip(b).for_each(|((y, u), b)| *y += u * b);
        }
    });
}

/// The derivative of [`add_strip`] where `g` is that of `y`: `gb += Σ g ∘ u` over rows, and `g ∘ b` takes the place of `u`.
pub fn strip_backward(g: &[f32], b: &[f32], first: usize, width: usize, u: &mut [f32], gb: &mut [f32]) {
    assert!(g.len() / width == u.len() / b.len() && gb.len() == b.len(), "{} {} {width}", g.len(), u.len());
    for (g, u) in g.chunks_exact(width).zip(u.chunks_exact_mut(b.len())) {
        for (((g, u), gb), b) in g[first..].iter().zip(u).zip(&mut *gb).zip(b) {
            *gb += g * *u;
            *u = g * b;
        }
    }
}

/// `gd += Σ g ∘ h` over rows.
pub fn add_products(g: &[f32], h: &[f32], gd: &mut [f32]) {
    assert!(g.len() == h.len() && g.len().is_multiple_of(gd.len()), "{} {} {}", g.len(), h.len(), gd.len());
    for (g, h) in g.chunks_exact(gd.len()).zip(h.chunks_exact(gd.len())) {
        gd.iter_mut().zip(g).zip(h).for_each(|((gd, g), h)| *gd += g * h);
    }
}

const fn piece(cols: usize) -> usize {
    if cols == 0 { 1 } else { PIECE.div_ceil(cols) * cols }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_adds_to_its_own_columns_and_threads_change_no_bit() {
        let (rows, width, first, strip) = (500, 130, 64, 66);
        let numbers = |len: usize, by: f32| (0..len).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
        let (u, b, before) = (numbers(rows * strip, 0.3), numbers(strip, 0.7), numbers(rows * width, 0.11));
        let run = |threads| {
            let mut y = before.clone();
            add_strip(&Pool::new(threads).unwrap(), &u, &b, first, width, &mut y);
            y
        };
        let one = run(1);
        assert!(one == run(3));
        for (i, (&after, &before)) in one.iter().zip(&before).enumerate() {
            let (row, col) = (i / width, i % width);
            let added = if col < first { 0.0 } else { u[row * strip + col - first] * b[col - first] };
            assert_eq!(after, before + added, "{i}");
        }
    }

    #[test]
    fn gradients_of_pieces_are_those_of_the_whole() {
        let (rows, width) = (40, 24);
        let numbers = |by: f32| (0..rows * width).map(|i| (i as f32 * by).sin()).collect::<Vec<f32>>();
        let (g, u, b) = (numbers(0.3), numbers(0.7), numbers(0.9));
        let b = &b[..width];
        let run = |cut: usize| {
            let (mut u, mut gb, mut gd) = (u.clone(), vec![0.0; width], vec![0.0; width]);
            for part in [0..cut * width, cut * width..rows * width] {
                add_products(&g[part.clone()], &u[part.clone()], &mut gd);
                strip_backward(&g[part.clone()], b, 0, width, &mut u[part], &mut gb);
            }
            assert_eq!(gb, gd);
            (gb, u)
        };
        assert!(run(rows) == run(13));
        assert_eq!(run(rows).1[width + 1], g[width + 1] * b[1]);
    }
}
