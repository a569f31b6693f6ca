//! Operands into bf16 tiles. A tile of rows is `[16][32 of the sum]`; a tile of columns is `[16 pairs of the sum][16][2]`.
//!
//! Tiles of rows come as two runs of `steps` tiles, 16 rows each; tiles of columns as `steps` pairs. What no operand fills is zero.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::Weight;
use super::super::product::{Factor, Left};
use super::runs::Runs;
use super::{K_TILE, SIDE, TILE};
use crate::avx512::{halves, interleave, mask, round, rounded, transpose_16};
use crate::{Values, fetch};

/// Where in runs of `steps` tiles a filling begins: the sum may go on with another operand.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub first: usize,
    pub steps: usize,
}

/// How far ahead the left operand is asked for.
const PIECES_AHEAD: usize = 4;
/// And columns of values.
const COLS_AHEAD: usize = 2;

/// Elements `ks` of row `i` of the left operand in bf16, zeros after them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn left_piece(left: Left, i: usize, ks: Range<usize>) -> __m512i {
    // Sixteen or thirty-two rows are read side by side, more streams than a processor follows by itself.
    let mut piece = [0.0; K_TILE];
    match left.from(i, ks.start).data {
        Values::Bf16(from) => {
            let from = &from[..ks.len()];
            fetch::line(from.as_ptr().wrapping_add(PIECES_AHEAD * K_TILE).cast());
            return halves(from);
        }
        Values::F32(from) => match from.first_chunk() {
            Some(whole) if left.k == 1 && ks.len() == K_TILE => {
                piece = *whole;
                for line in [PIECES_AHEAD * K_TILE, PIECES_AHEAD * K_TILE + 16] {
                    fetch::line(from.as_ptr().wrapping_add(line).cast());
                }
            }
            _ => piece.iter_mut().zip(from.iter().step_by(left.k)).take(ks.len()).for_each(|(to, from)| *to = *from),
        },
    }
    // SAFETY: the piece has 32 floats.
    unsafe { round(_mm512_loadu_ps(piece.as_ptr()), _mm512_loadu_ps(piece.as_ptr().add(16))) }
}

/// `rows` (32 at most) and `len` columns of the left operand into tiles of rows.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn left_rows(left: Left, rows: Range<usize>, len: usize, place: Place, to: &mut [f32]) {
    // Rows that are columns in memory lie as a factor does.
    if let (1, Values::F32(data)) = (left.row, left.data) {
        let factor = Factor { data, rank: len, cols: left.k };
        // SAFETY: the caller's promise.
        return unsafe { factor_rows(&factor, rows, place, to) };
    }
    for (half, tiles) in to.chunks_exact_mut(place.steps * TILE).enumerate() {
        let tiles = &mut tiles[place.first * TILE..];
        for (step, tile) in tiles.chunks_exact_mut(TILE).enumerate().take(len.div_ceil(K_TILE)) {
            let ks = step * K_TILE..len.min((step + 1) * K_TILE);
            for (i, to) in (rows.start + half * 16..).zip(tile.as_chunks_mut().0) {
                let piece = if i < rows.end { left_piece(left, i, ks.clone()) } else { _mm512_setzero_si512() };
                let to: &mut [f32; 16] = to;
                // SAFETY: `to` has 64 bytes.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), piece) };
            }
        }
    }
}

/// `rows` (32 at most) and `len` columns of the left operand into tiles of columns.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn left_cols(left: Left, rows: Range<usize>, len: usize, place: Place, to: &mut [f32]) {
    let to = &mut to[place.first * 2 * TILE..];
    for (step, pair) in to.chunks_exact_mut(2 * TILE).enumerate().take(len.div_ceil(K_TILE)) {
        let ks = step * K_TILE..len.min((step + 1) * K_TILE);
        for (half, tile) in pair.chunks_exact_mut(TILE).enumerate() {
            let mut square = [_mm512_setzero_ps(); 16];
            for (i, row) in (rows.start + half * 16..rows.end).zip(&mut square) {
                *row = _mm512_castsi512_ps(left_piece(left, i, ks.clone()));
            }
            for (to, pairs) in tile.as_chunks_mut::<16>().0.iter_mut().zip(transpose_16(square)) {
                // SAFETY: `to` has 64 bytes.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), pairs) };
            }
        }
    }
}

/// Columns `ks` of rows `js` of `w` into tiles of rows. `buffer` has room for a row.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn weight_rows(
    w: &Weight,
    js: Range<usize>,
    ks: Range<usize>,
    place: Place,
    buffer: &mut [f32],
    to: &mut [f32],
) {
    if let Some(runs) = Runs::of(w) {
        // SAFETY: the caller's promise.
        return unsafe { runs.rows(js, ks, place, to) };
    }
    let steps = ks.len().div_ceil(K_TILE);
    let buffer: &mut [u16] = &mut bytemuck::cast_slice_mut(buffer)[..steps * K_TILE];
    buffer.fill(0);
    for j in 0..js.len().next_multiple_of(SIDE) {
        if j < js.len() {
            w.fetch(js.start + j + 2, ks.start, ks.end);
            // SAFETY: the caller's promise.
            unsafe { w.read_bf16(js.start + j, ks.clone(), &mut buffer[..ks.len()]) };
        } else {
            buffer.fill(0);
        }
        let tiles = &mut to[(j / 16 * place.steps + place.first) * TILE..][..steps * TILE];
        for (from, tile) in buffer.as_chunks::<K_TILE>().0.iter().zip(tiles.as_chunks_mut::<TILE>().0) {
            tile[j % 16 * 16..][..16].copy_from_slice(bytemuck::cast_slice(from));
        }
    }
}

