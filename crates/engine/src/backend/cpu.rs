//! The interpreter of programs: a processor with a model and an arena. [`walk`] goes through a program, and [`step`] runs an instruction.

mod alone;
mod batch;
mod classify;
mod dropped;
mod faint;
mod head;
mod learn;
mod measured;
mod moved;
mod perturbed;
mod scaled;
mod state;
mod step;
mod turns;
mod updates;
mod vera;
mod walk;

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use pocketune_kernels::{Pool, dora};

use super::disk::{Disk, Ticket};
use super::{Arena, Weights};
use crate::error::{Error, Result};
use crate::graph::{Graph, Module, Of, Op, ParamId, VectorId};
use crate::plan::{Layout, Machine, Program};
use crate::store;

pub use alone::Alone;
pub use batch::{Batch, Group, NO_LABEL, Noise, Outcome};
use measured::Aimed;
pub use measured::Measure;
pub use perturbed::{Aim, Law, MOST_DIRECTIONS, Sides, Still};
use turns::Turn;
pub use updates::Rule;

/// Rows of the head that logits are made with before their pages are released, when weights are streamed.
pub const LOGITS_PIECE: usize = 4096;

/// A processor with a model and an arena.
pub struct Cpu {
    machine: Machine,
    pool: Pool,
    weights: Weights,
    layout: Layout,
    /// Rows and columns of the trainable matrices.
    ranks: Vec<(usize, usize)>,
    /// What each is a part of.
    of: Vec<Of>,
    /// How many times the learning rate each is trained with.
    quicker: Vec<f32>,
    /// Of which modules the lengths of rows are known.
    known: Vec<bool>,
    arena: Arena,
    /// The spill file, where a program or the optimizer uses one.
    disk: Option<Disk>,
    /// Where in the spill file the optimizer's states begin.
    states_at: usize,
    /// The last request of each buffer to the disk.
    tickets: Vec<Ticket>,
    /// Sums of squares of the gradients applied last, where asked for.
    watch: Option<Vec<f64>>,
    /// Anything but zero in it asks to abandon the step.
    stop: Arc<AtomicU8>,
    /// A mean loss that is not below this ends a training pass before its backward part.
    loss_limit: f64,
    /// Gradients that were not applied because they are not finite.
    refused: usize,
    /// The block of each trainable matrix.
    blocks: Vec<Option<usize>>,
    /// Blocks that the gradient passes by.
    dropped: Vec<bool>,
    /// Whose turn it is to learn, where blocks take turns.
    turn: Option<Turn>,
    /// What gradients are made for.
    aimed: Aimed,
    /// Where matrices move to in programs that perturb.
    aim: Option<Aim>,
    /// Elements of each matrix above this magnitude stay where they are; below zero, all do.
    limits: Vec<f32>,
    /// What was found since the sums were cleared, by group.
    sums: Vec<Cell<Outcome>>,
}

impl Cpu {
    /// Sets everything up for `programs`: threads, the arena, the spill file in `folder`, the small vectors, and the tables of
    /// rotations.
    ///
    /// # Errors
    /// When the system refuses memory, threads or disk space, or a vector is not finite.
    pub fn new(
        machine: Machine,
        weights: Weights,
        graph: &Graph,
        layout: Layout,
        programs: &[&Program],
        folder: &Path,
    ) -> Result<Self> {
        let pool = Pool::new(machine.threads)
            .map_err(|error| Error::System(format!("{} threads: {error}", machine.threads)))?;
        let ranks = graph.params.iter().map(|param| (param.rank, param.cols)).collect();
        let mut cpu = Self {
            machine,
            pool,
            weights,
            layout: Layout::default(),
            ranks,
            of: graph.params.iter().map(|param| param.of).collect(),
            quicker: vec![1.0; graph.params.len()],
            known: vec![false; graph.modules.len()],
            arena: Arena::new(0)?,
            disk: None,
            states_at: 0,
            tickets: Vec::new(),
            watch: None,
            stop: Arc::default(),
            loss_limit: f64::INFINITY,
            refused: 0,
            blocks: graph.blocks_of_params(),
            dropped: vec![false; graph.blocks],
            turn: Turn::new(graph),
            aimed: Aimed::Applied(1.0),
            aim: None,
            limits: vec![f32::INFINITY; graph.params.len()],
            sums: vec![Cell::default(); MOST_DIRECTIONS + 1],
        };
        cpu.lay_out(graph, layout, programs, folder)?;
        Ok(cpu)
    }

