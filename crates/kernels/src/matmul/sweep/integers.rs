//! Tiles of [16-bit integers](super::super::int16): a step is a pair of them for each row and output, and a group's last step its scales, as floats. A
//! group is summed in registers; its sums then become floats and are added to the output.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::super::int16::GROUP;
use super::{Sweep, Tile, sweep};
use crate::fetch;
use crate::lanes::Lanes;

/// Steps of a whole group: its pairs and its scales.
pub(in super::super) const STEPS: usize = GROUP / 2 + 1;

/// What sums of two vectors begin with where they begin with nothing.
static ZEROS: [f32; 32] = [0.0; 32];

/// Vectors of integers beside those of floats, as many to a vector.
///
/// # Safety
/// As for [`Lanes`].
pub(in super::super) trait Pairs {
    type Floats: Lanes;
    /// Sums in 32 bits, or pairs of 16-bit integers.
    type I: Copy;
    /// How many steps ahead both operands are asked for; 0 where panels lie in the first-level cache.
    const AHEAD: usize;
    unsafe fn zero() -> Self::I;
    /// A pair, for all lanes.
    unsafe fn splat(pair: *const f32) -> Self::I;
    unsafe fn load(from: *const f32) -> Self::I;
    /// `sum + a.0 b.0 + a.1 b.1` for each lane's pairs.
    unsafe fn dot(sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `sum + x a b`, with `x` rounded to a float, `a b` rounded, and the rest fused.
    unsafe fn add(sum: Floats<Self>, x: Self::I, a: Floats<Self>, b: Floats<Self>) -> Floats<Self>;
}

type Floats<P> = <<P as Pairs>::Floats as Lanes>::V;

/// Tiles with the vectors `P`, of one group.
struct Integers<P>(PhantomData<P>);

/// [`sweep`] of one group after another over all rows: the group of the panel lies in the first-level cache meanwhile.
///
/// # Safety
/// As [`sweep`].
#[inline(always)]
pub(in super::super) unsafe fn sweep_groups<P: Pairs, const MR: usize>(s: &Sweep) {
    let mut s = Sweep { ..*s };
    for mut steps in [s.k, s.tail] {
        while steps > 0 {
            let group = steps.min(STEPS);
            // SAFETY: the caller's promise; there are so many steps more.
            unsafe { sweep::<Integers<P>, MR>(&Sweep { k: group, tail: 0, ..s }) };
            steps -= group;
            // The next one goes on from there.
            s = Sweep { first: s.first + group, init: s.out, init_row: s.out_row, ..s };
        }
    }
}

impl<P: Pairs> Tile for Integers<P> {
    const LANES: usize = P::Floats::LANES;

    #[inline(always)]
    unsafe fn tile<const MR: usize, const NV: usize>(s: &Sweep, row: usize, left: *const f32, left_k: usize) {
        // SAFETY: the caller's promise.
        unsafe { group::<P, MR, NV>(s, row, (left, left_k)) }
    }
}

/// Adds a group to what its sums begin with.
#[inline(always)]
unsafe fn group<P: Pairs, const MR: usize, const NV: usize>(
    s: &Sweep,
    row: usize,
    (left, left_k): (*const f32, usize),
) {
    let lanes = P::Floats::LANES;
    let (mut left, mut panel) = (left, s.panel.wrapping_add(s.first * 2 * lanes));
    // SAFETY: rows `row..row + MR` and columns `..n` are inside all three operands. The panel has whole vectors.
    unsafe {
        let mut sums = [[P::zero(); NV]; MR];
        for _ in 1..s.k {
            if P::AHEAD > 0 {
                fetch::line(left.wrapping_add(P::AHEAD * left_k).cast());
            }
            let mut b = [P::zero(); NV];
            for (j, b) in b.iter_mut().enumerate() {
                if P::AHEAD > 0 {
                    fetch::line(panel.wrapping_add((2 * P::AHEAD + j) * lanes).cast());
                }
                *b = P::load(panel.add(j * lanes));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let a = P::splat(left.wrapping_add(i));
                for (sum, &b) in sums.iter_mut().zip(&b) {
                    *sum = P::dot(*sum, a, b);
                }
            }
            left = left.wrapping_add(left_k);
            panel = panel.wrapping_add(2 * lanes);
        }
        let (init, init_row) = if s.init.is_null() { (ZEROS.as_ptr(), 0) } else { (s.init, s.init_row) };
        if s.n == NV * lanes {
            for (i, sums) in sums.iter().enumerate() {
                let a = P::Floats::splat(left.add(i));
                let (from, to) = (init.add((row + i) * init_row), s.out.add((row + i) * s.out_row));
                for (j, &sum) in sums.iter().enumerate() {
                    let (b, begin) = (P::Floats::load(panel.add(j * lanes)), P::Floats::load(from.add(j * lanes)));
                    P::Floats::store(to.add(j * lanes), P::add(begin, sum, a, b));
                }
            }
            return;
        }
        // Through memory, so that the sums are in registers above: this is no straight line.
        let mut done = [[MaybeUninit::uninit(); NV]; MR];
        for (done, sums) in done.as_flattened_mut().iter_mut().zip(sums.as_flattened()) {
            std::ptr::write_volatile(done, MaybeUninit::new(*sums));
        }
        for (i, done) in done.iter().enumerate() {
            let a = P::Floats::splat(left.add(i));
            for (j, done) in done.iter().enumerate() {
                let (at, count) = (j * lanes, s.n - j * lanes);
                let begin = P::Floats::load_up_to(init.add((row + i) * init_row + at), count);
                let sum = P::add(begin, done.assume_init(), a, P::Floats::load(panel.add(at)));
                P::Floats::store_up_to(s.out.add((row + i) * s.out_row + at), sum, count);
            }
        }
    }
}
