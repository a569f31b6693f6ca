//! Moving without a copy: matrices are read with a direction added, built in scratch memory as they are needed, and written once, by the step
//! that follows from the losses. Which rows of a batch see which direction, their batch says ([`super::Group`]).

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Precision, Start, Weight, nn, nt};
use pocketune_kernels::perturb::{self, Direction, Draw};
use pocketune_kernels::philox::Philox;

use super::{Batch, Cpu, Noise, Outcome};
use crate::error::Result;
use crate::graph::{Graph, ParamId};

/// The most directions of an update.
pub const MOST_DIRECTIONS: usize = 16;

/// Streams of a step's seed: one for each matrix and direction, and one for what a matrix's directions share.
const SHARED: u64 = 0xff;

/// What the numbers of directions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Law {
    /// Standard normal.
    Normal,
    /// 1 or -1.
    Signs,
    /// A product of two thin normal matrices of this rank.
    LowRank(usize),
    /// Standard normal, one for the scale of each quantised block; nothing else moves.
    Scales,
}

/// What stays where it is during an update.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Still {
    /// Nothing.
    Nothing,
    /// This share of every matrix's elements, those of the largest magnitudes.
    Large(f64),
    /// This share of the blocks, chosen anew for every update.
    Blocks(f64),
}

/// On which sides of a point the loss is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sides {
    /// Forward and back along one direction.
    Two,
    /// At the point itself, and forward along so many directions.
    One(usize),
}

impl Sides {
    /// Losses of an update.
    pub const fn groups(self) -> usize {
        match self {
            Sides::Two => 2,
            Sides::One(directions) => directions + 1,
        }
    }

    /// Directions of an update.
    pub const fn directions(self) -> usize {
        match self {
            Sides::Two => 1,
            Sides::One(directions) => directions,
        }
    }

    /// The direction of a group, and how many times it is added.
    pub(super) const fn of(self, group: usize) -> Option<(usize, f32)> {
        match (self, group) {
            (Sides::Two, 0) => Some((0, 1.0)),
            (Sides::Two, _) => Some((0, -1.0)),
            (Sides::One(_), 0) => None,
            (Sides::One(_), group) => Some((group - 1, 1.0)),
        }
    }
}

/// Where what is trained moves to, for one update.
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    /// The seed of its numbers.
    pub seed: u64,
    /// The seed of what stays for several updates: the second factors of low-rank directions.
    pub slow: u64,
    /// What the numbers are.
    pub law: Law,
    /// On which sides the loss is looked at.
    pub sides: Sides,
    /// What stays where it is.
    pub still: Still,
    /// How far it moves.
    pub eps: f32,
}

impl Aim {
    pub(super) fn direction(&self, ParamId(id): ParamId, direction: usize, limit: f32) -> Direction {
        let stream = |of: u64| (id as u64) << 8 | of;
        let numbers = Philox::new(self.seed, stream(direction as u64));
        let draw = match self.law {
            Law::Normal | Law::Scales => Draw::Normal(numbers),
            Law::Signs => Draw::Signs(numbers),
            Law::LowRank(rank) => Draw::LowRank { u: numbers, v: Philox::new(self.slow, stream(SHARED)), rank },
        };
        Direction { draw, limit }
    }

    /// The directions of a matrix, each with how far to go along it.
    pub(super) fn along(&self, id: ParamId, limit: f32, coefficients: &[f32]) -> [(Direction, f32); MOST_DIRECTIONS] {
        std::array::from_fn(|at| (self.direction(id, at, limit), coefficients.get(at).copied().unwrap_or(0.0)))
    }

    /// Whether `block` of `blocks` moves: the blocks with the lowest random numbers do.
    fn moves(&self, share: f64, block: usize, blocks: usize) -> bool {
        let before = Philox::new(self.seed, u64::MAX).place(0, block, blocks);
        before < blocks - (share * blocks as f64).floor() as usize
    }
}

impl Cpu {
    /// Sets all sums of losses to zero.
    pub fn clear_sums(&mut self) {
        self.sums.iter_mut().for_each(|sum| sum.set(Outcome::default()));
    }

    /// What all passes since [`Cpu::clear_sums`] found for the rows of a group; of rows without one, for group 0.
    pub fn sum(&self, group: usize) -> Outcome {
        self.sums[group].get()
    }

    /// From now on programs that perturb move along the directions of `aim`, from where the matrices are now.
    pub fn aim(&mut self, aim: Aim, graph: &Graph) {
        for (id, param) in graph.params.iter().enumerate() {
            self.limits[id] = match (aim.still, self.blocks[id]) {
                // Those of a model itself are measured once.
                (Still::Large(_), _) if graph.whole => self.limits[id],
                (Still::Large(share), _) => {
                    let count = ((1.0 - share) * param.len() as f64).ceil() as usize;
                    perturb::smallest(self.param(ParamId(id)), count.max(1))
                }
                (Still::Blocks(share), Some(block)) if !aim.moves(share, block, graph.blocks) => -1.0,
                _ => f32::INFINITY,
            };
        }
        self.aim = Some(aim);
    }

