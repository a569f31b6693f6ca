//! What a run has learnt, streamed out and back in, matrix by matrix: what is trained, in the arena or in the model's own file, and the optimizer's states,
//! wherever they wait, in the same order and form under every plan.

use pocketune_kernels::BlockType;

use super::Cpu;
use crate::backend::Arena;
use crate::error::{Error, Result};
use crate::graph::{Graph, Of, ParamId, VectorId};

impl Cpu {
    /// Bytes of what is trained of a matrix.
    pub fn param_bytes(&self, id: ParamId) -> usize {
        match self.of[id.0] {
            Of::Matrix(weight) => self.weights.stored_bytes(weight),
            Of::Module(_) | Of::Shared | Of::Saved(_) | Of::Vector(_) => 4 * self.layout.param(id).len,
        }
    }

    /// Hands a trainable matrix to `take`, part by part as it is held; what is on disk passes through `chunk`.
    ///
    /// # Errors
    /// When the disk or `take` fails.
    pub fn read_param(&self, id: ParamId, chunk: &mut [f32], take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Of::Matrix(weight) = self.of[id.0] else { return take(bytemuck::cast_slice(self.param(id))) };
        let chunk: &mut [u8] = bytemuck::cast_slice_mut(chunk);
        for (at, len) in parts(self.weights.stored_bytes(weight), chunk.len()) {
            self.weights.read(weight, at, &mut chunk[..len])?;
            take(&chunk[..len])?;
        }
        Ok(())
    }

    /// Sets a trainable matrix from what `fill` gives, part by part.
    ///
    /// # Errors
    /// When the disk or `fill` fails.
    pub fn write_param(
        &mut self,
        id: ParamId,
        chunk: &mut [f32],
        fill: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let Of::Matrix(weight) = self.of[id.0] else { return fill(bytemuck::cast_slice_mut(self.param_mut(id))) };
        let chunk: &mut [u8] = bytemuck::cast_slice_mut(chunk);
        for (at, len) in parts(self.weights.stored_bytes(weight), chunk.len()) {
            fill(&mut chunk[..len])?;
            self.weights.write(weight, at, &chunk[..len])?;
        }
        Ok(())
    }

    /// Whether all numbers of a trainable matrix are finite.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn is_finite(&self, id: ParamId, chunk: &mut [f32]) -> Result<bool> {
        // Scales are rounded to what is finite.
        if self.with_scales(id).is_some() {
            return Ok(true);
        }
        let wide = !matches!(self.of[id.0], Of::Matrix(weight) if self.weights.matrix(weight).ty == BlockType::BF16);
        let mut finite = true;
        self.read_param(id, chunk, &mut |part| {
            // A float is finite where its exponent is not all ones.
            let exponents =
                |at: usize, word: usize| u16::from_le_bytes([part[at + word - 2], part[at + word - 1]]) & 0x7f80;
            let word = if wide { 4 } else { 2 };
            finite &= (0..part.len()).step_by(word).all(|at| exponents(at, word) != 0x7f80);
            Ok(())
        })?;
        Ok(finite)
    }

    /// Puts the model's vectors into its file, where the model itself is trained, so that all of it is there.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn store_vectors(&self, graph: &Graph) -> Result<()> {
        for (id, decl) in graph.vectors.iter().enumerate() {
            self.weights.write_vector(VectorId(id), decl.plus, self.arena.get(self.layout.vectors[id].range()))?;
        }
        Ok(())
    }

    /// The way back, after the file was written over.
    ///
    /// # Errors
    /// When a vector is not finite.
    pub fn fetch_vectors(&mut self, graph: &Graph) -> Result<()> {
        let mut arena = std::mem::replace(&mut self.arena, Arena::new(0)?);
        let read = self.read_vectors(graph, &self.layout, &mut arena);
        self.arena = arena;
        read
    }

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
        parts(len, longest).map(move |(at, len)| (first + at, len))
    }
}

/// Where parts of up to `longest` begin, and how long they are.
fn parts(len: usize, longest: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len).step_by(longest).map(move |at| (at, longest.min(len - at)))
}

pub(super) fn failed(error: std::io::Error) -> Error {
    Error::System(format!("the spill file failed: {error}"))
}
