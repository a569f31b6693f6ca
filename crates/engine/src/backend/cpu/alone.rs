//! What the products of a step reach alone: the largest frozen product of a block, with its own weight and all rows of a batch, run by
//! itself a few times. It is what a step's rate is compared with, so it must not be a toy: where a step works in pieces, the whole is
//! timed as far as it fits, and of the two directions the faster counts. It works in the step's part of the arena, between steps, and
//! takes no memory of its own.

use std::time::Duration;

use pocketune_kernels::BlockType;
use pocketune_kernels::matmul::{Ctx, Shape, Start, nn, nn_scratch, nt, nt_scratch};

use super::Cpu;
use crate::graph::WeightId;
use crate::plan::{Instr, Machine, Program};

/// A product that was run alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Outputs of the linear.
    pub rows: usize,
    /// Its inputs.
    pub cols: usize,
    /// How it is stored.
    pub ty: BlockType,
    /// Rows of values that it was multiplied with.
    pub n: usize,
    /// Operations a second of `x Wᵀ`.
    pub forward: f64,
    /// Operations a second of `g W`.
    pub backward: f64,
}

impl Alone {
    /// The faster of the two, in operations a second.
    pub fn rate(&self) -> f64 {
        self.forward.max(self.backward)
    }
}

impl Cpu {
    /// Runs the largest frozen product of `program` by itself for about `least` in each direction, by the clock `now`; `None` where it
    /// has none. What the program left in its buffers is lost.
    pub fn product_alone(
        &mut self,
        program: &Program,
        least: Duration,
        now: &mut dyn FnMut() -> Duration,
    ) -> Option<Alone> {
        let linears = program.instrs.iter().filter_map(|instr| match *instr {
            Instr::Linear { weight, .. } => Some(weight),
            _ => None,
        });
        let elements = |weight: WeightId| self.weights.matrix(weight).rows * self.weights.matrix(weight).cols;
        let weight = linears.max_by_key(|&weight| elements(weight))?;
        let matrix = self.weights.matrix(weight);
        let (rows, cols, ty) = (matrix.rows, matrix.cols, matrix.ty);
        let Machine { threads, isa, precision } = self.machine;
        let work = self.arena.get_mut(self.layout.len..self.layout.len + program.len);
        let scratch = |n| {
            let shape = Shape { ty, rows, cols, n, rank: 0 };
            nt_scratch(shape, threads, isa, precision).max(nn_scratch(shape, threads, isa, precision))
        };
        // Whole tiles, so that the last one is not half empty.
        let fewer = (1..program.tokens / 32).rev().map(|tiles| tiles * 32);
        let n = [program.tokens].into_iter().chain(fewer).find(|&n| n * (rows + cols) + scratch(n) <= work.len())?;
        let (wide, work) = work.split_at_mut(n * rows);
        let (narrow, work) = work.split_at_mut(n * cols);
        wide.fill(1.0);
        narrow.fill(1.0);
        let mut ctx = Ctx { pool: &self.pool, isa, precision, scratch: work };
        let mut rate = |run: &mut dyn FnMut()| {
            let (mut best, begin, mut runs) = (f64::INFINITY, now(), 0);
            while runs < 2 || now().saturating_sub(begin) < least {
                let before = now();
                run();
                best = best.min(now().saturating_sub(before).as_secs_f64());
                runs += 1;
            }
            2.0 * (n * rows * cols) as f64 / best.max(1e-9)
        };
        if program.stream {
            self.weights.enter(weight, 0..rows);
        }
        let forward = rate(&mut || nt(&mut ctx, matrix, narrow, n, wide, Start::Zero, None));
        let backward = rate(&mut || nn(&mut ctx, matrix, wide, n, narrow, Start::Zero, None));
        if program.stream {
            self.weights.release(weight);
        }
        Some(Alone { rows, cols, ty, n, forward, backward })
    }
}
