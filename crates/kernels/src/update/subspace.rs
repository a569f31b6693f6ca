//! GaLore ([2403.03507](https://arxiv.org/abs/2403.03507)): AdamW of the gradient's projection onto its leading singular vectors, on the side where it is smaller. They are found anew every 200 updates, by a
//! randomised range finder with power iterations and a turn to the singular directions ([`super::turn`]); moments stay as they are then, as its authors have it.
//!
//! ```text
//! R = Pᵀ G    m, v of R    N = sqrt(1-β₂ᵗ)/(1-β₁ᵗ) m / (sqrt v + eps)    p ← p (1 - lr wd) - lr scale P N        (or R = G P and N Pᵀ)
//! ```

use super::{AdamW, MOST_TURNED};
use crate::per_isa::per_isa;
use crate::philox::Philox;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Vectors that the range finder works with beyond those that are wanted.
const BEYOND: usize = 8;
const PIECE: usize = 16384;

/// The constants of one update.
#[derive(Clone, Copy, Debug)]
pub struct Galore {
    /// Rates, decays and the update's number.
    pub adamw: AdamW,
    /// Singular vectors that gradients are projected onto.
    pub rank: usize,
    /// What steps are multiplied with.
    pub scale: f32,
    /// The seed of what the range finder begins with.
    pub seed: u64,
}

impl Galore {
    /// Updates after which the projection is another.
    const RENEWED: u64 = 200;
    /// Where the streams of its random numbers begin.
    const STREAM: u64 = 1 << 59;
    /// Products with `G Gᵀ` after which vectors are turned.
    pub const POWERS: usize = 3;

    /// Vectors that a matrix whose smaller side is `small` is projected onto, of `rank`.
    pub const fn kept(rank: usize, small: usize) -> usize {
        if rank < small { rank } else { small }
    }

    /// Vectors that these are found among.
    pub const fn tried(rank: usize, small: usize) -> usize {
        let tried = Self::kept(rank + BEYOND, small);
        if tried < MOST_TURNED { tried } else { MOST_TURNED }
    }

    /// Whether this update begins with another projection.
    pub const fn renews(&self) -> bool {
        (self.adamw.step - 1).is_multiple_of(Self::RENEWED)
    }

    /// The random numbers that the range finder of a tensor begins with.
    pub fn numbers(&self, tensor: usize) -> Philox {
        Philox::new(self.seed, Self::STREAM | (((self.adamw.step - 1) / Self::RENEWED) << 16) | tensor as u64)
    }

    /// Takes the projected gradient into the moments, and leaves the step in its place.
    pub fn moments(&self, isa: Isa, pool: &Pool, r: &mut [f32], (m, v): (&mut [f32], &mut [f32])) {
        assert!(m.len() == r.len() && v.len() == r.len());
        let (r, m, v) = (Rows::new(r, PIECE), Rows::new(m, PIECE), Rows::new(v, PIECE));
        pool.run(r.pieces(), &|task, _| {
            moments_piece(isa, self.adamw, r.piece(task).0, m.piece(task).0, v.piece(task).0)
        });
    }

    /// Moves numbers along `steps`, which were projected back.
    pub fn step(&self, isa: Isa, pool: &Pool, p: &mut [f32], steps: &[f32]) {
        let AdamW { lr, weight_decay, beta1, beta2, step, .. } = self.adamw;
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
        let length = f64::from(lr) * f64::from(self.scale) * correction(beta2).sqrt() / correction(beta1);
        let (keep, p) = (1.0 - lr * weight_decay, Rows::new(p, PIECE));
        pool.run(p.pieces(), &|task, _| {
            let (p, range) = p.piece(task);
            step_piece(isa, p, &steps[range], keep, length as f32);
        });
    }
}

per_isa!(fn moments_piece(rule: AdamW, r: &mut [f32], m: &mut [f32], v: &mut [f32]) = moments_body);
per_isa!(fn step_piece(p: &mut [f32], steps: &[f32], keep: f32, length: f32) = step_body);

#[inline(always)]
fn moments_body(rule: AdamW, r: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    for ((r, m), v) in r.iter_mut().zip(m).zip(v) {
        *m = (1.0 - rule.beta1).mul_add(*r - *m, *m);
        *v = rule.beta2.mul_add(*v, (1.0 - rule.beta2) * *r * *r);
        *r = *m / (v.sqrt() + rule.eps);
    }
}

#[inline(always)]
fn step_body(p: &mut [f32], steps: &[f32], keep: f32, length: f32) {
    for (p, step) in p.iter_mut().zip(steps) {
        *p = *p * keep - length * step;
    }
}
