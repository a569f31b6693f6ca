//! Dropout with masks that are a function of a seed: the same elements are dropped whenever an element is asked for, forward, backward or
//! computed again, in whatever pieces. What stays is divided by the share that stays.

use crate::per_isa::per_isa;
use crate::philox::Philox;
use crate::rows::Rows;
use crate::{Isa, Pool};

const PIECE: usize = 16384;
/// Elements that one draw of four numbers decides, with 16 bits each.
const LANES: usize = 8;
/// Draws that are made at a time.
const MANY: usize = 16;

/// Which elements of a value are dropped.
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    numbers: Philox,
    /// An element whose 16 bits are below this is dropped.
    limit: u32,
    /// What the others are multiplied with.
    scale: f32,
}

impl Mask {
    /// Drops `share` of all elements (rounded to 1/65536), by the random numbers `numbers`.
    pub fn new(numbers: Philox, share: f32) -> Self {
        Self { numbers, limit: (share * 65536.0).round() as u32, scale: 1.0 / (1.0 - share) }
    }

    /// What element `number` is multiplied with.
    #[inline(always)]
    fn factor(&self, number: usize) -> f32 {
        let four = self.numbers.at((number / LANES) as u64);
        self.of(four[number % LANES / 2] >> (16 * (number % 2)))
    }

    /// What an element with these bits is multiplied with.
    #[inline(always)]
    fn of(&self, bits: u32) -> f32 {
        if bits & 0xffff < self.limit { 0.0 } else { self.scale }
    }

    /// What the elements of [`MANY`] blocks from block `first` on are multiplied with.
    #[inline(always)]
    fn factors(&self, first: u64) -> [f32; MANY * LANES] {
        let four = self.numbers.lanes::<MANY>(first);
        std::array::from_fn(|at| self.of(four[at % LANES / 2][at / LANES] >> (16 * (at % 2))))
    }
}

/// `out = x` with the mask applied; `first` is the number of the first element.
pub fn forward(isa: Isa, pool: &Pool, mask: Mask, first: usize, x: &[f32], out: &mut [f32]) {
    run(isa, pool, mask, first, x, out, false);
}

/// `gx = g` with the mask applied, added to what `gx` holds when `add`.
pub fn backward(isa: Isa, pool: &Pool, mask: Mask, first: usize, g: &[f32], gx: &mut [f32], add: bool) {
    run(isa, pool, mask, first, g, gx, add);
}

fn run(isa: Isa, pool: &Pool, mask: Mask, first: usize, from: &[f32], to: &mut [f32], add: bool) {
    assert!(from.len() == to.len(), "{} {}", from.len(), to.len());
    let to = Rows::new(to, PIECE);
    pool.run(to.pieces(), &|task, _| {
        let (to, range) = to.piece(task);
        apply(isa, mask, first + range.start, &from[range], to, add);
    });
}

per_isa!(fn apply(mask: Mask, first: usize, from: &[f32], to: &mut [f32], add: bool) = apply_body);

#[inline(always)]
fn apply_body(mask: Mask, first: usize, from: &[f32], to: &mut [f32], add: bool) {
    let put = |to: &mut f32, x: f32| *to = if add { *to + x } else { x };
    // Up to the first whole block, then many at a time, then the rest.
    let before = (LANES - first % LANES) % LANES;
    let before = before.min(from.len());
    let whole = (from.len() - before) / (MANY * LANES) * (MANY * LANES);
    for at in (0..before).chain(before + whole..from.len()) {
        put(&mut to[at], from[at] * mask.factor(first + at));
    }
    let chunks = from[before..before + whole].as_chunks::<{ MANY * LANES }>().0;
    let block = (first + before) / LANES;
    for (at, (from, to)) in chunks.iter().zip(to[before..].as_chunks_mut::<{ MANY * LANES }>().0).enumerate() {
        let factors = mask.factors((block + at * MANY) as u64);
        for lane in 0..MANY * LANES {
            put(&mut to[lane], from[lane] * factors[lane]);
        }
    }
}
