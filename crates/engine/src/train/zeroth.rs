//! Updates without gradients: the loss is looked at where the adapter's matrices are moved along random directions, and the adapter goes along
//! the same directions, as far as the losses say. Nothing is differentiated, nothing is kept from pass to pass, and no direction is stored.
//! What an update was is a few numbers, which the run keeps ([`super::replay`]).

use pocketune_kernels::philox::Philox;

use super::progress::Progress;
use super::steps::{Steps, Work};
use crate::backend::{Aim, Law, MOST_DIRECTIONS, Noise, Outcome, Sides, Still};
use crate::error::Result;

/// The stream of random numbers that seeds of updates come from.
const SEEDS: u64 = 1 << 40;

/// How directions are drawn and losses looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Zeroth {
    /// What the numbers of directions are.
    pub law: Law,
    /// On which sides the loss is looked at.
    pub sides: Sides,
    /// What stays where it is.
    pub still: Still,
    /// How far matrices are moved, where the user named nothing.
    pub eps: f32,
    /// Updates for which the second factors of low-rank directions stay.
    pub renew: usize,
    /// The largest slope that counts.
    pub clip: f64,
}

impl Zeroth {
    /// How far a model itself is moved, as MeZO's paper has it.
    pub const EPS_OF_ALL: f32 = 1e-3;

    /// Numbers that say what an update was: how far it went along each direction, and what was left of the matrices before.
    pub const fn words(&self) -> usize {
        self.sides.directions() + 1
    }

    /// The directions of update `iter` (from 1) of a run with this seed.
    pub fn aim(&self, seed: u64, iter: usize, eps: f32) -> Aim {
        let of = |iter: usize| {
            let four = Philox::new(seed, SEEDS).at(iter as u64);
            u64::from(four[0]) | u64::from(four[1]) << 32
        };
        let slow = (iter - 1) / self.renew.max(1) * self.renew.max(1) + 1;
        let Zeroth { law, sides, still, .. } = *self;
        // Of one stream, but never of one number.
        Aim { seed: of(2 * iter), slow: of(2 * slow + 1), law, sides, still, eps }
    }

    /// The loss at the point itself, as well as it is known, and how far to go along each direction: `out` times the learning rate.
    pub fn judge(&self, losses: &[f64], eps: f32, out: &mut [f64]) -> f64 {
        match self.sides {
            // p = (l₊ - l₋) / 2ε.
            Sides::Two => {
                out[0] = ((losses[0] - losses[1]) / (2.0 * f64::from(eps))).clamp(-self.clip, self.clip);
                0.5 * (losses[0] + losses[1])
            }
            // (lᵢ - l₀) / (N σ), σ the standard deviation of the moved losses.
            Sides::One(directions) => {
                let (n, moved) = (directions as f64, &losses[1..=directions]);
                let mean = moved.iter().sum::<f64>() / n;
                let variance = moved.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
                let sigma = variance.sqrt();
                for (out, loss) in out.iter_mut().zip(moved) {
                    *out = if sigma > 0.0 { (loss - losses[0]) / (n * sigma) } else { 0.0 };
                }
                losses[0]
            }
        }
    }
}

impl Steps<'_> {
    /// One update from the losses of one batch. Where a loss is bad nothing moves.
    pub(super) fn along_directions(&mut self, zeroth: Zeroth, next: &mut Progress, lr: f32) -> Result<Work> {
        let (options, run) = (self.options, &mut *self.run);
        let (file, eps) = (&run.data.train.tokens, options.zo_eps());
        let (first, step) = (next.position, run.passes.step());
        next.position += step;
        let records = run.passes.records(first, file);
        run.cpu.aim(zeroth.aim(options.seed, next.iter, eps), &run.graph);
        run.cpu.clear_sums();
        let groups = zeroth.sides.groups();
        let (mut work, mut unit) = (Work::default(), 0);
        while unit < records.len() * groups {
            unit = run.rows.fill_groups(file, records, groups, unit, run.plan.program.tokens)?;
            let batch = run.rows.batch(run.rows.targets(), Noise::default());
            let found = run.cpu.run(&run.plan.program, batch, 0, None)?;
            work.flops += run.flops.run(batch.segments.iter().map(|record| record.q_len), found.targets);
        }
        work.tokens = records.iter().map(|&record| file.length(record as usize) as u64).sum();
        let mut losses = [0.0; MOST_DIRECTIONS + 1];
        losses.iter_mut().zip(0..groups).for_each(|(loss, group)| *loss = run.cpu.sum(group).mean_loss());
        let mut far = [0.0; MOST_DIRECTIONS];
        let loss = zeroth.judge(&losses[..groups], eps, &mut far);
        let Outcome { hits, targets, .. } = run.cpu.sum(0);
        work.outcome = Outcome { loss: loss * targets as f64, hits, targets };
        let fine = losses[..groups].iter().all(|loss| loss.is_finite()) && loss < next.spikes.limit(options.max_loss_z);
        work.bad = !fine;
        let mut coefficients = [0.0; MOST_DIRECTIONS];
        coefficients.iter_mut().zip(far).for_each(|(c, far)| *c = (f64::from(lr) * far) as f32);
        let coefficients = &mut coefficients[..zeroth.sides.directions()];
        let mut keep = 1.0 - lr * options.decay();
        if work.bad {
            coefficients.fill(0.0);
            keep = 1.0;
        }
        run.cpu.log_update(next.iter, coefficients, keep);
        if stirs(coefficients, keep) {
            run.cpu.step_along(coefficients, keep, rounding(options.seed, next.iter))?;
        }
        Ok(work)
    }
}

/// What a model's own tensors are rounded with in update `iter`.
pub(super) const fn rounding(seed: u64, iter: usize) -> Noise {
    Noise { seed, pass: iter as u64 }
}

/// Whether an update changes anything.
pub(super) fn stirs(coefficients: &[f32], keep: f32) -> bool {
    keep != 1.0 || coefficients.iter().any(|&c| c != 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Method;

    #[test]
    fn both_sides_give_the_slope_and_one_side_the_normed_differences() {
        let mut out = [0.0; MOST_DIRECTIONS];
        let mezo = Method::Mezo.zeroth().unwrap();
        assert_eq!((mezo.judge(&[2.5, 1.5], 0.25, &mut out), out[0]), (2.0, 2.0));
        let fzoo = Zeroth { sides: Sides::One(3), ..Method::Fzoo.zeroth().unwrap() };
        // The moved losses have a standard deviation of 2.
        assert_eq!(fzoo.judge(&[4.0, 3.0, 5.0, 7.0], 0.25, &mut out), 4.0);
        assert_eq!(out[..3], [-1.0 / 6.0, 1.0 / 6.0, 0.5]);
        fzoo.judge(&[4.0; 4], 0.25, &mut out);
        assert_eq!(out[..3], [0.0; 3]);
    }

    #[test]
    fn second_factors_stay_for_as_many_updates_as_they_should() {
        let lozo = Method::Lozo.zeroth().unwrap();
        let slow: Vec<u64> = (1..=2 * lozo.renew).map(|iter| lozo.aim(3, iter, 0.1).slow).collect();
        assert!(slow[..lozo.renew].iter().all(|&seed| seed == slow[0]));
        assert!(slow[lozo.renew..].iter().all(|&seed| seed == slow[lozo.renew] && seed != slow[0]));
        let fast: std::collections::BTreeSet<u64> = (1..=100).map(|iter| lozo.aim(3, iter, 0.1).seed).collect();
        assert_eq!(fast.len(), 100);
    }
}
