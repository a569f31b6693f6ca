//! Rows of tables added up: what learned positions and token types do to the embedding of a token. The tables are frozen and stay as
//! they are stored, so there is no backward. An adapter of an embedding picks columns of its first factor by token, and its gradient
//! goes back to them, token after token.

use crate::Isa;
use crate::matmul::Weight;

/// Elements that are dequantised at a time: a whole number of every type's blocks.
const PIECE: usize = 256;

/// Adds row `row` of `table` to `out`.
///
/// # Panics
/// When there is no such row or it has another length.
pub fn add_row(isa: Isa, table: Weight, row: usize, out: &mut [f32]) {
    assert_eq!(out.len(), table.cols, "room for a row");
    for (at, out) in (0..).step_by(PIECE).zip(out.chunks_mut(PIECE)) {
        let mut piece = [0.0; PIECE];
        let piece = &mut piece[..out.len()];
        table.read(isa, row, at..at + out.len(), piece);
        out.iter_mut().zip(piece).for_each(|(out, x)| *out += *x);
    }
}

/// `h = scale A[:, id]` for every token, with `a` of `[rank, vocab]` and `h` of `[tokens, rank]`.
pub fn gather(a: &[f32], vocab: usize, ids: &[u32], scale: f32, h: &mut [f32]) {
    let rank = a.len() / vocab;
    for (&id, h) in ids.iter().zip(h.chunks_exact_mut(rank)) {
        h.iter_mut().enumerate().for_each(|(r, h)| *h = scale * a[r * vocab + id as usize]);
    }
}

/// `ga[:, id] += scale gh` for every token in its turn.
pub fn scatter(gh: &[f32], vocab: usize, ids: &[u32], scale: f32, ga: &mut [f32]) {
    let rank = ga.len() / vocab;
    for (&id, gh) in ids.iter().zip(gh.chunks_exact(rank)) {
        gh.iter().enumerate().for_each(|(r, gh)| ga[r * vocab + id as usize] += scale * gh);
    }
}
