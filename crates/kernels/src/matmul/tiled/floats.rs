//! Floats into packed rows and panels: an element is a step. Rounded to bf16 where that is asked for.

use std::ops::Range;

use super::super::Weight;
use super::super::product::Left;
use super::{Block, COLS_ROWS, Kernel};
use crate::dequant::{Strip, dequantize_rows};
use crate::lanes::Lanes;
use crate::values::round_bf16;

/// Rows of pieces of two vectors, which lie side by side, to be dealt to panels, one piece of each row to each.
#[derive(Clone, Copy)]
pub(in super::super) struct Deal {
    pub from: *const f32,
    /// From a row to the next.
    pub row: usize,
    pub rows: usize,
    /// Pieces of a row.
    pub count: usize,
    /// Where the first panel takes them, one after another, and the distance of panels.
    pub to: *mut f32,
    pub apart: usize,
}

/// Copies the pieces to their panels.
///
/// # Safety
/// The processor has `L`'s instructions, and all pieces can be read and written.
#[inline(always)]
pub(in super::super) unsafe fn deal<L: Lanes>(d: Deal) {
    let piece_len = 2 * L::LANES;
    for row in 0..d.rows {
        for piece in 0..d.count {
            // SAFETY: the caller's promise.
            unsafe {
                let from = d.from.add(row * d.row + piece * piece_len);
                let to = d.to.add(piece * d.apart + row * piece_len);
                L::store(to, L::load(from));
                L::store(to.add(L::LANES), L::load(from.add(L::LANES)));
            }
        }
    }
}

/// Packs `len` elements of each of a tile's rows.
pub(super) fn pack(kernel: &Kernel, left: Left, rows: usize, len: usize, to: &mut [f32], bf16: bool) {
    let from = left.data.floats();
    if left.row == 1 {
        for (k, to) in to.chunks_exact_mut(rows).enumerate() {
            to.copy_from_slice(&from[k * left.k..][..rows]);
        }
    } else {
        assert_eq!(left.k, 1, "a left operand has its rows or its columns side by side");
        for r in (0..rows).step_by(kernel.lanes) {
            let count = kernel.lanes.min(rows - r);
            // SAFETY: the processor has the instructions (checked by the product); the last element of the rows is there, and
            // `to` has `len` steps of `rows` elements.
            unsafe {
                let (from, to) = (from.as_ptr().add(r * left.row), to.as_mut_ptr().add(r));
                (kernel.transpose)(from, left.row, count, to, rows, len);
            }
        }
    }
    if bf16 {
        to.iter_mut().for_each(|x| *x = round_bf16(*x));
    }
}

/// Transposes rows, a vector's at most, into their side of a panel.
pub(super) fn turn(block: &Block, rows: Strip, to: &mut [f32], buffer: &mut [f32], bf16: bool) {
    let (lanes, apart, len) = (block.kernel.lanes, block.sizes.rows_apart, rows.len);
    buffer[rows.rows * apart..lanes * apart].fill(0.0);
    dequantize_rows(block.isa, rows, buffer, apart);
    if bf16 {
        buffer[..lanes * apart].iter_mut().for_each(|x| *x = round_bf16(*x));
    }
    assert!(buffer.len() >= lanes * apart && apart >= len && to.len() >= (2 * len - 1) * lanes, "room for {len} steps");
    // SAFETY: the processor has the instructions (checked by the product); by the assertion there are as many rows and steps.
    unsafe { (block.kernel.transpose)(buffer.as_ptr(), apart, lanes, to.as_mut_ptr(), 2 * lanes, len) };
}

/// Columns `js` of rows `ks` of `w` into so many panels from `to` on.
pub(super) fn fill(
    block: &Block,
    w: &Weight,
    js: Range<usize>,
    ks: Range<usize>,
    (to, count): (&mut [f32], usize),
    buffer: &mut [f32],
    bf16: bool,
) {
    let (panel_len, apart) = (2 * block.kernel.lanes, block.sizes.panels_apart);
    let width = count * panel_len;
    for row0 in ks.clone().step_by(COLS_ROWS) {
        let rows = row0..ks.end.min(row0 + COLS_ROWS);
        (rows.end..ks.end).take(COLS_ROWS).for_each(|row| w.fetch(row, js.start, js.end));
        let (from, row) = if bf16 {
            dequantize_rows(block.isa, w.strip(rows.clone(), js.clone()), buffer, width);
            buffer[..rows.len() * width].iter_mut().for_each(|x| *x = round_bf16(*x));
            (&buffer[..rows.len() * width], width)
        } else {
            block.read(w, js.clone(), rows.clone(), width, buffer)
        };
        let to = &mut to[(row0 - ks.start) * panel_len..];
        assert!(from.len() >= (rows.len() - 1) * row + width, "rows of {width}");
        assert!(to.len() >= (count - 1) * apart + rows.len() * panel_len, "room in {count} panels");
        let d = Deal { from: from.as_ptr(), row, rows: rows.len(), count, to: to.as_mut_ptr(), apart };
        // SAFETY: the processor has the instructions (checked by the product); there are so many rows of so many pieces, and room for them in as
        // many panels, by the assertions.
        unsafe { (block.kernel.deal)(d) };
    }
}
