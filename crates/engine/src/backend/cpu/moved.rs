//! A model's own tensors, moved without a copy: rows are read from the mapping, the numbers of a direction drawn for them, and their sum multiplied with the rows of the
//! batch that see it, strip by strip; one reading serves all groups of a pass. The file is written by the step alone, which rounds as
//! [`super::learn`] does.

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Start, Weight, nt};
use pocketune_kernels::{BlockType, embed, layer_norm, norm, perturb, round};

use super::{Batch, Cpu, Law, Noise};
use crate::error::Result;
use crate::graph::{Added, Norm, Of, ParamId, VectorId, WeightId};
use crate::plan::{strip_rows, strips};

/// A part of a tensor as groups see it, one after another.
pub(super) struct Moved<'a> {
    id: ParamId,
    /// The first element.
    first: usize,
    theta: &'a mut [f32],
    z: &'a mut [f32],
    sum: &'a mut [f32],
    /// The direction whose numbers are there.
    drawn: Option<usize>,
}

impl<'a> Moved<'a> {
    /// The part from element `first` on, in room for three times as many; what it is has still to be read into [`Moved::theta`].
    fn new(id: ParamId, first: usize, len: usize, room: &'a mut [f32]) -> Self {
        let (theta, room) = room.split_at_mut(len);
        let (z, room) = room.split_at_mut(len);
        Self { id, first, theta, z, sum: &mut room[..len], drawn: None }
    }

    /// As the rows of `group` see it.
    pub(super) fn of(&mut self, cpu: &Cpu, group: usize) -> &[f32] {
        let aim = cpu.aim.expect("a program that perturbs runs with an aim");
        let limit = cpu.limits[self.id.0];
        let Some((number, times)) = aim.sides.of(group).filter(|_| limit >= 0.0) else { return self.theta };
        let (isa, pool, cols) = (cpu.machine.isa, &cpu.pool, cpu.ranks[self.id.0].1);
        let scaled = aim.law == Law::Scales;
        let Some(weight) = cpu.with_scales(self.id).map(Some).or((!scaled).then_some(None)) else { return self.theta };
        // Both sides of a direction have the same numbers.
        if self.drawn != Some(number) {
            let draw = aim.direction(self.id, number, limit).draw;
            match weight.filter(|_| scaled) {
                Some(weight) => cpu.numbers_of_scales(weight, self.first, draw, self.z, self.sum),
                None => perturb::numbers(isa, pool, cols, self.first, draw, self.z),
            }
            self.drawn = Some(number);
        }
        perturb::moved_by(isa, pool, self.theta, self.z, limit, times * aim.eps, self.sum);
        self.sum
    }
}

impl Cpu {
    /// Whether what is trained is the model itself.
    pub(super) fn is_whole(&self) -> bool {
        matches!(self.of.first(), Some(Of::Matrix(_)))
    }

    /// The trainable matrix that a vector of the model is: vectors come after matrices.
    fn of_vector(&self, id: VectorId) -> ParamId {
        ParamId(self.of.iter().filter(|of| matches!(of, Of::Matrix(_))).count() + id.0)
    }

