//! A strip of outputs against one pair of tiles of rows after another, while the next strip's weights become tiles.

use super::runs::Filling;
use super::stage::Ahead;
use crate::amx::{Beside, Pair, SIDE, Square, Tiles};

/// What is summed: two runs of tiles for each pair of rows. Weights and the left operand are either.
pub(super) struct Sweep<'a> {
    pub tiles: &'a Tiles,
    pub rows: Pair,
    pub cols: Pair,
    /// Floats from a pair's tiles to the next pair's, for each operand; weights are the same for all.
    pub apart: (usize, usize),
    pub steps: usize,
    /// How many pairs there are.
    pub count: usize,
}

/// A pair of rows' turn.
pub(super) struct Turn {
    /// Which of them.
    pub pair: usize,
    /// A square, and whether its sums begin with nothing.
    pub sums: *mut f32,
    pub zero: bool,
    /// What is asked for meanwhile.
    pub ahead: Ahead,
}

/// What a sweep has done for it.
pub(super) trait Turns {
    fn turn(&mut self, at: usize) -> Turn;
    /// What belongs before a part of the sums of a turn.
    fn part(&mut self, at: usize, part: usize);
}

#[derive(Clone, Copy)]
struct Both<F>(F, Ahead);

impl<F: Filling> Beside for Both<F> {
    #[inline(always)]
    unsafe fn step(&mut self) {
        // SAFETY: the caller's promise.
        unsafe {
            self.0.step();
            self.1.step();
        }
    }
}

/// All sums of the strip, with `fill` done to its end. Where the second tile of an operand is said to count for nothing, it is left out.
///
/// # Safety
/// The processor has AMX and AVX-512 with BF16 and VBMI, and all tiles and sums of all turns can be read and written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn sweep<F: Filling, const ROWS: bool, const COLS: bool>(fill: F, s: &Sweep, turns: &mut dyn Turns) {
    let mut beside = Both(fill, Ahead::NONE);
    for at in 0..s.count {
        let turn = turns.turn(at);
        let by = |pair: Pair, apart: usize| Pair { at: pair.at.wrapping_add(turn.pair * apart), ..pair };
        let (rows, cols) = (by(s.rows, s.apart.0), by(s.cols, s.apart.1));
        let sums = Square { at: turn.sums, line: SIDE };
        beside.1 = turn.ahead;
        // SAFETY: the caller's promise.
        unsafe {
            s.tiles.sum_beside::<ROWS, COLS>(rows, cols, s.steps, turn.zero, sums, &mut beside, &mut |part| {
                turns.part(at, part);
            });
        }
    }
    // SAFETY: the caller's promise.
    unsafe { beside.0.end() };
}
