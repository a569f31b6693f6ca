//! [16-bit integers](super::super::int16) into packed rows and panels: a step is a pair of elements, the first in the lower half, and each group ends with a
//! step of its scales, as floats.

use std::ops::Range;

use super::super::Weight;
use super::super::int16::{self, Extent, GROUP};
use super::super::product::Left;
use super::{Block, COLS_ROWS, Deal};
use crate::dequant::{Inverses, MOST_RUNS, RUN, Source, Strip, add_bounds, add_squares, bounded, extents, to_integers};
use crate::per_isa::per_isa;
use crate::{BlockType, Isa};

/// Distance of rows of pairs that are to be transposed: a line more than they have.
pub(super) const APART: usize = GROUP / 2 + 16;
/// Rows of a tile, and of a vector, at most.
const ROWS: usize = 16;

/// Steps of `len` elements from the beginning of a group on.
pub(super) fn steps(len: usize) -> usize {
    let rest = len % GROUP;
    len / GROUP * (GROUP / 2 + 1) + if rest > 0 { rest.div_ceil(2) + 1 } else { 0 }
}

/// The groups of `len` elements, and the step that each begins with.
fn groups(len: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
    (0..len).step_by(GROUP).map(move |at| (at..len.min(at + GROUP), steps(at)))
}

/// The integers of rows of a group, as pairs that stand where floats do, [`APART`] from one row to the next, and their scales.
fn quantize(isa: Isa, rows: Strip, pairs: &mut [f32], scales: &mut [f32]) {
    let (count, len, mut all, mut inverses) = (rows.rows, rows.len, [Extent::NONE; ROWS], [0.0; ROWS]);
    extents(isa, rows, &mut all[..count]);
    to_scales(isa, &all[..count], scales, &mut inverses);
    let words: &mut [i16] = bytemuck::cast_slice_mut(pairs);
    if len % 2 == 1 {
        words[len..].iter_mut().step_by(2 * APART).take(count).for_each(|last| *last = 0);
    }
    to_integers(isa, rows, Inverses::OfRows(&inverses[..count]), words, 2 * APART);
}

/// Packs `len` elements of each of a tile's rows.
pub(super) fn pack(block: &Block, left: Left, rows: usize, len: usize, to: &mut [f32]) {
    assert!(left.k == 1 && rows <= ROWS, "a left operand of integers has rows");
    let (kernel, from) = (block.kernel, left.data.floats());
    let mut turned = [0.0; ROWS * APART];
    for (group, first) in groups(len) {
        let pairs = group.len().div_ceil(2);
        let (to, scales) = to[first * rows..(first + pairs + 1) * rows].split_at_mut(pairs * rows);
        let all = &from[group.start..][..(rows - 1) * left.row + group.len()];
        let all = Source::Blocks(BlockType::F32, bytemuck::cast_slice(all));
        let strip = Strip { first: all, apart: size_of::<f32>() * left.row, rows, len: group.len() };
        quantize(block.isa, strip, &mut turned, scales);
        for r in (0..rows).step_by(kernel.lanes) {
            let count = kernel.lanes.min(rows - r);
            // SAFETY: the processor has the instructions (checked by the product); there are so many rows of pairs, and as many steps of `rows` in `to`.
            unsafe {
                let (from, to) = (turned.as_ptr().add(r * APART), to.as_mut_ptr().add(r));
                (kernel.transpose)(from, APART, count, to, rows, pairs);
            }
        }
    }
}

/// Transposes rows of a group, a vector's at most, into their side of a panel.
pub(super) fn turn(block: &Block, rows: Strip, to: &mut [f32], buffer: &mut [f32]) {
    let (lanes, count, pairs) = (block.kernel.lanes, rows.rows, rows.len.div_ceil(2));
    assert!(rows.len <= GROUP, "{} elements of a group", rows.len);
    let (to, scales) = to.split_at_mut(2 * pairs * lanes);
    let (buffer, scales) = (&mut buffer[..lanes * APART], &mut scales[..lanes]);
    buffer[count * APART..].fill(0.0);
    scales[count..].fill(0.0);
    quantize(block.isa, rows, buffer, &mut scales[..count]);
    // SAFETY: the processor has the instructions (checked by the product); there are as many rows, and as many steps of two vectors but for the last one's second.
    unsafe { (block.kernel.transpose)(buffer.as_ptr(), APART, lanes, to.as_mut_ptr(), 2 * lanes, pairs) };
}

