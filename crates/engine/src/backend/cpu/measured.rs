//! Gradients of a model itself that are measured and not applied. All of them at once would be as large as the model, so what is to be known of them is summed strip by strip: their
//! norm, so that they can be scaled down where it is too large (a step goes over its batch twice then, once to measure and once to apply: LOMO's way,
//! [2306.09782](https://arxiv.org/abs/2306.09782)), and how a step without gradients lies to them.

use std::cell::Cell;

use pocketune_kernels::{elementwise, perturb};

use super::{Batch, Cpu, Outcome};
use crate::error::Result;
use crate::graph::{Of, ParamId};
use crate::plan::Program;

/// What the gradients of a pass are made for.
#[derive(Clone, Debug)]
pub(super) enum Aimed {
    /// To be applied, each number times this.
    Applied(f32),
    /// To be measured, beside a step of so far along each direction.
    Measured(Cell<Measure>, Vec<f32>),
}

/// Sums over all numbers of the gradients `g` of a pass, and of a step `s`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measure {
    /// `Σ g²`.
    pub squares: f64,
    /// `Σ s²`.
    pub step_squares: f64,
    /// `Σ g s`.
    pub along: f64,
}

impl Measure {
    /// The cosine of the angle between both; 0 where one of them is nothing.
    pub fn cosine(&self) -> f64 {
        let lengths = (self.squares * self.step_squares).sqrt();
        if lengths > 0.0 { self.along / lengths } else { 0.0 }
    }
}

impl Cpu {
    /// The norm of all gradients that `program` would apply on `batch`, and what it found; nothing changes. Not finite where a gradient or the loss is not.
    ///
    /// # Errors
    /// When the disk fails, or when it was asked to stop.
    pub fn measure(&mut self, program: &Program, batch: Batch) -> Result<(f64, Outcome)> {
        let (measured, outcome) = self.measure_along(program, batch, &[])?;
        let fine = outcome.loss / (outcome.targets.max(1) as f64) < self.loss_limit;
        Ok((if fine { measured.squares.sqrt() } else { f64::NAN }, outcome))
    }

    /// The gradients that `program` would apply, beside the step `Σ c z` along the directions of the last [`Cpu::aim`]; nothing changes. The step takes
    /// memory that no plan has.
    ///
    /// # Errors
    /// As [`Cpu::measure`].
    pub fn measure_along(
        &mut self,
        program: &Program,
        batch: Batch,
        coefficients: &[f32],
    ) -> Result<(Measure, Outcome)> {
        self.aimed = Aimed::Measured(Cell::default(), coefficients.to_vec());
        let outcome = self.run(program, batch, 0, None);
        let aimed = std::mem::replace(&mut self.aimed, Aimed::Applied(1.0));
        let measured = if let Aimed::Measured(measured, _) = aimed { measured.get() } else { Measure::default() };
        Ok((measured, outcome?))
    }

    /// From now on gradients are multiplied with `scale` before they are applied.
    pub fn scale_gradients(&mut self, scale: f32) {
        self.aimed = Aimed::Applied(scale);
    }

    /// Takes in part of a gradient, from element `first` of its tensor on, where gradients are measured. Whether they are.
    pub(super) fn measures(&self, param: ParamId, first: usize, grad: &[f32]) -> bool {
        let Aimed::Measured(measured, coefficients) = &self.aimed else { return false };
        let mut sums = measured.get();
        sums.squares += elementwise::square_sum(grad);
        if !coefficients.is_empty() {
            let step = self.step_of(param, first, grad.len(), coefficients);
            sums.step_squares += elementwise::square_sum(&step);
            sums.along += grad.iter().zip(&step).map(|(&g, &s)| f64::from(g) * f64::from(s)).sum::<f64>();
        }
        measured.set(sums);
        true
    }

    /// `Σ c z` for part of a tensor, nothing for elements that stay where they are.
    fn step_of(&self, id: ParamId, first: usize, len: usize, coefficients: &[f32]) -> Vec<f32> {
        let aim = self.aim.expect("a step without gradients was aimed");
        let ((_, cols), limit) = (self.ranks[id.0], self.limits[id.0]);
        let mut step = vec![0.0; len];
        if limit < 0.0 {
            return step;
        }
        match self.of[id.0] {
            Of::Matrix(weight) => {
                let rows = first / cols..(first + len) / cols;
                self.weights.matrix(weight).read_rows(self.machine.isa, &self.pool, rows, &mut step);
            }
            _ => step.copy_from_slice(&self.param(id)[first..first + len]),
        }
        let before = step.clone();
        let along = &aim.along(id, limit, coefficients)[..coefficients.len()];
        perturb::step(self.machine.isa, &self.pool, &mut step, (cols, first), 1.0, along);
        step.iter_mut().zip(before).for_each(|(step, before)| *step = before - *step);
        step
    }

    /// Whether gradients are only measured.
    pub(super) fn is_measuring(&self) -> bool {
        matches!(self.aimed, Aimed::Measured(..))
    }

    /// What gradients are multiplied with.
    pub(super) fn gradient_scale(&self) -> f32 {
        if let Aimed::Applied(scale) = self.aimed { scale } else { 1.0 }
    }
}
