//! The interpreter of programs: one match over instructions, each a kernel call on slices of the arena.

mod alone;
mod batch;
mod dropped;
mod faint;
mod head;
mod learn;
mod measured;
mod moved;
mod perturbed;
mod scaled;
mod state;
mod turns;
mod updates;
mod vera;

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use pocketune_kernels::attention::Segment;
use pocketune_kernels::matmul::{Ctx, Low, LowRank, Precision, Start, Weight, matvec, nn, nt, tn, tn_part};
use pocketune_kernels::{
    Pool, activation, attention, cross_entropy, dora, dropout, elementwise, embed, gated, layer_norm, levels, norm,
    rope, shared_norm,
};

use super::disk::{Disk, Ticket};
use super::{Arena, Weights};
use crate::error::{Error, Result};
use crate::graph::{Added, Graph, Module, Norm, Of, Op, ParamId, RopeId, VectorId};
use crate::plan::{Buf, Embedded, Grad, HeadBehind, Instr, Layout, LoraAdd, LoraUp, Machine, Mode, Program, Span};
use crate::store;

pub use alone::Alone;
pub use batch::{Batch, Group, NO_LABEL, Noise, Outcome};

use head::{Head, HeadAdapter};
use learn::{Behind, Lesson};
use measured::Aimed;
pub use measured::Measure;
pub use perturbed::{Aim, Law, MOST_DIRECTIONS, Sides, Still};
use turns::Turn;
pub use updates::Rule;