/// Columns `js` of rows `ks` of `w` into so many panels from `to` on: a look at all rows of a group for the scales, at no more than their blocks' own numbers
/// where these say enough, and another one for the integers.
pub(super) fn fill(
    block: &Block,
    w: &Weight,
    js: Range<usize>,
    ks: Range<usize>,
    (to, count): (&mut [f32], usize),
    buffer: &mut [f32],
) {
    let (panel_len, apart, isa) = (2 * block.kernel.lanes, block.sizes.panels_apart, block.isa);
    let width = count * panel_len;
    let (buffer, rest) = buffer.split_at_mut(COLS_ROWS * width);
    let numbers = &mut rest[..width];
    for (group, first) in groups(ks.len()) {
        let group = ks.start + group.start..ks.start + group.end;
        let pieces = || group.clone().step_by(COLS_ROWS).map(|row| row..group.end.min(row + COLS_ROWS));
        let bounded = bounded(&w.strip(group.start..group.start + 1, js.clone()));
        let mut runs = [Extent::NONE; MOST_RUNS];
        let runs = &mut runs[..if bounded { js.len() / RUN } else { 0 }];
        numbers.fill(0.0);
        for rows in pieces() {
            (rows.end..group.end).take(COLS_ROWS).for_each(|row| w.fetch(row, js.start, js.end));
            let strip = w.strip(rows, js.clone());
            if bounded { add_bounds(isa, strip, runs) } else { add_squares(isa, strip, &mut numbers[..js.len()]) }
        }
        // Of the next group, while this one is worked on from near memory.
        (group.end..ks.end).take(COLS_ROWS).for_each(|row| w.fetch(row, js.start, js.end));
        let (mut scales, mut inverses) = ([0.0; MOST_RUNS], [0.0; MOST_RUNS]);
        if bounded {
            to_scales(isa, runs, &mut scales, &mut inverses);
            numbers.chunks_mut(RUN).zip(scales).for_each(|(numbers, scale)| numbers.fill(scale));
        } else {
            measured_to_scales(isa, numbers);
        }
        let pairs = group.len().div_ceil(2);
        for (piece, scales) in numbers.chunks_exact(panel_len).enumerate() {
            to[piece * apart + (first + pairs) * panel_len..][..panel_len].copy_from_slice(scales);
        }
        for rows in pieces() {
            let to = &mut to[(first + (rows.start - group.start) / 2) * panel_len..];
            let rows_len = rows.len();
            let (from, row, by) = if bounded {
                let words: &mut [i16] = bytemuck::cast_slice_mut(buffer);
                let inverses = Inverses::OfRuns(&inverses[..js.len() / RUN]);
                to_integers(isa, w.strip(rows, js.clone()), inverses, words, width);
                (words.as_ptr().cast(), width, None)
            } else {
                let (from, row) = block.read(w, js.clone(), rows, width, buffer);
                assert!(from.len() >= (rows_len - 1) * row + width, "rows of {width}");
                (from.as_ptr(), row, Some(&*numbers))
            };
            assert!(to.len() >= (count - 1) * apart + rows_len.div_ceil(2) * panel_len, "room in {count} panels");
            let d = Deal { from, row, rows: rows_len, count, to: to.as_mut_ptr(), apart };
            // SAFETY: the processor has the instructions (checked by the product); there are so many rows of so many pieces, and room for their pairs in as
            // many panels, by the assertions and those of the functions that made them.
            unsafe {
                match by {
                    None => (block.kernel.interleave)(d),
                    Some(scales) => (block.kernel.interleave_floats)(d, Scales(scales.as_ptr())),
                }
            };
        }
    }
}