/// Columns `js` of rows `ks` of `w` into tiles of columns, two rows interleaved. `buffer` has room for two rows.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn weight_cols(
    w: &Weight,
    js: Range<usize>,
    ks: Range<usize>,
    place: Place,
    buffer: &mut [f32],
    to: &mut [f32],
) {
    if let Some(values) = w.values() {
        return value_cols(w, values, js, ks, place, to);
    }
    if let Some(runs) = Runs::of(w) {
        // SAFETY: the caller's promise.
        return unsafe { runs.cols(js, ks, place, to) };
    }
    let steps = ks.len().div_ceil(K_TILE);
    let padded = js.len().next_multiple_of(SIDE);
    let buffer: &mut [u16] = &mut bytemuck::cast_slice_mut(buffer)[..2 * padded];
    buffer.fill(0);
    let (first, second) = buffer.split_at_mut(padded);
    for pair in 0..steps * K_TILE / 2 {
        for (k, row) in (ks.start + 2 * pair..).zip([&mut *first, &mut *second]) {
            let row = &mut row[..js.len()];
            if k < ks.end {
                w.fetch(k + 12, js.start, js.end);
                // SAFETY: the caller's promise.
                unsafe { w.read_bf16(k, js.clone(), row) };
            } else {
                row.fill(0);
            }
        }
        // Pair `pair` is row `pair mod 16` of tile `pair / 16`, for each 16 outputs.
        let (step, row) = (pair / 16, pair % 16);
        for (v, (a, b)) in first.as_chunks::<SIDE>().0.iter().zip(second.as_chunks::<SIDE>().0).enumerate() {
            let tiles = &mut to[(v * place.steps + place.first + step) * 2 * TILE..][..2 * TILE];
            // SAFETY: both have 64 bytes.
            let (a, b) = unsafe { (_mm512_loadu_si512(a.as_ptr().cast()), _mm512_loadu_si512(b.as_ptr().cast())) };
            for (half, pairs) in interleave(a, b).into_iter().enumerate() {
                let to: &mut [f32] = &mut tiles[half * TILE + row * 16..][..16];
                // SAFETY: `to` has 64 bytes.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
            }
        }
    }
}

/// [`weight_cols`] of values: nothing to dequantise, so rows go straight from memory to tiles.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn value_cols(w: &Weight, values: Values, js: Range<usize>, ks: Range<usize>, place: Place, to: &mut [f32]) {
    let row = |k: usize, j: usize| {
        let count = if k < ks.end { SIDE.min(js.end - j) } else { 0 };
        let at = if count == 0 { 0 } else { k * w.cols + j };
        match values {
            Values::Bf16(from) => halves(&from[at..at + count]),
            Values::F32(from) => rounded(&from[at..at + count]),
        }
    };
    let line = |k: usize, j: usize| {
        let at = k * w.cols + j;
        match values {
            Values::Bf16(from) => fetch::line(from.as_ptr().wrapping_add(at).cast()),
            Values::F32(from) => {
                fetch::line(from.as_ptr().wrapping_add(at).cast());
                fetch::line(from.as_ptr().wrapping_add(at + 16).cast());
            }
        }
    };
    // A pair of tiles after another, so that they are written in one piece; rows are asked for as those of a left operand are.
    for step in 0..ks.len().div_ceil(K_TILE) {
        for (v, j) in js.clone().step_by(SIDE).enumerate() {
            let tiles = &mut to[(v * place.steps + place.first + step) * 2 * TILE..][..2 * TILE];
            // Behind the last columns come the first of the next rows.
            let (below, ahead) = match j + COLS_AHEAD * SIDE {
                ahead if ahead < js.end => (0, ahead),
                ahead => (K_TILE, js.start + ahead - js.end),
            };
            for pair in 0..16 {
                let k = ks.start + step * K_TILE + 2 * pair;
                line(k + below, ahead);
                line(k + 1 + below, ahead);
                for (half, pairs) in interleave(row(k, j), row(k + 1, j)).into_iter().enumerate() {
                    let to: &mut [f32] = &mut tiles[half * TILE + pair * 16..][..16];
                    // SAFETY: `to` has 64 bytes.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
                }
            }
        }
    }
}

/// Columns `js` of all rows of a factor into tiles of rows: the sum runs over its rows, and so it is transposed, as pairs of them.
///
/// # Safety
/// The processor has AVX-512 with BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn factor_rows(factor: &Factor, js: Range<usize>, place: Place, to: &mut [f32]) {
    for (run, j) in (js.start..js.start + js.len().next_multiple_of(SIDE)).step_by(16).enumerate() {
        let lanes = mask(js.end.saturating_sub(j));
        let row = |k: usize| {
            let from = factor.data.as_ptr().wrapping_add(k * factor.cols + j);
            // SAFETY: lanes of row `k` that lie inside it, or none.
            unsafe { _mm512_maskz_loadu_ps(if k < factor.rank { lanes } else { 0 }, from) }
        };
        for step in 0..factor.rank.div_ceil(K_TILE) {
            let mut square = [_mm512_setzero_ps(); 16];
            for (pair, to) in square.iter_mut().enumerate() {
                let k = step * K_TILE + 2 * pair;
                // The first 16 of each rounded half belong to row `k`, the others to the next.
                let rows = round(row(k), row(k + 1));
                let next = _mm512_shuffle_i64x2::<0b11_10_11_10>(rows, rows);
                *to = _mm512_castsi512_ps(interleave(rows, next)[0]);
            }
            let tile = &mut to[(run * place.steps + place.first + step) * TILE..][..TILE];
            for (to, row) in tile.as_chunks_mut::<16>().0.iter_mut().zip(transpose_16(square)) {
                // SAFETY: `to` has 64 bytes.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), row) };
            }
        }
    }
}
