//! MLorc ([2506.01897](https://arxiv.org/abs/2506.01897)): AdamW whose two moments are kept as products of rank 4. A step rebuilds them, takes the gradient in, moves by what they are then, and
//! compresses them again: `m ≈ Q (Qᵀ m)`, where Q is an orthonormal basis of `m Ω` and Ω is random (the randomised SVD without oversampling, of which only the product is needed).
//!
//! ```text
//! m = β₁ m̃ + (1-β₁) g    v = β₂ ṽ + (1-β₂) g²    where ṽ is rebuilt below zero, it is the mean of the sizes of such numbers
//! p ← p (1 - lr wd) - lr/(1-β₁ᵗ) m / (sqrt(v)/sqrt(1-β₂ᵗ) + eps)
//! ```
//! A matrix is looked at twice: for `m Ω` and `v Ω`, and to move and compress. Sums over a row go by lanes, those over a column row after row, and those over rows in f64.

use super::{AdamW, Step};
use crate::math::{LANES, lane_sum};
use crate::per_isa::per_isa;
use crate::philox::Philox;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// The rank of each moment.
const RANK: usize = 4;
/// Factors of both: those of the first moment, and then those of the second.
pub const BOTH: usize = 2 * RANK;
/// Columns that one task compresses.
const WIDTH: usize = 256;

/// The constants of one update.
#[derive(Clone, Copy, Debug)]
pub struct Mlorc {
    /// Rates, decays and the update's number.
    pub adamw: AdamW,
    /// The seed of random matrices.
    pub seed: u64,
}

/// Both moments of some rows of a matrix as they are kept.
#[derive(Clone, Copy)]
pub struct Kept<'a> {
    /// `[rows, BOTH]`.
    pub left: &'a [f32],
    /// `[BOTH, cols]`.
    pub right: &'a [f32],
    /// What a second moment is where it was rebuilt below zero.
    pub raised: f32,
}

impl Mlorc {
    /// Where the streams of its random numbers begin.
    const STREAM: u64 = 1 << 60;

    /// The random numbers that Ω of a tensor is drawn from; moments share it.
    pub fn numbers(&self, tensor: usize) -> Philox {
        Philox::new(self.seed, Self::STREAM | self.adamw.step << 16 | tensor as u64)
    }

    /// Columns of Ω.
    pub const fn rank() -> usize {
        RANK
    }

    /// What second moments become that are rebuilt below zero; `sums` has two numbers for every row.
    pub fn raised(isa: Isa, pool: &Pool, left: &[f32], right: &[f32], sums: &mut [f32]) -> f32 {
        let rows = Rows::new(sums, 2);
        pool.run(rows.pieces(), &|task, _| below_zero(isa, row_of(left, task), right, rows.piece(task).0));
        let sum = |at: usize| sums.iter().skip(at).step_by(2).map(|&x| f64::from(x)).sum::<f64>();
        if sum(1) > 0.0 { (-sum(0) / sum(1)) as f32 } else { 0.0 }
    }

    /// The products of both moments of some rows with Ω, `[RANK, cols]`, into `y`, which lies as `left` does.
    pub fn sketch(&self, isa: Isa, pool: &Pool, kept: Kept, g: &[f32], omega: &[f32], y: &mut [f32]) {
        let (cols, rows) = (omega.len() / RANK, Rows::new(y, BOTH));
        pool.run(rows.pieces(), &|task, _| {
            let (left, g) = (row_of(kept.left, task), &g[task * cols..][..cols]);
            sketch_row(isa, self.adamw, left, kept.right, kept.raised, g, omega, rows.piece(task).0);
        });
    }

    /// Adds what both moments of some rows are along their bases `basis`, which lies as `left` does, to `right`.
    pub fn compress(&self, isa: Isa, pool: &Pool, kept: Kept, g: &[f32], basis: &[f32], right: &mut [f32]) {
        let cols = right.len() / BOTH;
        let right = Rows::new(right, cols);
        pool.run(cols.div_ceil(WIDTH), &|task, _| {
            let range = task * WIDTH..((task + 1) * WIDTH).min(cols);
            // SAFETY: tasks have columns of their own, and rows lie apart.
            let to = std::array::from_fn(|k| unsafe { right.range(k * cols + range.start..k * cols + range.end) });
            compress_columns(isa, self.adamw, kept, g, basis, (cols, range.start), to);
        });
    }

    /// Moves some rows.
    pub fn step(&self, isa: Isa, pool: &Pool, kept: Kept, g: &[f32], p: &mut [f32]) {
        let cols = kept.right.len() / BOTH;
        let p = Rows::new(p, cols);
        pool.run(p.pieces(), &|task, _| {
            let (p, range) = p.piece(task);
            step_row(isa, self.adamw, row_of(kept.left, task), kept.right, kept.raised, &g[range], p);
        });
    }
}

/// The left factors of row `at`.
fn row_of(left: &[f32], at: usize) -> &[f32; BOTH] {
    left[at * BOTH..][..BOTH].try_into().expect("a row has as many")
}

per_isa!(fn below_zero(left: &[f32; BOTH], right: &[f32], sums: &mut [f32]) = below_zero_body);
per_isa!(fn sketch_row(rule: AdamW, left: &[f32; BOTH], right: &[f32], raised: f32, g: &[f32], omega: &[f32], y: &mut [f32]) = sketch_body);
per_isa!(fn compress_columns(rule: AdamW, kept: Kept, g: &[f32], basis: &[f32], place: (usize, usize), to: [&mut [f32]; BOTH]) = compress_body);
per_isa!(fn step_row(rule: AdamW, left: &[f32; BOTH], right: &[f32], raised: f32, g: &[f32], p: &mut [f32]) = step_body);