per_isa!(fn to_scales(all: &[Extent], scales: &mut [f32], inverses: &mut [f32]) = to_scales_body);

/// Scales of groups, a vector's at most, and what their elements are multiplied with.
#[inline(always)]
fn to_scales_body(all: &[Extent], scales: &mut [f32], inverses: &mut [f32]) {
    let mut each = [Extent::NONE; ROWS];
    each[..all.len()].copy_from_slice(all);
    // Roots and quotients of all lanes at once.
    let (mut scale, mut inverse) = ([0.0; ROWS], [0.0; ROWS]);
    for ((extent, scale), inverse) in each.iter().zip(&mut scale).zip(&mut inverse) {
        *scale = extent.scale();
        *inverse = int16::inverse(*scale);
    }
    scales[..all.len()].copy_from_slice(&scale[..all.len()]);
    inverses[..all.len()].copy_from_slice(&inverse[..all.len()]);
}

per_isa!(fn measured_to_scales(squares: &mut [f32]) = measured_to_scales_body);

/// Sums of squares become scales.
#[inline(always)]
fn measured_to_scales_body(squares: &mut [f32]) {
    for x in squares {
        *x = Extent::measured(*x).scale();
    }
}

/// A scale for each column.
pub(in super::super) struct Scales(*const f32);

/// Copies pieces of 16-bit integers, which `d.from` points to and counts, to their panels, pairs of rows in one; a last row without another has a zero.
///
/// # Safety
/// All pieces can be read, and their pairs written.
#[inline(always)]
pub(in super::super) unsafe fn interleave<const PIECE: usize>(d: Deal) {
    let from = d.from.cast::<u16>();
    for pair in 0..d.rows.div_ceil(2) {
        for piece in 0..d.count {
            // SAFETY: the caller's promise; the second row is only read where there is one.
            unsafe {
                let low = from.add(2 * pair * d.row + piece * PIECE);
                let mut pairs = [0_u32; PIECE];
                if 2 * pair + 1 < d.rows {
                    let high = low.add(d.row).cast::<[u16; PIECE]>().read_unaligned();
                    for (pair, high) in pairs.iter_mut().zip(high) {
                        *pair = u32::from(high) << 16;
                    }
                }
                for (pair, low) in pairs.iter_mut().zip(low.cast::<[u16; PIECE]>().read_unaligned()) {
                    *pair |= u32::from(low);
                }
                d.to.add(piece * d.apart + pair * PIECE).cast::<[u32; PIECE]>().write_unaligned(pairs);
            }
        }
    }
}

/// [`interleave`] of pieces of floats, which become integers on the way.
///
/// # Safety
/// As [`interleave`]; there is a scale for each column.
#[inline(always)]
pub(in super::super) unsafe fn interleave_floats<const PIECE: usize>(d: Deal, by: Scales) {
    for piece in 0..d.count {
        // SAFETY: the caller's promise.
        let mut inverses = unsafe { by.0.add(piece * PIECE).cast::<[f32; PIECE]>().read_unaligned() };
        for x in &mut inverses {
            *x = int16::inverse(*x);
        }
        for pair in 0..d.rows.div_ceil(2) {
            // SAFETY: as above; the second row is only read where there is one.
            unsafe {
                let read = |row: usize| d.from.add(row * d.row + piece * PIECE).cast::<[f32; PIECE]>().read_unaligned();
                let low = read(2 * pair);
                let high = if 2 * pair + 1 < d.rows { read(2 * pair + 1) } else { [0.0; PIECE] };
                let mut pairs = [0_u32; PIECE];
                for (c, pair) in pairs.iter_mut().enumerate() {
                    let [low, high] = [low[c], high[c]].map(|x| int16::integer(x, inverses[c]) as u16);
                    *pair = u32::from(low) | u32::from(high) << 16;
                }
                d.to.add(piece * d.apart + pair * PIECE).cast::<[u32; PIECE]>().write_unaligned(pairs);
            }
        }
    }
}
