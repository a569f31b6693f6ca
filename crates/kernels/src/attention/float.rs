//! The products of attention in f32, over the vectors of each instruction set, and the rest as plain loops that are compiled for each: the same bits on all of them.

use std::array::from_fn;
use std::marker::PhantomData;

use super::TILE;
use super::kit::{self, GROUP, Kit, LANES, Lanes, Reach, SQUARE, To, Weights, padded};
use crate::Element;
use crate::lanes::Lanes as Vector;
use crate::math::exp;
use crate::tile::{COLUMNS, Left, View, mm};

impl Lanes for [f32; LANES] {
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn all(x: f32) -> Self {
        [x; LANES]
    }

    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        *from.first_chunk().expect("rows have whole groups of lanes")
    }

    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        *to.first_chunk_mut().expect("rows have whole groups of lanes") = self;
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        from_fn(|i| self[i] + other[i])
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        from_fn(|i| self[i] * other[i])
    }

    #[inline(always)]
    fn mul_add(self, by: Self, plus: Self) -> Self {
        from_fn(|i| self[i].mul_add(by[i], plus[i]))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        from_fn(|i| if self[i] > other[i] { self[i] } else { other[i] })
    }

    #[inline(always)]
    fn raised(self, before: Self, by: f32) -> Self {
        from_fn(|i| if self[i] > before[i] + by { self[i] } else { before[i] })
    }

    #[inline(always)]
    fn exp(mut self) -> Self {
        for x in &mut self {
            *x = exp(*x);
        }
        self
    }
}

