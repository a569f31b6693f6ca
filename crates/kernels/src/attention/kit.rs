//! What a sweep needs of a processor: lanes to compute on, and small products of tiles.
//!
//! The side that *owns* a tile is the lanes; it *meets* tiles of the other side. Owners and what they meet are handed over once and
//! used in several products, so a kit may keep them in whatever form its products read.

use half::bf16;

use super::TILE;
use crate::Values;
use crate::rows::Rows;

/// Rows of values: where the first begins, and how far apart they are.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub data: Values<'a>,
    pub stride: usize,
}

/// Rows to bring sums to.
#[derive(Clone, Copy)]
pub(super) enum To<'a> {
    /// In place of what is there.
    Write(&'a Rows<'a>),
    /// Plus what is there.
    Add(&'a Rows<'a>),
    /// Rounded, in place of what is there.
    Round(&'a Rows<'a, bf16>),
}

/// Lanes of one [`Lanes`].
pub(super) const LANES: usize = 16;
/// Lanes that are worked on together: a tile has whole groups of them.
pub(super) const GROUP: usize = 2 * LANES;

/// Elements of a head with what rows of [`Kit::across`] have after them.
pub(super) const fn padded(d: usize) -> usize {
    d.next_multiple_of(32)
}

/// Sixteen numbers that are computed on together.
pub(super) trait Lanes: Copy {
    /// [`Lanes::exp`] gives e to the power of its argument over this.
    const UNIT: f32;
    fn all(x: f32) -> Self;
    fn load(from: &[f32]) -> Self;
    fn store(self, to: &mut [f32]);
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self by + plus`, rounded once.
    fn mul_add(self, by: Self, plus: Self) -> Self;
    /// The larger; `other` where `self` is no number.
    fn max(self, other: Self) -> Self;
    /// `self` where it is above `before` by more than `by`, `before` elsewhere.
    fn raised(self, before: Self, by: f32) -> Self;
    /// At least as good as a kit's products; exactly 1 for 0 and 0 for minus infinity.
    fn exp(self) -> Self;
}

/// For each group of lanes, how many of the rows met it has weights for; all, or whole steps of a sum. The others are no part of any product.
pub(super) type Reach = [usize; TILE / GROUP];

/// Weights of two rows of the other side, for a group of lanes.
pub(super) type Weights<L> = [[L; 2]; 2];

/// Small products.
pub(super) trait Kit<'a> {
    type Lanes: Lanes;
    /// Takes `rows` rows of owner `owner`, operand `which` (0 or 1) of the scores to come.
    fn own(&mut self, owner: usize, which: usize, x: View, rows: usize);
    /// Takes them as an operand of [`Kit::across`].
    fn own_across(&mut self, owner: usize, which: usize, x: View, rows: usize);
    /// Turns to tile `tile` of the keys, of which `rows` rows are met. Whether they are known from before, and need not be met again.
    fn turn_to(&mut self, tile: usize, rows: usize) -> bool;
    /// Meets `rows` rows, operand `which` of scores.
    fn meet(&mut self, which: usize, y: View<'a>, rows: usize);
    /// Meets them as an operand of [`Kit::add`].
    fn meet_turned(&mut self, which: usize, z: View<'a>, rows: usize);
    /// `scores[r][lane] = y[r] x[lane]` for the rows met and the lanes of `owner`.
    fn scores(&mut self, owner: usize, which: usize, reach: Reach, lanes: usize, scores: &mut [f32]);
    /// Takes weights `which` of rows `r` and `r + 1` and a group of lanes from `lane` on, for [`Kit::add`].
    fn weigh(&mut self, which: usize, r: usize, lane: usize, weights: Weights<Self::Lanes>);
    /// Takes them for [`Kit::across`].
    fn weigh_across(&mut self, which: usize, r: usize, lane: usize, weights: Weights<Self::Lanes>);
    /// `sums[e][lane] += z[r][e] weights[r][lane]`, summed over the rows met; or `=`, where the sum `begins`.
    fn add(&mut self, z: usize, weights: usize, reach: Reach, lanes: usize, begins: bool, sums: &mut [f32]);
    /// `c[r][e] += weights[r][lane] x[lane][e]`, summed over the lanes of `owner`; rows of `c` are as long as [`padded`] says.
    fn across(&mut self, owner: usize, which: usize, weights: usize, reach: Reach, lanes: usize, c: &mut [f32]);
    /// `to[lane][e] = sums[e][lane] factor[lane]` for `rows` lanes, or `+=`; row `lane` begins at `at + lane stride`, and the caller owns it.
    fn finish(&mut self, sums: &[f32], factor: &[f32], rows: usize, to: To, place: (usize, usize));
}

/// Floats of a square of scores.
pub(super) const SQUARE: usize = TILE * TILE;
