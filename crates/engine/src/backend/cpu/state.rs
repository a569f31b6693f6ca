//! What a run has learnt, streamed out of the arena and back in, matrix by matrix: the optimizer's states, wherever they wait, in the same
//! order and form under every plan.

use super::Cpu;
use crate::error::{Error, Result};
use crate::graph::ParamId;

impl Cpu {
    /// Floats of the optimizer's state of a matrix.
    pub fn state_len(&self, id: ParamId) -> usize {
        match (self.layout.states.get(id.0), self.layout.paged.get(id.0)) {
            (Some(span), _) => span.len,
            (None, Some(at)) => self.layout.paged.get(id.0 + 1).unwrap_or(&self.layout.paged_len) - at,
            (None, None) => 0,
        }
    }

    /// Hands the optimizer's state of a matrix to `take`, part by part; one that waits on disk passes through `chunk`.
    ///
    /// # Errors
    /// When the disk or `take` fails.
    pub fn read_state(&self, id: ParamId, chunk: &mut [f32], take: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        if let Some(span) = self.layout.states.get(id.0) {
            return take(self.arena.get(span.range()));
        }
        for (at, len) in self.paged_parts(id, chunk.len()) {
            self.disk().read_now(&mut chunk[..len], at).map_err(failed)?;
            take(&chunk[..len])?;
        }
        Ok(())
    }

    /// Sets the optimizer's state of a matrix from what `fill` gives, part by part.
    ///
    /// # Errors
    /// When the disk or `fill` fails.
    pub fn write_state(
        &mut self,
        id: ParamId,
        chunk: &mut [f32],
        fill: &mut dyn FnMut(&mut [f32]) -> Result<()>,
    ) -> Result<()> {
        if let Some(span) = self.layout.states.get(id.0) {
            return fill(self.arena.get_mut(span.range()));
        }
        for (at, len) in self.paged_parts(id, chunk.len()) {
            fill(&mut chunk[..len])?;
            self.disk().write_now(&chunk[..len], at).map_err(failed)?;
        }
        Ok(())
    }

    /// The log of updates, where the layout has one.
    pub fn log(&self) -> &[f32] {
        self.layout.log.map_or(&[], |span| self.arena.get(span.range()))
    }

    /// The log of updates, to change.
    pub fn log_mut(&mut self) -> &mut [f32] {
        match self.layout.log {
            Some(span) => self.arena.get_mut(span.range()),
            None => &mut [],
        }
    }

    /// Writes into the log what update `iter` (from 1) was.
    pub fn log_update(&mut self, iter: usize, coefficients: &[f32], keep: f32) {
        let words = coefficients.len() + 1;
        let update = &mut self.log_mut()[(iter - 1) * words..iter * words];
        update[..words - 1].copy_from_slice(coefficients);
        update[words - 1] = keep;
    }

    /// Where in the spill file the parts of a state lie, and how long they are.
    fn paged_parts(&self, id: ParamId, longest: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let len = self.state_len(id);
        let first = self.layout.paged.get(id.0).map_or(0, |at| self.states_at + at);
        (0..len).step_by(longest).map(move |at| (first + at, longest.min(len - at)))
    }
}

pub(super) fn failed(error: std::io::Error) -> Error {
    Error::System(format!("the spill file failed: {error}"))
}