/// Holds the owners' rows transposed, `[element][lane]`; what they meet is read where it lies. `ROWS` rows of as many
/// `VECTORS` are summed in registers.
pub(super) struct Float<'a, L, const ROWS: usize, const VECTORS: usize> {
    vector: PhantomData<L>,
    d: usize,
    owners: &'a mut [f32],
    /// The owners' rows as they are, with zeros after them.
    across: &'a mut [f32],
    weights: [&'a mut [f32]; 2],
    met: [View<'a>; 2],
    turned: [View<'a>; 2],
}

impl<'a, L: Vector, const ROWS: usize, const VECTORS: usize> Float<'a, L, ROWS, VECTORS> {
    /// Floats for `owners` heads of `d` elements.
    pub const fn len(d: usize, owners: usize) -> usize {
        2 * owners * TILE * (d + padded(d)) + 2 * SQUARE
    }

    /// # Safety
    /// The processor has `L`'s instructions.
    #[inline(always)]
    pub unsafe fn new(scratch: &'a mut [f32], d: usize, owners: usize) -> Self {
        let (own, rest) = scratch.split_at_mut(2 * owners * TILE * d);
        let (across, rest) = rest.split_at_mut(2 * owners * TILE * padded(d));
        let (first, rest) = rest.split_at_mut(SQUARE);
        let nothing = View { data: &[], stride: 0 };
        Self {
            vector: PhantomData,
            d,
            owners: own,
            across,
            weights: [first, &mut rest[..SQUARE]],
            met: [nothing; 2],
            turned: [nothing; 2],
        }
    }
}

/// Runs of lanes with the same reach: their first lane, that reach, and how many they are.
#[inline(always)]
fn groups(reach: Reach, lanes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let even = lanes <= GROUP || reach[0] == reach[1];
    let step = if even { lanes } else { GROUP };
    reach.into_iter().enumerate().map(move |(i, rows)| (i * step, rows, step)).take(if even { 1 } else { 2 })
}

impl<'a, L: Vector, const ROWS: usize, const VECTORS: usize> Kit<'a> for Float<'a, L, ROWS, VECTORS> {
    type Lanes = [f32; LANES];

    #[inline(always)]
    fn own(&mut self, owner: usize, which: usize, x: kit::View, rows: usize) {
        let (x, len) = (floats(x), TILE * self.d);
        let to = &mut self.owners[(2 * owner + which) * len..][..len];
        if rows < TILE {
            to.fill(0.0);
        }
        assert!(rows <= TILE && (rows == 0 || x.data.len() >= (rows - 1) * x.stride + self.d), "rows of an owner");
        for first in (0..rows).step_by(L::LANES) {
            let (from, count) = (&x.data[first * x.stride..], L::LANES.min(rows - first));
            // SAFETY: whoever made this promised the instructions; so many rows of `d` elements, and `d` rows of a tile.
            unsafe { L::transpose(from.as_ptr(), x.stride, count, to[first..].as_mut_ptr(), TILE, self.d) };
        }
    }

    #[inline(always)]
    fn own_across(&mut self, owner: usize, which: usize, x: kit::View, rows: usize) {
        let (x, len) = (floats(x), TILE * padded(self.d));
        let to = &mut self.across[(2 * owner + which) * len..][..len];
        to.fill(0.0);
        for (row, to) in to.chunks_exact_mut(padded(self.d)).enumerate().take(rows) {
            to[..self.d].copy_from_slice(&x.data[row * x.stride..][..self.d]);
        }
    }

    #[inline(always)]
    fn turn_to(&mut self, _tile: usize, _rows: usize) -> bool {
        false
    }

    #[inline(always)]
    fn meet(&mut self, which: usize, y: kit::View<'a>, _rows: usize) {
        self.met[which] = floats(y);
    }

    #[inline(always)]
    fn meet_turned(&mut self, which: usize, z: kit::View<'a>, _rows: usize) {
        self.turned[which] = floats(z);
    }

    #[inline(always)]
    fn scores(&mut self, owner: usize, which: usize, reach: Reach, lanes: usize, scores: &mut [f32]) {
        let (y, x) = (self.met[which], &self.owners[(2 * owner + which) * TILE * self.d..]);
        let (y, x) = (Left { data: y.data, row: y.stride, k: 1 }, View { data: x, stride: TILE });
        for (lane, rows, n) in groups(reach, lanes) {
            let x = View { data: &x.data[lane..], stride: TILE };
            // SAFETY: whoever made this promised that the processor has the instructions.
            unsafe { mm::<L, ROWS, VECTORS>((rows, n, self.d), y, x, &mut scores[lane..], TILE, false) };
        }
    }

    #[inline(always)]
    fn weigh(&mut self, which: usize, r: usize, lane: usize, weights: Weights<Self::Lanes>) {
        for (row, weights) in (r..).zip(weights) {
            let at = row * TILE + lane;
            weights[0].store(&mut self.weights[which][at..]);
            weights[1].store(&mut self.weights[which][at + LANES..]);
        }
    }

    #[inline(always)]
    fn weigh_across(&mut self, which: usize, r: usize, lane: usize, weights: Weights<Self::Lanes>) {
        self.weigh(which, r, lane, weights);
    }

    #[inline(always)]
    fn add(&mut self, z: usize, weights: usize, reach: Reach, lanes: usize, begins: bool, sums: &mut [f32]) {
        let z = Left { data: self.turned[z].data, row: 1, k: self.turned[z].stride };
        for (lane, rows, n) in groups(reach, lanes) {
            let weights = View { data: &self.weights[weights][lane..], stride: TILE };
            // SAFETY: whoever made this promised that the processor has the instructions.
            unsafe { mm::<L, ROWS, VECTORS>((self.d, n, rows), z, weights, &mut sums[lane..], TILE, !begins) };
        }
    }

    #[inline(always)]
    fn across(&mut self, owner: usize, which: usize, weights: usize, reach: Reach, lanes: usize, c: &mut [f32]) {
        let (width, d) = (padded(self.d), self.d.next_multiple_of(COLUMNS));
        let x = &self.across[(2 * owner + which) * TILE * width..];
        for (lane, rows, n) in groups(reach, lanes) {
            let weights = Left { data: &self.weights[weights][lane..], row: TILE, k: 1 };
            let x = View { data: &x[lane * width..], stride: width };
            // SAFETY: whoever made this promised that the processor has the instructions.
            unsafe { mm::<L, ROWS, VECTORS>((rows, d, n), weights, x, c, width, true) };
        }
    }

    #[inline(always)]
    fn finish(&mut self, sums: &[f32], factor: &[f32], rows: usize, to: To, (at, stride): (usize, usize)) {
        let (mut scaled, mut turned) = ([[0.0; TILE]; COLUMNS], [[0.0; COLUMNS]; TILE]);
        for first in (0..self.d).step_by(COLUMNS) {
            let count = COLUMNS.min(self.d - first);
            for (to, sums) in scaled.iter_mut().zip(sums.chunks_exact(TILE).skip(first)).take(count) {
                for lane in 0..TILE {
                    to[lane] = sums[lane] * factor[lane];
                }
            }
            for e in (0..COLUMNS).step_by(L::LANES) {
                let (from, to) = (scaled[e].as_ptr(), turned[0][e..].as_mut_ptr());
                // SAFETY: whoever made this promised the instructions; so many rows of a tile, and as many columns of `rows` rows.
                unsafe { L::transpose(from, TILE, L::LANES, to, COLUMNS, rows.min(TILE)) };
            }
            for (row, from) in turned.iter().enumerate().take(rows) {
                let at = at + row * stride + first;
                // SAFETY: the caller owns these rows.
                unsafe { bring(&from[..count], to, at) };
            }
        }
    }
}

/// Brings numbers to where a row's begin.
///
/// # Safety
/// As for [`Rows::range`](crate::rows::Rows::range).
#[inline(always)]
unsafe fn bring(from: &[f32], to: To, at: usize) {
    let place = at..at + from.len();
    // SAFETY: the caller's promise.
    unsafe {
        match to {
            To::Write(to) => match from.first_chunk::<COLUMNS>() {
                // A length that the compiler knows needs no call.
                Some(whole) => to.range(place).copy_from_slice(whole),
                None => to.range(place).copy_from_slice(from),
            },
            To::Add(to) => to.range(place).iter_mut().zip(from).for_each(|(to, x)| *to += x),
            To::Round(to) => to.range(place).iter_mut().zip(from).for_each(|(to, x)| *to = Element::of(*x)),
        }
    }
}

/// Where only floats are read.
#[inline(always)]
fn floats(x: kit::View) -> View {
    View { data: x.data.floats(), stride: x.stride }
}