    /// Gives up what it holds and sets up for other programs over the same graph. All that was learnt is gone with the arena.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn lay_out(&mut self, graph: &Graph, layout: Layout, programs: &[&Program], folder: &Path) -> Result<()> {
        // First what was there: two arenas at once would be more than any plan has.
        (self.arena, self.disk) = (Arena::new(0)?, None);
        self.known.fill(false);
        let most = |of: fn(&Program) -> usize| programs.iter().map(|program| of(program)).max().unwrap_or(0);
        let mut arena = Arena::new(layout.len + most(|program| program.len))?;
        self.states_at = most(|program| program.spill);
        let on_disk = self.states_at + layout.paged_len;
        if on_disk > 0 {
            let file = store::spill_file(folder, on_disk * 4)?;
            self.disk = Some(Disk::new(file).map_err(|error| Error::System(format!("the disk's thread: {error}")))?);
        }
        self.tickets = vec![Ticket::default(); most(|program| program.buffers.len())];
        self.read_vectors(graph, &layout, &mut arena)?;
        for (rope, span) in graph.ropes.iter().zip(&layout.ropes) {
            let half = rope.frequencies.len();
            for (position, row) in arena.get_mut(span.range()).chunks_exact_mut(2 * half.max(1)).enumerate() {
                for (i, frequency) in rope.frequencies.iter().enumerate() {
                    let angle = position as f64 * frequency;
                    (row[i], row[half + i]) = (angle.cos() as f32, angle.sin() as f32);
                }
            }
        }
        (self.arena, self.layout) = (arena, layout);
        Ok(())
    }

    fn read_vectors(&self, graph: &Graph, layout: &Layout, arena: &mut Arena) -> Result<()> {
        for (id, decl) in graph.vectors.iter().enumerate() {
            self.weights.read_vector(VectorId(id), decl.plus, arena.get_mut(layout.vectors[id].range()))?;
        }
        Ok(())
    }

    /// From now on a run ends with [`Error::Stopped`] soon after `stop` is not zero, unless a gradient of it has been applied already:
    /// then it is finished, so that there is never half an update.
    pub fn heed(&mut self, stop: Arc<AtomicU8>) {
        self.stop = stop;
    }

    /// From now on a training pass whose mean loss is not below `limit` ends there: nothing is applied, and its outcome says why.
    pub fn limit_loss(&mut self, limit: f64) {
        self.loss_limit = limit;
    }

    fn unless_stopping(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(Error::Stopped) }
    }

    /// The model's tensors.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// A trainable matrix.
    pub fn param(&self, id: ParamId) -> &[f32] {
        self.arena.get(self.layout.param(id).range())
    }

    /// A trainable matrix, to change.
    pub fn param_mut(&mut self, id: ParamId) -> &mut [f32] {
        self.forget_lengths(id);
        self.arena.get_mut(self.layout.param(id).range())
    }

    /// Rows and columns of a trainable matrix.
    pub fn shape_of(&self, id: ParamId) -> (usize, usize) {
        self.ranks[id.0]
    }

    /// Fills a trainable matrix with the model's own tensor `name`, where there is one of this shape. Whether there is.
    ///
    /// # Errors
    /// When it has another shape, or a value that is not finite.
    pub fn take_tensor(&mut self, id: ParamId, name: &str, shape: &[usize]) -> Result<bool> {
        self.weights.read_tensor(name, shape, self.arena.get_mut(self.layout.param(id).range()))
    }

    /// The lengths of rows that depend on a matrix are no longer known.
    fn forget_lengths(&mut self, id: ParamId) {
        if let Of::Module(module) = self.of[id.0] {
            self.known[module] = false;
        }
    }

    /// Sets all magnitudes to the lengths of the rows as they are now.
    pub fn measure_magnitudes(&mut self, graph: &Graph) {
        for node in &graph.nodes {
            let Op::Magnitude { module, weight, scale, m, .. } = node.op else { continue };
            let Module { a, b, .. } = graph.modules[module];
            let matrix = self.weights.matrix(weight);
            let room = dora::lengths_scratch(matrix.cols, self.machine.threads);
            // SAFETY: between runs the program's part of the arena is free; matrices and their magnitudes lie apart.
            let (n, scratch) = unsafe {
                (
                    self.arena.write(self.layout.param(m).range()),
                    self.arena.write(self.layout.len..self.layout.len + room),
                )
            };
            let (isa, a, b) = (self.machine.isa, self.param(a), self.param(b));
            dora::lengths(isa, &self.pool, matrix, a, b, scale, scratch, n);
            self.weights.release(weight);
        }
    }

    /// The logits that a generating program left.
    pub fn logits(&self, program: &Program) -> &[f32] {
        let buffer = &program.buffers[program.logits.expect("a generating program has logits").0];
        self.arena.get(self.layout.len + buffer.offset..self.layout.len + buffer.offset + buffer.len)
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("a program that spills was given a file")
    }
}
