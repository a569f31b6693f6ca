//! Gradients of a model itself that are scaled down where their norm is too large. All of them at once would be as large as the model, so a step goes over its batch twice: once to measure
//! the norm, with nothing applied, and once to apply (LOMO's way, [2306.09782](https://arxiv.org/abs/2306.09782)).

use super::{Batch, Cpu, Outcome};
use crate::error::Result;
use crate::plan::Program;

/// What the gradients of a pass are made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aimed {
    /// To be applied, each number times this.
    Applied(f32),
    /// To be measured: the sum of their squares so far.
    Measured(f64),
}

impl Cpu {
    /// The norm of all gradients that `program` would apply on `batch`, and what it found; nothing changes. Not finite where a gradient or the loss is not.
    ///
    /// # Errors
    /// When the disk fails, or when it was asked to stop.
    pub fn measure(&mut self, program: &Program, batch: Batch) -> Result<(f64, Outcome)> {
        self.aimed = Aimed::Measured(0.0);
        let outcome = self.run(program, batch, 0, None);
        let aimed = std::mem::replace(&mut self.aimed, Aimed::Applied(1.0));
        let outcome = outcome?;
        let squares = if let Aimed::Measured(squares) = aimed { squares } else { 0.0 };
        let fine = outcome.loss / (outcome.targets.max(1) as f64) < self.loss_limit;
        Ok((if fine { squares.sqrt() } else { f64::NAN }, outcome))
    }

    /// From now on gradients are multiplied with `scale` before they are applied.
    pub fn scale_gradients(&mut self, scale: f32) {
        self.aimed = Aimed::Applied(scale);
    }

    /// Adds the squares of a gradient where it is measured. Whether it is.
    pub(super) fn measures(&mut self, squares: f64) -> bool {
        match &mut self.aimed {
            Aimed::Measured(sum) => {
                *sum += squares;
                true
            }
            Aimed::Applied(_) => false,
        }
    }

    /// Whether gradients are only measured.
    pub(super) fn is_measuring(&self) -> bool {
        matches!(self.aimed, Aimed::Measured(_))
    }

    /// What gradients are multiplied with.
    pub(super) fn gradient_scale(&self) -> f32 {
        if let Aimed::Applied(scale) = self.aimed { scale } else { 1.0 }
    }
}
