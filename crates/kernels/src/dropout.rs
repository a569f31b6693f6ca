//! Dropout with masks that are a function of a seed: the same elements are dropped whenever an element is asked for, forward, backward or
//! computed again, in whatever pieces. What stays is divided by the share that stays.

use crate::Pool;
use crate::philox::Philox;
use crate::rows::Rows;

const PIECE: usize = 16384;
/// Elements that one draw of four numbers decides, with 16 bits each.
const LANES: usize = 8;

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

    /// What the eight elements of block `block` are multiplied with.
    fn factors(&self, block: u64) -> [f32; LANES] {
        let four = self.numbers.at(block);
        std::array::from_fn(|lane| {
            let bits = four[lane / 2] >> (16 * (lane % 2)) & 0xffff;
            if bits < self.limit { 0.0 } else { self.scale }
        })
    }
}

/// `out = x` with the mask applied; `first` is the number of the first element.
pub fn forward(pool: &Pool, mask: Mask, first: usize, x: &[f32], out: &mut [f32]) {
    assert!(x.len() == out.len(), "{} {}", x.len(), out.len());
    each(pool, mask, first, out, &|out, at, factor| *out = x[at] * factor);
}

/// `gx = g` with the mask applied, added to what `gx` holds when `add`.
pub fn backward(pool: &Pool, mask: Mask, first: usize, g: &[f32], gx: &mut [f32], add: bool) {
    assert!(g.len() == gx.len(), "{} {}", g.len(), gx.len());
    if add {
        each(pool, mask, first, gx, &|gx, at, factor| *gx += g[at] * factor);
    } else {
        each(pool, mask, first, gx, &|gx, at, factor| *gx = g[at] * factor);
    }
}

fn each(pool: &Pool, mask: Mask, first: usize, to: &mut [f32], set: &(impl Fn(&mut f32, usize, f32) + Sync)) {
    let to = Rows::new(to, PIECE);
    pool.run(to.pieces(), &|task, _| {
        let (to, range) = to.piece(task);
        let (mut at, mut rest) = (range.start, to);
        while !rest.is_empty() {
            let (block, lane) = ((first + at) / LANES, (first + at) % LANES);
            let (now, later) = rest.split_at_mut((LANES - lane).min(rest.len()));
            let factors = mask.factors(block as u64);
            for (i, (to, factor)) in now.iter_mut().zip(&factors[lane..]).enumerate() {
                set(to, at + i, *factor);
            }
            at += now.len();
            rest = later;
        }
    });
}