    /// Rows of a matrix, to be moved.
    pub(super) fn moved_rows<'a>(&self, id: WeightId, rows: Range<usize>, room: &'a mut [f32]) -> Moved<'a> {
        let matrix = self.weights.matrix(id);
        let moved = Moved::new(ParamId(id.0), rows.start * matrix.cols, rows.len() * matrix.cols, room);
        matrix.read_rows(self.machine.isa, &self.pool, rows, moved.theta);
        moved
    }

    /// Part of a vector, to be moved.
    pub(super) fn moved_part<'a>(&self, id: VectorId, part: Range<usize>, room: &'a mut [f32]) -> Moved<'a> {
        let moved = Moved::new(self.of_vector(id), part.start, part.len(), room);
        moved.theta.copy_from_slice(&self.param(self.of_vector(id))[part]);
        moved
    }

    /// `y = x Wᵀ + bias` for the rows of each group with its own.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn linear_by_group(
        &self,
        batch: Batch,
        window: &Range<usize>,
        (weight, bias): (WeightId, Option<VectorId>),
        x: &[f32],
        y: &mut [f32],
        work: &mut [f32],
    ) {
        let (rows, cols) = self.ranks[weight.0];
        let strip = strip_rows(rows, cols);
        let (room, work) = work.split_at_mut(strips(strip * cols));
        let (bias_room, work) = work.split_at_mut(strips(strip));
        let (made, scratch) = work.split_at_mut(window.len() * strip);
        for strip in (0..rows).step_by(strip).map(|first| first..(first + strip).min(rows)) {
            let mut matrix = self.moved_rows(weight, strip.clone(), room);
            let mut bias = bias.map(|bias| self.moved_part(bias, strip.clone(), bias_room));
            for (part, group) in batch.parts(window) {
                let made = &mut made[..part.len() * strip.len()];
                let start = bias.as_mut().map_or(Start::Zero, |bias| Start::Bias(bias.of(self, group)));
                let seen = Weight::f32(strip.len(), cols, matrix.of(self, group));
                let (n, x) = (part.len(), &x[part.start * cols..part.end * cols]);
                nt(&mut self.moving(scratch), seen, x, n, made, start, None);
                for (row, made) in part.zip(made.chunks_exact(strip.len())) {
                    y[row * rows..][strip.clone()].copy_from_slice(made);
                }
            }
        }
    }

    /// A norm for the rows of each group with its own weight and bias.
    pub(super) fn norm_by_group(
        &self,
        batch: Batch,
        window: &Range<usize>,
        of: Norm,
        x: &[f32],
        out: &mut [f32],
        work: &mut [f32],
    ) {
        let (isa, pool, cols) = (self.machine.isa, &self.pool, x.len() / window.len().max(1));
        let len = self.param(self.of_vector(of.weight)).len();
        let (room, bias_room) = work.split_at_mut(strips(len));
        let mut weight = self.moved_part(of.weight, 0..len, room);
        let mut bias = of.bias.map(|bias| self.moved_part(bias, 0..len, bias_room));
        for (part, group) in batch.parts(window) {
            let part = part.start * cols..part.end * cols;
            let (x, out) = (&x[part.clone()], &mut out[part]);
            match &mut bias {
                None => norm::forward(isa, pool, x, weight.of(self, group), of.eps, out),
                Some(bias) => {
                    layer_norm::forward(isa, pool, x, weight.of(self, group), bias.of(self, group), of.eps, out);
                }
            }
        }
    }

    /// The embedding of a row, from tables as its group sees them.
    pub(super) fn embed_moved(
        &self,
        batch: Batch,
        row: usize,
        (table, scale): (WeightId, f32),
        added: Option<Added>,
        out: &mut [f32],
        room: &mut [f32],
    ) {
        let (group, id) = (batch.group_of(row), batch.ids[row] as usize);
        out.copy_from_slice(self.moved_rows(table, id..id + 1, room).of(self, group));
        if scale != 1.0 {
            out.iter_mut().for_each(|x| *x *= scale);
        }
        let Some(Added { positions, offset, types }) = added else { return };
        let at = offset + batch.positions[row] as usize;
        for (table, at) in [Some((positions, at)), types.map(|types| (types, 0))].into_iter().flatten() {
            let mut moved = self.moved_rows(table, at..at + 1, room);
            let one = Weight::f32(1, out.len(), moved.of(self, group));
            embed::add_row(self.machine.isa, one, 0, out);
        }
    }

    /// `θ ← keep θ - Σ c z` for every tensor of the model that moves, in its file; norms and biases are not decayed.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn step_model(&mut self, coefficients: &[f32], keep: f32, noise: Noise) -> Result<()> {
        let aim = self.aim.expect("losses were found along directions");
        let isa = self.machine.isa;
        for id in (0..self.ranks.len()).map(ParamId) {
            let (limit, (rows, cols)) = (self.limits[id.0], self.ranks[id.0]);
            if limit < 0.0 {
                continue;
            }
            let along = &aim.along(id, limit, coefficients)[..coefficients.len()];
            if aim.law == Law::Scales {
                self.step_scales(id, along[0], keep, noise)?;
                continue;
            }
            let Of::Matrix(weight) = self.of[id.0] else {
                let theta = self.arena.get_mut(self.layout.param(id).range());
                perturb::step(isa, &self.pool, theta, (cols, 0), 1.0, along);
                continue;
            };
            let strip = strip_rows(rows, cols);
            let room = self.layout.len..self.layout.len + 2 * strip * cols;
            // SAFETY: between runs the program's part of the arena is free.
            let (numbers, bytes) = unsafe { self.arena.write(room) }.split_at_mut(strip * cols);
            for strip in (0..rows).step_by(strip).map(|first| first..(first + strip).min(rows)) {
                let (numbers, first) = (&mut numbers[..strip.len() * cols], strip.start * cols);
                let matrix = self.weights.matrix(weight);
                matrix.read_rows(isa, &self.pool, strip.clone(), numbers);
                perturb::step(isa, &self.pool, numbers, (cols, first), keep, along);
                if matrix.ty == BlockType::F32 {
                    self.weights.write(weight, 4 * first, bytemuck::cast_slice(numbers))?;
                } else {
                    let bytes = &mut bytemuck::cast_slice_mut(&mut *bytes)[..2 * numbers.len()];
                    round::to_bf16(isa, &self.pool, noise.rounding(id.0), first as u64, numbers, bytes);
                    self.weights.write(weight, 2 * first, bytes)?;
                }
                self.weights.release_rows(weight, strip);
            }
        }
        Ok(())
    }

    /// The magnitude that a share of a tensor's elements is above, for all tensors: what [`super::Still::Large`] leaves where it is for a whole run.
    pub fn measure_limits(&mut self, share: f64) {
        for id in (0..self.ranks.len()).map(ParamId) {
            let (rows, cols) = self.ranks[id.0];
            let count = ((1.0 - share) * (rows * cols) as f64).ceil().max(1.0) as u64;
            self.limits[id.0] = match self.of[id.0] {
                Of::Matrix(weight) => self.smallest_of(weight, count),
                _ => perturb::smallest(self.param(id), count as usize),
            };
        }
    }

    /// The magnitude that `count` elements of a matrix do not exceed, from two readings of it: the upper half of its bits, then the lower.
    fn smallest_of(&self, weight: WeightId, count: u64) -> f32 {
        let matrix = self.weights.matrix(weight);
        let (mut row, mut upper, mut before) = (vec![0.0_f32; matrix.cols], None, 0);
        let strip = strip_rows(matrix.rows, matrix.cols);
        let mut counts = vec![0_u32; 1 << 16];
        loop {
            counts.fill(0);
            for at in 0..matrix.rows {
                matrix.read(self.machine.isa, at, 0..matrix.cols, &mut row);
                let bits = row.iter().map(|x| x.to_bits() & 0x7fff_ffff);
                match upper {
                    None => bits.for_each(|bits| counts[(bits >> 16) as usize] += 1),
                    Some(upper) => {
                        let inside = bits.filter(|bits| bits >> 16 == upper);
                        inside.for_each(|bits| counts[(bits & 0xffff) as usize] += 1);
                    }
                }
                if (at + 1).is_multiple_of(strip) || at + 1 == matrix.rows {
                    self.weights.release_rows(weight, at / strip * strip..at + 1);
                }
            }
            let mut sum = before;
            let found = counts.iter().position(|&here| {
                sum += u64::from(here);
                sum >= count
            });
            let found = found.unwrap_or(counts.len() - 1) as u32;
            if let Some(upper) = upper {
                return f32::from_bits(upper << 16 | found);
            }
            before = sum - u64::from(counts[found as usize]);
            upper = Some(found);
        }
    }

    fn moving<'a>(&'a self, scratch: &'a mut [f32]) -> Ctx<'a> {
        Ctx { pool: &self.pool, isa: self.machine.isa, precision: self.machine.precision, scratch }
    }
}