#[inline(always)]
fn below_zero_body(left: &[f32; BOTH], right: &[f32], sums: &mut [f32]) {
    let cols = right.len() / BOTH;
    let of: [&[f32]; RANK] = std::array::from_fn(|k| &right[(RANK + k) * cols..][..cols]);
    let value = |of: [f32; RANK]| (0..RANK).fold(0.0_f32, |sum, k| left[RANK + k].mul_add(of[k], sum));
    sums[0] = lane_sum(of, |of| value(of).min(0.0));
    sums[1] = lane_sum(of, |of| if value(of) < 0.0 { 1.0 } else { 0.0 });
}

/// Both moments of `N` numbers of a row from column `at` on, the gradient taken in.
#[inline(always)]
fn moments<const N: usize>(
    rule: AdamW,
    left: &[f32; BOTH],
    right: &[f32],
    raised: f32,
    at: usize,
    g: &[f32],
) -> [[f32; N]; 2] {
    let cols = right.len() / BOTH;
    let g: &[f32; N] = g[..N].try_into().expect("as many");
    let (mut m, mut v) = ([0.0_f32; N], [0.0_f32; N]);
    for k in 0..RANK {
        let of = |k: usize| -> &[f32; N] { right[k * cols + at..][..N].try_into().expect("as many") };
        let (of_m, of_v) = (of(k), of(RANK + k));
        for lane in 0..N {
            m[lane] = left[k].mul_add(of_m[lane], m[lane]);
            v[lane] = left[RANK + k].mul_add(of_v[lane], v[lane]);
        }
    }
    for lane in 0..N {
        let rebuilt = if v[lane] < 0.0 { raised } else { v[lane] };
        m[lane] = rule.beta1.mul_add(m[lane], (1.0 - rule.beta1) * g[lane]);
        v[lane] = rule.beta2.mul_add(rebuilt, (1.0 - rule.beta2) * g[lane] * g[lane]);
    }
    [m, v]
}

#[inline(always)]
fn sketch_body(rule: AdamW, left: &[f32; BOTH], right: &[f32], raised: f32, g: &[f32], omega: &[f32], y: &mut [f32]) {
    let (cols, whole) = (g.len(), g.len() / LANES * LANES);
    let mut sums = [[0.0_f32; LANES]; BOTH];
    for at in (0..whole).step_by(LANES) {
        let both = moments::<LANES>(rule, left, right, raised, at, &g[at..]);
        for k in 0..RANK {
            let omega: &[f32; LANES] = omega[k * cols + at..][..LANES].try_into().expect("as many");
            for lane in 0..LANES {
                sums[k][lane] = both[0][lane].mul_add(omega[lane], sums[k][lane]);
                sums[RANK + k][lane] = both[1][lane].mul_add(omega[lane], sums[RANK + k][lane]);
            }
        }
    }
    for at in whole..cols {
        let [[m], [v]] = moments::<1>(rule, left, right, raised, at, &g[at..]);
        for k in 0..RANK {
            let (omega, lane) = (omega[k * cols + at], at - whole);
            sums[k][lane] = m.mul_add(omega, sums[k][lane]);
            sums[RANK + k][lane] = v.mul_add(omega, sums[RANK + k][lane]);
        }
    }
    y.iter_mut().zip(&sums).for_each(|(y, lanes)| *y = lane_sum([lanes], |[lane]| lane));
}

#[inline(always)]
fn compress_body(
    rule: AdamW,
    kept: Kept,
    g: &[f32],
    basis: &[f32],
    (cols, first): (usize, usize),
    mut to: [&mut [f32]; BOTH],
) {
    let width = to[0].len();
    let whole = width / LANES * LANES;
    for (row, g) in g.chunks_exact(cols).enumerate() {
        let (left, basis) = (row_of(kept.left, row), row_of(basis, row));
        for at in (0..whole).step_by(LANES) {
            let both = moments::<LANES>(rule, left, kept.right, kept.raised, first + at, &g[first + at..]);
            add(basis, &both, &mut to, at);
        }
        for at in whole..width {
            add(basis, &moments::<1>(rule, left, kept.right, kept.raised, first + at, &g[first + at..]), &mut to, at);
        }
    }
}

#[inline(always)]
fn add<const N: usize>(basis: &[f32; BOTH], both: &[[f32; N]; 2], to: &mut [&mut [f32]; BOTH], at: usize) {
    for k in 0..BOTH {
        let to = &mut to[k][at..at + N];
        for lane in 0..N {
            to[lane] = basis[k].mul_add(both[k / RANK][lane], to[lane]);
        }
    }
}

#[inline(always)]
fn step_body(rule: AdamW, left: &[f32; BOTH], right: &[f32], raised: f32, g: &[f32], p: &mut [f32]) {
    let (step, whole) = (Step::new(rule), g.len() / LANES * LANES);
    for at in (0..whole).step_by(LANES) {
        let [m, v] = moments::<LANES>(rule, left, right, raised, at, &g[at..]);
        let p = &mut p[at..at + LANES];
        for lane in 0..LANES {
            step.go(&mut p[lane], m[lane], v[lane]);
        }
    }
    for at in whole..g.len() {
        let [[m], [v]] = moments::<1>(rule, left, right, raised, at, &g[at..]);
        step.go(&mut p[at], m, v);
    }
}
