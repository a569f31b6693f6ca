//! APOLLO ([2412.05270](https://arxiv.org/abs/2412.05270)): AdamW's moments of a random projection of the gradient onto a few rows, from which only the size of the step is taken, channel by
//! channel (a channel is a row or a column of the larger side) or for the whole tensor. The step itself goes along the gradient.
//!
//! ```text
//! R = P G    m, v of R    N = m / (sqrt v + eps)    s = |N| / (|R| + 1e-8) of each channel, or of all    U = G s
//! |U| grows by at most a hundredth from step to step    p ← p (1 - lr wd) - lr sqrt(1-β₂ᵗ)/(1-β₁ᵗ) sqrt(scale) U
//! ```
//! Sums over a channel go by ascending index, those over channels in f64.

use super::AdamW;
use crate::philox::Philox;

/// How much larger than the last a step may be.
const GROWTH: f64 = 1.01;
/// Added to what is divided by.
const TINY: f64 = 1e-8;

/// The constants of one update.
#[derive(Clone, Copy, Debug)]
pub struct Apollo {
    /// Rates, decays and the update's number.
    pub adamw: AdamW,
    /// Numbers of a channel that are left by the projection.
    pub rank: usize,
    /// Steps are multiplied with its root.
    pub scale: f32,
    /// Whether all channels have one factor (APOLLO-Mini).
    pub tensor: bool,
    /// The seed of projections.
    pub seed: u64,
}

impl Apollo {
    /// Updates after which the projection is another.
    const RENEWED: u64 = 200;
    /// Where the streams of random numbers of projections begin.
    const STREAM: u64 = 1 << 61;

    /// The random numbers that the projection of a tensor is drawn from.
    pub fn numbers(&self, tensor: usize) -> Philox {
        Philox::new(self.seed, Self::STREAM | (((self.adamw.step - 1) / Self::RENEWED) << 16) | tensor as u64)
    }

    /// Takes the projected gradient into the moments, and leaves the factor of every channel in the place of the sum of its gradient's squares. Number `k` of channel
    /// `c` of the projection lies at `c by.0 + k by.1`. The result is the size of the step.
    pub fn factors(
        &self,
        r: &[f32],
        (m, v): (&mut [f32], &mut [f32]),
        by: (usize, usize),
        channels: &mut [f32],
    ) -> f64 {
        let AdamW { beta1, beta2, eps, .. } = self.adamw;
        let ratio = |steps: f64, numbers: f64| (steps.sqrt() / (numbers.sqrt() + TINY)) as f32;
        let (mut size, mut all) = (0.0, (0.0, 0.0));
        for (c, channel) in channels.iter_mut().enumerate() {
            let (mut steps, mut numbers) = (0.0, 0.0);
            for at in (0..self.rank).map(|k| c * by.0 + k * by.1) {
                let (r, m, v) = (r[at], &mut m[at], &mut v[at]);
                *m = (1.0 - beta1).mul_add(r - *m, *m);
                *v = beta2.mul_add(*v, (1.0 - beta2) * r * r);
                steps += f64::from(*m / (v.sqrt() + eps)).powi(2);
                numbers += f64::from(r).powi(2);
            }
            all = (all.0 + steps, all.1 + numbers);
            if self.tensor {
                size += f64::from(*channel);
                continue;
            }
            let factor = ratio(steps, numbers);
            size += f64::from(*channel) * f64::from(factor).powi(2);
            *channel = factor;
        }
        if self.tensor {
            let factor = ratio(all.0, all.1);
            channels.fill(factor);
            size *= f64::from(factor).powi(2);
        }
        size.sqrt()
    }

    /// What stays of a number, and how long steps are whose size is `size` and was `before`, which becomes what it is now.
    pub fn length(&self, size: f64, before: &mut f32) -> (f32, f32) {
        let AdamW { lr, weight_decay, beta1, beta2, step, .. } = self.adamw;
        let most = GROWTH * f64::from(*before);
        let limit = if *before > 0.0 && size > most { most / size } else { 1.0 };
        *before = (size * limit) as f32;
        let correction = |beta: f32| 1.0 - f64::from(beta).powf(step as f64);
        let rate = f64::from(lr) * correction(beta2).sqrt() / correction(beta1);
        (1.0 - lr * weight_decay, (rate * f64::from(self.scale).sqrt() * limit) as f32)
    }
}
