//! An adapter's low-rank values, made of the left operand while it lies in tiles for the frozen weight: `h = scale left byᵀ`.
//!
//! The factor takes the weight's place in the instruction: it is the first operand where weights are, and the second otherwise.

use super::super::Weight;
use super::super::out::Out;
use super::super::product::{Left, Right};
use super::{Blocks, Hands, TILE, Threads, col_tiles, fill, row_tiles, stage};
use crate::amx::{K_TILE, SIDE, Square, Tiles};
use crate::rows::Rows;
use crate::{Pool, Values};

/// The factor `[rank, k]` into tiles, 32 of its rows after another, each with all of the sum.
pub(super) fn fill(
    pool: &Pool,
    threads: &Threads,
    right: Right,
    (rank, k): (usize, usize),
    by: &[f32],
    to: &mut [f32],
) {
    let (steps, k_block) = (k.div_ceil(K_TILE), threads.sizes.k_block);
    let units = Rows::new(to, 2 * TILE * steps);
    pool.run(rank.div_ceil(SIDE), &|unit, thread| {
        let (to, rows) = (units.piece(unit).0, unit * SIDE..rank.min((unit + 1) * SIDE));
        let (factor, left) = (Weight::f32(rank, k, by), Left { data: Values::F32(by), row: k, k: 1 });
        for k0 in (0..k).step_by(k_block) {
            let (ks, place) = (k0..k.min(k0 + k_block), fill::Place { first: k0 / K_TILE, steps });
            // SAFETY: the product checked that this processor has the instructions.
            unsafe {
                match right {
                    Right::Rows(_) => {
                        fill::weight_rows(&factor, rows.clone(), ks, place, threads.of(thread).buffer, to);
                    }
                    Right::Cols(_) => {
                        fill::left_cols(left.from(0, k0), rows.clone(), ks.len(), place, to);
                    }
                }
            }
        }
    });
}

/// `into = scale left byᵀ` for the rows that lie in `packed`.
#[allow(clippy::too_many_arguments)]
pub(super) fn multiply(
    hands: &Hands,
    threads: &Threads,
    right: Right,
    blocks: &Blocks,
    packed: &[f32],
    by: &[f32],
    scale: f32,
    into: &mut [f32],
) {
    let (rank, whole) = (blocks.rank, blocks.k.div_ceil(K_TILE));
    let (rows, transposed) = (into.len() / rank, matches!(right, Right::Rows(_)));
    let out = Out::new(into, rank);
    hands.run(blocks.pairs, &|pair, thread| {
        let mut scratch = threads.of(thread);
        let sums = &mut scratch.sums.at(0)[..SIDE * SIDE];
        // SAFETY: the product checked that this processor has AMX and that its kernel lets us use it.
        let tiles = unsafe { Tiles::configure() };
        for (unit, by) in (0..rank).step_by(SIDE).zip(by.chunks_exact(2 * TILE * whole)) {
            let rows = pair * SIDE..rows.min((pair + 1) * SIDE);
            let (m, n) = (rows.len(), rank - unit);
            for block in blocks.each() {
                let first = block.ks.start / K_TILE;
                let left = &packed[block.tiles(pair)];
                let square = Square { at: sums.as_mut_ptr(), line: SIDE };
                // SAFETY: two runs of tiles of rows and pairs of tiles of columns, `block.main` of each inside both operands.
                unsafe {
                    if transposed {
                        let (by, left) = (row_tiles(by, first, whole), col_tiles(left, 0));
                        tiles.sum(by, left, block.main, first == 0, square, n > 16, m > 16, &mut ());
                    } else {
                        let (by, left) = (col_tiles(by, first), row_tiles(left, 0, block.steps));
                        tiles.sum(left, by, block.main, first == 0, square, m > 16, n > 16, &mut ());
                    }
                }
            }
            sums.iter_mut().for_each(|x| *x *= scale);
            let cols = unit..rank.min(unit + SIDE);
            // SAFETY: the product checked the instructions; this task alone touches these rows.
            unsafe { stage::Stage { rows, cols, transposed }.end(&out, sums) };
        }
    });
}