/// Rows of the embedding that are looked up before its pages are released again, when weights are streamed.
pub const EMBED_PIECE: usize = 8;

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

    /// Runs `program` on `batch`, `past` tokens of which are in the cache already, applying gradients with `rule`.
    ///
    /// # Errors
    /// When the disk fails, or when it was asked to stop.
    pub fn run(&mut self, program: &Program, batch: Batch, past: usize, rule: Option<Rule>) -> Result<Outcome> {
        self.run_watched(program, batch, past, rule, &mut |_| {})
    }

    /// As [`Cpu::run`], calling `done` after every instruction.
    ///
    /// # Errors
    /// When the disk fails, or when it was asked to stop.
    pub fn run_watched(
        &mut self,
        program: &Program,
        batch: Batch,
        past: usize,
        rule: Option<Rule>,
        done: &mut dyn FnMut(&Instr),
    ) -> Result<Outcome> {
        let result = self.walk(program, batch, past, rule, done);
        // Whatever ended it early, the disk's thread no longer reads or writes what the next run will use.
        if let Some(disk) = &self.disk {
            disk.settle();
        }
        result
    }

    fn walk(
        &mut self,
        program: &Program,
        batch: Batch,
        past: usize,
        rule: Option<Rule>,
        done: &mut dyn FnMut(&Instr),
    ) -> Result<Outcome> {
        let n = batch.ids.len();
        assert!(n <= program.tokens, "{n} tokens in a program for {}", program.tokens);
        let mut outcome = Outcome::default();
        let mut regions = program.regions.iter();
        let mut region = regions.next();
        let mut passages = program.passages.iter().peekable();
        let trains = matches!(program.mode, Mode::TrainAndUpdate | Mode::Accumulate);
        let mut updated = false;
        // Up to where the block at hand rests.
        let (last, mut rests) = (self.end_of(program), 0);
        let mut at = 0;
        while at < last {
            let passage = passages.next_if(|passage| passage.instrs.start == at);
            if let Some(passage) = passage.filter(|passage| self.rests(passage.block)) {
                rests = passage.instrs.end;
            }
            if let Some(passage) = passage.filter(|passage| self.dropped[passage.block]) {
                self.pass_by(program, *passage, n);
                at = passage.instrs.end;
                while region.is_some_and(|region| region.start < at) {
                    region = regions.next();
                }
                continue;
            }
            let (end, rows) = match region {
                Some(of) if of.start == at => {
                    region = regions.next();
                    (of.end, program.rows)
                }
                _ => (at + 1, n.max(1)),
            };
            let mut start = 0;
            while start < n || (start == 0 && n == 0) {
                let window = start..(start + rows).min(n);
                for (index, instr) in (at..).zip(&program.instrs[at..end]) {
                    if index < rests && instr.teaches() {
                        continue;
                    }
                    if !updated {
                        self.unless_stopping()?;
                    }
                    if program.stream && start == 0 && instr.weight().is_some() {
                        self.read_ahead(&program.instrs[index + 1..]);
                    }
                    self.step(program, instr, batch, window.clone(), past, rule, &mut outcome)?;
                    done(instr);
                    updated |= instr.updates() && !self.is_measuring();
                    // A loss that is no number is not below either.
                    let fine = outcome.loss / (outcome.targets.max(1) as f64) < self.loss_limit;
                    if trains && matches!(instr, Instr::CrossEntropy { .. }) && !fine {
                        return Ok(outcome);
                    }
                }
                start += rows;
            }
            at = end;
        }
        Ok(outcome)
    }

    /// The next weight is asked for while this one is computed with, so that a file that is not cached is read meanwhile. Which rows of an
    /// embedding are needed is up to the tokens.
    fn read_ahead(&self, instrs: &[Instr]) {
        match instrs.iter().find(|instr| instr.weight().is_some()) {
            Some(Instr::CrossEntropy { weight, .. } | Instr::LearnTable { weight, .. }) => {
                self.weights.read_ahead(*weight, 0..cross_entropy::STRIP);
            }
            Some(Instr::Logits { weight, .. }) => self.weights.read_ahead(*weight, 0..LOGITS_PIECE),
            None | Some(Instr::Embed { .. }) => {}
            Some(next) => next.weight().into_iter().for_each(|weight| self.weights.read_ahead(weight, 0..usize::MAX)),
        }
    }

    /// One instruction, on the rows `window`.
    ///
    /// Every slice below comes from a buffer of this instruction or from the persistent layout. [`Program::check`] has verified
    /// that the buffers of an instruction do not overlap where one is written, which is what each `SAFETY` here relies on.
    #[allow(clippy::too_many_arguments)]
    fn step(
        &mut self,
        program: &Program,
        instr: &Instr,
        batch: Batch,
        window: Range<usize>,
        past: usize,
        rule: Option<Rule>,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let (isa, n, first_piece) = (self.machine.isa, window.len(), window.start == 0);
        let base = self.layout.len;
        let span = |buf: Buf| {
            let buffer = &program.buffers[buf.0];
            let start = base + buffer.offset;
            match buffer.cols {
                None => start..start + buffer.len,
                Some(cols) if buffer.local => start..start + cols * n,
                Some(cols) => start + cols * window.start..start + cols * window.end,
            }
        };
        let arena = &self.arena;
        // SAFETY: see above.
        let r = |buf: Buf| unsafe { arena.read(span(buf)) };
        // SAFETY: see above.
        let w = |buf: Buf| unsafe { arena.write(span(buf)) };
        // SAFETY: vectors, matrices and tables are only written by updates, which read none of them but their own.
        let fixed = |span: Span| unsafe { arena.read(span.range()) };
        let vector = |id: VectorId| fixed(self.layout.vectors[id.0]);
        let matrix = |id: ParamId| fixed(self.layout.param(id));
        let factor = |id: ParamId| Weight::f32(self.ranks[id.0].0, self.ranks[id.0].1, matrix(id));
        let start = |add: bool| if add { Start::Output } else { Start::Zero };
        let pool = &self.pool;
        let ctx = |scratch: Buf| Ctx { pool, isa, precision: self.machine.precision, scratch: w(scratch) };
        // At the ends of a model, where pieces of rows are not multiples of a tile, adapters are multiplied in f32.
        let thin = |scratch| Ctx { pool, isa, precision: Precision::F32, scratch };
        let width = |buf: Buf| program.buffers[buf.0].cols.unwrap_or(1);
        let perturbs = program.mode == Mode::Perturb;
        let moves_model = perturbs && self.is_whole();
        let one_row = n == 1 && matches!(program.mode, Mode::Generate { .. });
        match *instr {
            Instr::Embed { weight, scale, added, lora, out, scratch } => {
                let table = self.weights.matrix(weight);
                let release = || {
                    self.weights.release(weight);
                    let tables = added.iter().flat_map(|added| [Some(added.positions), added.types]);
                    tables.flatten().for_each(|table| self.weights.release(table));
                };
                for (row, (&id, out)) in batch.ids.iter().zip(w(out).chunks_exact_mut(table.cols)).enumerate() {
                    if program.stream && row % EMBED_PIECE == EMBED_PIECE - 1 {
                        release();
                    }
                    if let (true, Some(room)) = (moves_model, scratch) {
                        self.embed_moved(batch, row, (weight, scale), added, out, w(room));
                        continue;
                    }
                    table.read(isa, id as usize, 0..table.cols, out);
                    if scale != 1.0 {
                        out.iter_mut().for_each(|x| *x *= scale);
                    }
                    if let Some(Added { positions, offset, types }) = added {
                        let table = self.weights.matrix(positions);
                        embed::add_row(isa, table, offset + batch.positions[row] as usize, out);
                        if let Some(types) = types {
                            let table = self.weights.matrix(types);
                            embed::add_row(isa, table, 0, out);
                        }
                    }
                }
                if program.stream {
                    release();
                }
                if let (Some(lora), Some(scratch)) = (lora, scratch) {
                    let (h, scratch) = w(scratch).split_at_mut(n * self.ranks[lora.a.0].0);
                    embed::gather(matrix(lora.a), self.ranks[lora.a.0].1, batch.ids, lora.scale, h);
                    nn(&mut thin(scratch), factor(lora.b), h, n, w(out), Start::Output, None);
                }
            }
            Instr::EmbedBackward { lora, g, grads, scratch } => {
                let ((rank, vocab), cols) = (self.ranks[lora.a.0], self.ranks[lora.b.0].1);
                let (h, scratch) = w(scratch).split_at_mut(n * rank);
                let (gh, scratch) = scratch.split_at_mut(n * rank);
                let [(ga, add_a), (gb, add_b)] = grads.map(|grad| self.gradient(grad, &w, first_piece));
                embed::gather(matrix(lora.a), vocab, batch.ids, lora.scale, h);
                let mut ctx = thin(scratch);
                tn(&mut ctx, h, r(g), n, rank, cols, gb, start(add_b));
                nt(&mut ctx, factor(lora.b), r(g), n, gh, Start::Zero, None);
                if !add_a {
                    ga.fill(0.0);
                }
                embed::scatter(gh, vocab, batch.ids, lora.scale, ga);
            }
            Instr::Norm { norm, x, out, moved: Some(moved) } => {
                self.norm_by_group(batch, &window, norm, r(x), w(out), w(moved));
            }
            Instr::Norm { norm: Norm { weight, bias: None, eps }, x, out, .. } => {
                norm::forward(isa, pool, r(x), vector(weight), eps, w(out));
            }
            Instr::Norm { norm: Norm { weight, bias: Some(bias), eps }, x, out, .. } => {
                layer_norm::forward(isa, pool, r(x), vector(weight), vector(bias), eps, w(out));
            }
            Instr::NormBackward { norm: Norm { weight, bias, eps }, x, g, gx: (gx, add) } => {
                let backward = if bias.is_some() { layer_norm::backward } else { norm::backward };
                backward(isa, pool, r(x), vector(weight), eps, r(g), w(gx), add);
            }
            Instr::Normalise { norm: Norm { weight, bias, eps }, x, out, rstd } => {
                let (centred, width) = (bias.is_some(), vector(weight).len());
                shared_norm::normalise(isa, pool, centred, width, eps, r(x), w(out), w(rstd));
            }
            Instr::Affine { norm: Norm { weight, bias, .. }, n, out } => {
                shared_norm::affine(isa, pool, r(n), vector(weight), bias.map(vector), w(out));
            }
            Instr::SharedNormBackward { norm: Norm { weight, bias, .. }, n, rstd, g, gx: (gx, add) } => {
                let weight = vector(weight);
                shared_norm::backward(isa, pool, bias.is_some(), r(n), r(rstd), weight, r(g), w(gx), add);
            }
            Instr::LoraDown { a, scale, x, h, scratch } => {
                let h = w(h);
                if perturbs {
                    self.down_by_group(batch, &window, a, r(x), h, w(scratch));
                } else if one_row {
                    matvec(&mut ctx(scratch), factor(a), r(x), h, Start::Zero);
                } else {
                    nt(&mut ctx(scratch), factor(a), r(x), n, h, Start::Zero, None);
                }
                elementwise::scale(pool, h, scale);
            }
            Instr::Dropout { share, stream, x, out } => {
                let first = window.start * width(x);
                dropout::forward(isa, pool, batch.noise.mask(stream, share), first, r(x), w(out));
            }
            Instr::DropoutBackward { share, stream, g, gx: (gx, add) } => {
                let first = window.start * width(g);
                dropout::backward(isa, pool, batch.noise.mask(stream, share), first, r(g), w(gx), add);
            }
            Instr::Lengths { module, .. } if self.known[module] => {}
            Instr::Lengths { module, weight, a, b, scale, scratch } => {
                // SAFETY: lengths are only written here, in a part of the arena of their own.
                let n = unsafe { arena.write(self.layout.lengths[module].range()) };
                let weight = self.weights.matrix(weight);
                dora::lengths(isa, pool, weight, matrix(a), matrix(b), scale, w(scratch), n);
                self.known[module] = true;
            }
            Instr::Magnitude { module, m, bias, z, out } => {
                let n = fixed(self.layout.lengths[module]);
                dora::forward(isa, pool, r(z), matrix(m), n, bias.map(vector), w(out));
            }
            Instr::MagnitudeBackward { module, m, z, g, gz: (gz, add), gm } => {
                let (grad, more) = self.gradient(gm, &w, first_piece);
                let lengths = (matrix(m), fixed(self.layout.lengths[module]));
                dora::backward(isa, pool, (r(z), r(g)), lengths, (w(gz), add), (grad, more));
            }
            Instr::LoraDownBackward { a, gh, gx, ga, scratch } => {
                let (rank, cols) = self.ranks[a.0];
                if let Some((gx, add)) = gx {
                    nn(&mut ctx(scratch), factor(a), r(gh), n, w(gx), start(add), None);
                }
                if let Some((x, ga)) = ga {
                    let (grad, add) = self.gradient(ga, &w, first_piece);
                    tn(&mut ctx(scratch), r(gh), r(x), n, rank, cols, grad, start(add));
                }
            }
            Instr::Linear { weight, bias, x, out, scratch, .. } if moves_model => {
                self.linear_by_group(batch, &window, (weight, bias), r(x), w(out), w(scratch));
            }
            Instr::Linear { weight, bias, lora, x, out, scratch } => {
                let first = bias.map_or(Start::Zero, |bias| Start::Bias(vector(bias)));
                let (weight, out) = (self.weights.matrix(weight), w(out));
                if let (true, Some(LoraAdd { b, h, .. })) = (perturbs, lora) {
                    nt(&mut ctx(scratch), weight, r(x), n, out, first, None);
                    self.up_by_group(batch, &window, b, r(h), out, w(scratch));
                } else if one_row {
                    matvec(&mut ctx(scratch), weight, r(x), out, first);
                    if let Some(LoraAdd { b, h, down }) = lora {
                        if let Some((a, scale)) = down {
                            matvec(&mut ctx(scratch), factor(a), r(x), w(h), Start::Zero);
                            elementwise::scale(pool, w(h), scale);
                        }
                        nn(&mut ctx(scratch), factor(b), r(h), n, out, Start::Output, None);
                    }
                } else {
                    let low_rank = lora.map(|LoraAdd { b, h, down }| {
                        let low = match down {
                            Some((a, scale)) => Low::Made { by: matrix(a), scale, into: w(h) },
                            None => Low::Given(r(h)),
                        };
                        LowRank { low, factor: matrix(b), rank: self.ranks[b.0].0 }
                    });
                    nt(&mut ctx(scratch), weight, r(x), n, out, first, low_rank);
                }
            }
            Instr::LinearBackward { weight, g, gx, lora, scratch } => {
                let together = lora.and_then(|lora| Some((lora, lora.a?, lora.gh?))).filter(|_| gx.is_some());
                if let Some((gx, add)) = gx {
                    let low_rank = together.map(|(LoraUp { b, scale, .. }, a, gh)| {
                        let low = Low::Made { by: matrix(b), scale, into: w(gh) };
                        LowRank { low, factor: matrix(a), rank: self.ranks[a.0].0 }
                    });
                    nn(&mut ctx(scratch), self.weights.matrix(weight), r(g), n, w(gx), start(add), low_rank);
                }
                if let Some(LoraUp { b, scale, gh: Some(gh), .. }) = lora.filter(|_| together.is_none()) {
                    nt(&mut ctx(scratch), factor(b), r(g), n, w(gh), Start::Zero, None);
                    elementwise::scale(pool, w(gh), scale);
                }
                if let Some(lora) = lora {
                    let (rank, cols) = self.ranks[lora.b.0];
                    let (grad, add) = self.gradient(lora.gb, &w, first_piece);
                    tn(&mut ctx(scratch), r(lora.h), r(g), n, rank, cols, grad, start(add));
                }
            }
            Instr::VeraDown { vera, x, h, scratch } => self.vera_down(vera, r(x), n, w(h), ctx(scratch)),
            Instr::VeraDownBackward { vera, gh, gx: (gx, add), scratch } => {
                self.vera_down_backward(vera, r(gh), n, (w(gx), add), ctx(scratch));
            }
            Instr::VeraUp { vera, h, y, scratch } => self.vera_up(vera, r(h), n, w(y), w(scratch)),
            Instr::VeraUpBackward { vera, h, g, gh, grads, scratch } => {
                let grads = grads.map(|grad| self.gradient(grad, &w, first_piece));
                self.vera_up_backward(vera, (r(h), r(g)), n, gh.map(w), grads, w(scratch));
            }
            Instr::Rope { table, d, pairs, x, inverse } => {
                let (RopeId(table), width) = (table, program.buffers[x.0].cols.unwrap_or(d));
                rope::rotate(
                    pool,
                    w(x),
                    width,
                    d,
                    fixed(self.layout.ropes[table]),
                    &batch.positions[window.clone()],
                    pairs,
                    inverse,
                );
            }
            Instr::Attention { heads, q, k, v, out, lse, scratch } => {
                attention::forward(&mut ctx(scratch), heads, batch.segments, (r(q), r(k), r(v)), (w(out), w(lse)));
            }
            Instr::CachedAttention { block, heads, q, k, v, out, lse, scratch } => {
                let width = heads.kv * heads.d;
                // SAFETY: the caches lie in the persistent part, apart from each other and from every buffer.
                let [keys, values] = self.layout.caches[block].map(|span| unsafe { arena.write(span.range()) });
                keys[past * width..][..n * width].copy_from_slice(r(k));
                values[past * width..][..n * width].copy_from_slice(r(v));
                let segment = [Segment { q_start: 0, q_len: n, k_start: 0, k_len: past + n }];
                attention::forward(&mut ctx(scratch), heads, &segment, (r(q), keys, values), (w(out), w(lse)));
            }
            Instr::AttentionBackward { heads, read: [q, k, v, out, lse, go], write: [gq, gk, gv], scratch } => {
                let (given, to) = ((r(out), r(lse), r(go)), (w(gq), w(gk), w(gv)));
                attention::backward(&mut ctx(scratch), heads, batch.segments, (r(q), r(k), r(v)), given, to);
            }
            Instr::Gated { act, gate, up, out } => gated::forward(isa, pool, act, r(gate), r(up), w(out)),
            Instr::GatedBackward { act, steps, gate, up, g } => {
                gated::backward(isa, pool, act, steps, w(gate), w(up), r(g));
            }
            Instr::Activation { act, x, out: Some(out), levels: kept } => {
                activation::forward(isa, pool, act, r(x), w(out));
                if let Some((steps, kept)) = kept {
                    levels::pack(isa, pool, steps, width(x), r(x), w(kept));
                }
            }
            Instr::Activation { act, x, out: None, .. } => activation::in_place(isa, pool, act, w(x)),
            Instr::ActivationBackward { act, x, g } => activation::backward(isa, pool, act, w(x), r(g)),
            Instr::LevelsBackward { steps, levels: kept, g } => {
                levels::backward(isa, pool, steps, width(g), r(kept), w(g));
            }
            Instr::Add { from, to } => elementwise::add(pool, w(to), r(from)),
            Instr::Copy { from, to } => w(to).copy_from_slice(r(from)),
            Instr::CrossEntropy { weight, bias, lora, skip, rows, x, gx, lse, grads, work } => {
                let lora = lora.map(|lora| HeadAdapter { a: factor(lora.a), b: matrix(lora.b), scale: lora.scale });
                let grads = grads.map(|grads| {
                    grads.map(|grad| {
                        let (grad, add) = self.gradient(grad, &w, true);
                        if !add {
                            grad.fill(0.0);
                        }
                        grad
                    })
                });
                let moved = moves_model.then_some(bias);
                let head = Head { weight, bias: bias.map(vector), lora, skip, rows, stream: program.stream, moved };
                *outcome = self.cross_entropy(head, r(x), gx.map(w), lse.map(w), grads, w(work), batch)?;
            }
            Instr::Logits { weight, bias, lora, x, out, scratch } => {
                let (matrix, bias, stream) = (self.weights.matrix(weight), bias.map(vector), program.stream);
                let x = &r(x)[(n - 1) * matrix.cols..];
                let piece = if stream { LOGITS_PIECE } else { matrix.rows };
                for first in (0..matrix.rows).step_by(piece) {
                    let rows = first..(first + piece).min(matrix.rows);
                    let start = bias.map_or(Start::Zero, |bias| Start::Bias(&bias[rows.clone()]));
                    if stream {
                        self.weights.read_ahead(weight, rows.end..rows.end + piece);
                    }
                    matvec(&mut ctx(scratch), matrix.part(rows.clone()), x, &mut w(out)[rows.clone()], start);
                    if stream {
                        self.weights.release_rows(weight, rows);
                    }
                }
                if let Some(lora) = lora {
                    let (h, scratch) = w(scratch).split_at_mut(self.ranks[lora.a.0].0);
                    let mut ctx = thin(scratch);
                    nt(&mut ctx, factor(lora.a), x, 1, h, Start::Zero, None);
                    elementwise::scale(pool, h, lora.scale);
                    nn(&mut ctx, factor(lora.b), h, 1, w(out), Start::Output, None);
                }
            }
            Instr::Update { param, grad, .. } if self.measures(param, 0, r(grad)) => {}
            Instr::Update { param, grad, state } => {
                let (grad, state) = (w(grad), state.map(w));
                if self.gradient_scale() != 1.0 {
                    elementwise::scale(pool, grad, self.gradient_scale());
                }
                self.update(param, grad, state, rule.expect("a program that updates runs with a rule"))?;
            }
            Instr::NormGradient { centred, eps, x, g, grad } => {
                norm::weight_gradient(isa, centred, r(x), eps, r(g), w(grad));
            }
            Instr::BiasGradient { g, grad } => elementwise::column_sums(r(g), w(grad)),
            Instr::Learn { weight, param, x, g, how, work } => {
                let (x, g) = (r(x), r(g));
                let finite = n as f32 * learn::largest(x) * learn::largest(g) <= learn::FINITE;
                let lesson = Lesson { weight, param, how, noise: batch.noise, stream: program.stream, finite };
                let sum = self.learn(lesson, rule, w(work), &mut |strip, grad, room| {
                    let mut ctx = Ctx { pool, isa, precision: self.machine.precision, scratch: room };
                    tn_part(&mut ctx, (g, how.rows), strip, x, n, how.cols, grad, Start::Zero);
                })?;
                self.note(param, sum);
            }
            Instr::LearnTable { weight, param, embedded, head, how, work } => {
                let embedded = embedded.map(|of| Embedded { g: r(of.g), scale: of.scale, by: of.by });
                let mut behind = head.map(|HeadBehind { x, lse, bias }| Behind {
                    x: r(x),
                    lse: r(lse),
                    bias: bias.map(|(bias, grad)| (vector(bias), w(grad))),
                });
                let of_embedding = embedded.map_or(0.0, |of| learn::largest(of.g) * of.scale.abs());
                // Where sums of exponentials are finite, entries of the softmax are at most 1.
                let of_head = behind.as_ref().map_or(0.0, |of| learn::largest(of.x).max(learn::largest(of.lse)));
                let finite = n as f32 * (of_embedding + of_head) <= learn::FINITE;
                // What is not made, because the table's own gradient is not finite, is not applied either.
                if let Some((_, grad)) = behind.as_mut().and_then(|of| of.bias.as_mut()) {
                    grad.fill(f32::NAN);
                }
                let lesson = Lesson { weight, param, how, noise: batch.noise, stream: program.stream, finite };
                let sum = self.learn(lesson, rule, w(work), &mut |strip, grad, room| {
                    self.table_gradient(weight, how, strip, embedded, behind.as_mut(), batch, grad, room);
                })?;
                self.note(param, sum);
            }
            // SAFETY: the buffer lives, untouched, until the matching `Spilled` or `Fetched`.
            Instr::Spill { from, at } => self.tickets[from.0] = unsafe { self.disk().write(r(from), at) },
            // SAFETY: as above.
            Instr::Fetch { to, at } => self.tickets[to.0] = unsafe { self.disk().read(w(to), at) },
            Instr::Spilled { from: buf } | Instr::Fetched { to: buf } => {
                self.disk().wait(self.tickets[buf.0]).map_err(|error| Error::System(error.to_string()))?;
            }
        }
        if let Some(weight) = instr.weight().filter(|_| program.stream) {
            self.weights.release(weight);
        }
        Ok(())
    }

    fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("a program that spills was given a file")
    }

    /// The slice that a matrix's gradient goes to, and whether it adds to what is there (an earlier piece's share).
    fn gradient<'a>(
        &self,
        grad: Grad,
        write: &impl Fn(Buf) -> &'a mut [f32],
        first_piece: bool,
    ) -> (&'a mut [f32], bool) {
        match grad {
            Grad::Once(buf) => (write(buf), !first_piece),
            // SAFETY: gradient sums lie in the persistent part, apart from everything this instruction reads.
            Grad::Sum(param) => (unsafe { self.arena.write(self.layout.grads[param.0].range()) }, true),
        }
    }
}