    /// `θ ← keep θ - Σ c z` for every matrix that moves, along the directions of the last [`Cpu::aim`]; `noise` is what a model's own are rounded with.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn step_along(&mut self, coefficients: &[f32], keep: f32, noise: Noise) -> Result<()> {
        if self.is_whole() {
            return self.step_model(coefficients, keep, noise);
        }
        let aim = self.aim.expect("losses were found along directions");
        for id in 0..self.ranks.len() {
            let limit = self.limits[id];
            if limit < 0.0 {
                continue;
            }
            let along = aim.along(ParamId(id), limit, coefficients);
            self.forget_lengths(ParamId(id));
            let theta = self.arena.get_mut(self.layout.param(ParamId(id)).range());
            let (isa, cols) = (self.machine.isa, self.ranks[id].1);
            let keep = if self.of[id].decays() { keep } else { 1.0 };
            perturb::step(isa, &self.pool, theta, (cols, 0), keep, &along[..coefficients.len()]);
        }
        Ok(())
    }

    /// The numbers of one direction of a matrix, as they were last aimed along.
    pub fn direction(&self, id: ParamId, direction: usize, out: &mut [f32]) {
        let aim = self.aim.expect("aimed before");
        let (theta, cols, limit) = (self.param(id), self.ranks[id.0].1, self.limits[id.0]);
        let along = aim.direction(id, direction, limit);
        perturb::moved(self.machine.isa, &self.pool, theta, cols, along, 1.0, out);
        out.iter_mut().zip(theta).for_each(|(out, theta)| *out -= theta);
    }

    /// A matrix as the rows of `group` see it: itself, or moved, in `room`.
    pub(super) fn seen<'a>(&self, id: ParamId, group: usize, theta: &'a [f32], room: &'a mut [f32]) -> &'a [f32] {
        let aim = self.aim.expect("a program that perturbs runs with an aim");
        match aim.sides.of(group) {
            Some((direction, times)) if self.limits[id.0] >= 0.0 => {
                let along = aim.direction(id, direction, self.limits[id.0]);
                let (isa, cols) = (self.machine.isa, self.ranks[id.0].1);
                perturb::moved(isa, &self.pool, theta, cols, along, times * aim.eps, room);
                room
            }
            _ => theta,
        }
    }

    /// `h = x Aᵀ` for the rows of each group with its own A.
    pub(super) fn down_by_group(
        &self,
        batch: Batch,
        window: &Range<usize>,
        id: ParamId,
        x: &[f32],
        h: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (rank, cols) = self.ranks[id.0];
        self.by_group(batch, window, id, scratch, |factor, rows, ctx| {
            let (x, h) = (&x[rows.start * cols..rows.end * cols], &mut h[rows.start * rank..rows.end * rank]);
            nt(ctx, factor, x, rows.len(), h, Start::Zero, None);
        });
    }

    /// `y += h B` for the rows of each group with its own B.
    pub(super) fn up_by_group(
        &self,
        batch: Batch,
        window: &Range<usize>,
        id: ParamId,
        h: &[f32],
        y: &mut [f32],
        scratch: &mut [f32],
    ) {
        let (rank, cols) = self.ranks[id.0];
        self.by_group(batch, window, id, scratch, |factor, rows, ctx| {
            let (h, y) = (&h[rows.start * rank..rows.end * rank], &mut y[rows.start * cols..rows.end * cols]);
            nn(ctx, factor, h, rows.len(), y, Start::Output, None);
        });
    }

    /// Hands `multiply` a factor as each group sees it, with the group's rows of the window. Moved factors are multiplied in f32: in bf16 a small step
    /// would be rounded away.
    fn by_group(
        &self,
        batch: Batch,
        window: &Range<usize>,
        id: ParamId,
        scratch: &mut [f32],
        mut multiply: impl FnMut(Weight, Range<usize>, &mut Ctx),
    ) {
        let (rank, cols) = self.ranks[id.0];
        let (room, scratch) = scratch.split_at_mut(rank * cols);
        for (rows, group) in batch.parts(window) {
            let factor = Weight::f32(rank, cols, self.seen(id, group, self.param(id), room));
            let scratch = &mut *scratch;
            let mut ctx = Ctx { pool: &self.pool, isa: self.machine.isa, precision: Precision::F32, scratch };
            multiply(factor, rows, &mut ctx);
        }
    }
}
