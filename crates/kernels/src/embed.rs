//! Rows of tables added up: what learned positions and token types do to the embedding of a token. The tables are frozen and stay as
//! they are stored, so there is no backward.

use crate::{BlockType, Isa, dequant};

/// Elements that are dequantised at a time: a whole number of every type's blocks.
const PIECE: usize = 256;

/// Adds the elements of the blocks in `row` to `out`.
///
/// # Panics
/// When `row` is not exactly as many blocks as `out` has elements for.
pub fn add_row(isa: Isa, ty: BlockType, row: &[u8], out: &mut [f32]) {
    assert_eq!(Some(row.len()), ty.row_bytes(out.len()), "{} elements of {}", out.len(), ty.name());
    let bytes = PIECE / ty.block_len() * ty.block_bytes();
    for (row, out) in row.chunks(bytes).zip(out.chunks_mut(PIECE)) {
        let mut piece = [0.0; PIECE];
        let piece = &mut piece[..out.len()];
        dequant::dequantize_row(isa, ty, row, piece);
        out.iter_mut().zip(piece).for_each(|(out, x)| *out += *x);
    }
}
