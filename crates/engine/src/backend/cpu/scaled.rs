//! The scales of a model's quantised blocks, moved and stepped (QZO): the integers under them stay as they are. Whatever has no scale, stays whole.

use pocketune_kernels::matmul::Weight;
use pocketune_kernels::perturb::{self, Direction, Draw};
use pocketune_kernels::scales;

use super::{Cpu, Noise};
use crate::error::Result;
use crate::graph::{Of, ParamId, WeightId};
use crate::plan::strip_rows;

impl Cpu {
    /// The matrix that a trainable one is, where its blocks have scales.
    pub(super) fn with_scales(&self, id: ParamId) -> Option<WeightId> {
        match self.of[id.0] {
            Of::Matrix(weight) => scales::places(self.weights.matrix(weight).ty).map(|_| weight),
            _ => None,
        }
    }

    /// Scales of all blocks.
    pub fn count_scales(&self) -> usize {
        let of = |id: ParamId| {
            self.with_scales(id)
                .map_or(0, |weight| self.weights.stored_bytes(weight) / self.weights.matrix(weight).ty.block_bytes())
        };
        (0..self.ranks.len()).map(|id| of(ParamId(id))).sum()
    }

    /// What elements from `first` on move by along a direction of their blocks' scales: the number of the block times what the element is a multiple of. `room` is as
    /// long as `z`.
    pub(super) fn numbers_of_scales(
        &self,
        weight: WeightId,
        first: usize,
        draw: Draw,
        z: &mut [f32],
        room: &mut [f32],
    ) {
        let (isa, pool, matrix) = (self.machine.isa, &self.pool, self.weights.matrix(weight));
        let (ty, cols) = (matrix.ty, matrix.cols);
        let (rows, len) = (first / cols..(first + z.len()) / cols, ty.block_len());
        let from = self.weights.rows(weight, rows.clone());
        let (blocks, room) = room.split_at_mut(z.len() / len);
        let room = &mut bytemuck::cast_slice_mut(room)[..from.len()];
        scales::unit(ty, from, room);
        Weight::new(ty, rows.len(), cols, room).read_rows(isa, pool, 0..rows.len(), z);
        perturb::numbers(isa, pool, cols / len, first / len, draw, blocks);
        for (z, number) in z.chunks_exact_mut(len).zip(blocks) {
            z.iter_mut().for_each(|z| *z *= *number);
        }
    }

    /// `s ← keep s - c z` for all scales of a matrix, in its file.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn step_scales(
        &self,
        id: ParamId,
        (along, by): (Direction, f32),
        keep: f32,
        noise: Noise,
    ) -> Result<()> {
        let Some(weight) = self.with_scales(id) else { return Ok(()) };
        let (rows, cols) = self.ranks[id.0];
        let (ty, strip) = (self.weights.matrix(weight).ty, strip_rows(rows, cols));
        let (a_row, blocks) = (ty.row_bytes(cols).unwrap_or(0), cols / ty.block_len());
        let room = self.layout.len..self.layout.len + 2 * strip * cols;
        // SAFETY: between runs the program's part of the arena is free.
        let (numbers, room) = unsafe { self.arena.write(room) }.split_at_mut(strip * cols);
        for strip in (0..rows).step_by(strip).map(|first| first..(first + strip).min(rows)) {
            let z = &mut numbers[..strip.len() * blocks];
            perturb::numbers(self.machine.isa, &self.pool, blocks, strip.start * blocks, along.draw, z);
            let bytes = &mut bytemuck::cast_slice_mut(&mut *room)[..strip.len() * a_row];
            self.weights.read(weight, strip.start * a_row, bytes)?;
            let first = (strip.start * blocks) as u64;
            scales::step(&self.pool, ty, bytes, first, (keep, by), z, noise.rounding(id.0));
            self.weights.write(weight, strip.start * a_row, bytes)?;
        }
        Ok(())
    }
}
