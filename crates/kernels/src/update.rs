//! Update rules: one pass over parameter, gradient and state, with PyTorch's semantics.

mod adamw_8bit;
mod basis;
mod compressed;
mod dynamic_map;
mod factored;
mod projected;
mod subspace;

pub use adamw_8bit::{BLOCK as BLOCK_8BIT, adamw_8bit, adamw_8bit_rows, state_len as state_len_8bit};
pub use basis::{MOST as MOST_TURNED, orthonormalise, turn};
pub use compressed::{BOTH, Kept, Mlorc};
pub use dynamic_map::{DynamicMap, SIGNED, UNSIGNED};
pub use factored::{AdaLomo, Factors, add_column_squares, move_rows, row_squares};
pub use projected::Apollo;
pub use subspace::Galore;

use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// The constants of one AdamW update.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub eps: f32,
    /// The update's number, from 1.
    pub step: u64,
}

/// The constants of one SGD update (no momentum); the decay is added to the gradient, as PyTorch does.
#[derive(Clone, Copy, Debug)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f32,
    /// Coupled weight decay.
    pub weight_decay: f32,
}

/// Numbers that make a task: an adapter's factor has a few thousand.
const PIECE: usize = 2048;

/// `p ← p (1 - lr wd)`; `m ← β₁ m + (1-β₁) g`; `v ← β₂ v + (1-β₂) g²`; `p ← p - lr/(1-β₁ᵗ) m / (sqrt(v)/sqrt(1-β₂ᵗ) + eps)`.
pub fn adamw(isa: Isa, pool: &Pool, rule: AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    assert!(p.len() == g.len() && m.len() == g.len() && v.len() == g.len());
    let (p, m, v) = (Rows::new(p, PIECE), Rows::new(m, PIECE), Rows::new(v, PIECE));
    pool.run(p.pieces(), &|task, _| {
        let ((p, range), (m, _), (v, _)) = (p.piece(task), m.piece(task), v.piece(task));
        adamw_piece(isa, rule, p, &g[range], m, v);
    });
}

/// [`adamw`] of rows of `cols` numbers, each with its two moments one after the other in `state`: so some rows of a matrix have their state in
/// one stretch.
pub fn adamw_rows(isa: Isa, pool: &Pool, rule: AdamW, cols: usize, p: &mut [f32], g: &[f32], state: &mut [f32]) {
    assert!(p.len() == g.len() && state.len() == 2 * g.len());
    let (p, state) = (Rows::new(p, cols), Rows::new(state, 2 * cols));
    pool.run(p.pieces(), &|task, _| {
        let ((p, range), (state, _)) = (p.piece(task), state.piece(task));
        let (m, v) = state.split_at_mut(cols);
        adamw_piece(isa, rule, p, &g[range], m, v);
    });
}

/// `p ← p - lr (g + wd p)`.
pub fn sgd(isa: Isa, pool: &Pool, rule: Sgd, p: &mut [f32], g: &[f32]) {
    assert!(p.len() == g.len());
    let p = Rows::new(p, PIECE);
    pool.run(p.pieces(), &|task, _| {
        let (p, range) = p.piece(task);
        sgd_piece(isa, rule, p, &g[range]);
    });
}

per_isa!(fn adamw_piece(rule: AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) = adamw_body);
per_isa!(fn sgd_piece(rule: Sgd, p: &mut [f32], g: &[f32]) = sgd_body);

/// An AdamW rule with what all numbers share computed once.
#[derive(Clone, Copy)]
struct Step {
    rule: AdamW,
    /// `lr / (1-β₁ᵗ)`.
    length: f32,
    /// `1 / sqrt(1-β₂ᵗ)`.
    root: f32,
    /// `1 - lr wd`.
    keep: f32,
}

impl Step {
    #[inline(always)]
    fn new(rule: AdamW) -> Self {
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(rule.step as f64);
        Self {
            rule,
            length: (f64::from(rule.lr) / correction(rule.beta1)) as f32,
            root: (1.0 / correction(rule.beta2).sqrt()) as f32,
            keep: 1.0 - rule.lr * rule.weight_decay,
        }
    }

    /// Moves one parameter and its moments.
    #[inline(always)]
    fn take(&self, p: &mut f32, g: f32, m: &mut f32, v: &mut f32) {
        let rule = self.rule;
        *m = (1.0 - rule.beta1).mul_add(g - *m, *m);
        *v = rule.beta2.mul_add(*v, (1.0 - rule.beta2) * g * g);
        self.go(p, *m, *v);
    }

    /// Moves one parameter by its moments.
    #[inline(always)]
    fn go(&self, p: &mut f32, m: f32, v: f32) {
        *p = *p * self.keep - self.length * m / (v.sqrt() * self.root + self.rule.eps);
    }
}

#[inline(always)]
fn adamw_body(rule: AdamW, p: &mut [f32], g: &[f32], m: &mut [f32], v: &mut [f32]) {
    let step = Step::new(rule);
    for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
        step.take(p, g, m, v);
    }
}

#[inline(always)]
fn sgd_body(rule: Sgd, p: &mut [f32], g: &[f32]) {
    for (p, &g) in p.iter_mut().zip(g) {
        *p -= rule.lr * rule.weight_decay.mul_add(*p, g);
    }
}
