//! The interpreter of programs: one match over instructions, each a kernel call on slices of the arena.

use pocketune_kernels::attention::Segment;
use pocketune_kernels::matmul::{Ctx, Start, Weight, matvec, nn, nt, tn};
use pocketune_kernels::update::{AdamW, Sgd};
use pocketune_kernels::{Pool, attention, cross_entropy, dequant, elementwise, gated, norm, rope, update};

use super::{Arena, Weights};
use crate::error::Result;
use crate::graph::{Graph, ParamId, RopeId, VectorId};
use crate::plan::{Buf, Grad, Instr, Layout, Machine, Mode, Program, Span};

/// The label of a row that has none.
pub const NO_LABEL: u32 = u32::MAX;

/// The rows of one run: records one after another, without padding.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token of each row.
    pub ids: &'a [u32],
    /// Position of each row in its record.
    pub positions: &'a [u32],
    /// What each row should predict, or [`NO_LABEL`]. Unused when generating.
    pub labels: &'a [u32],
    /// Where the records lie.
    pub segments: &'a [Segment],
    /// What the summed loss is divided by in gradients: the targets of the whole step.
    pub targets: usize,
}

/// What a run found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Sum of the losses of all targets.
    pub loss: f64,
    /// Targets that were the most likely token.
    pub hits: usize,
    /// Number of targets.
    pub targets: usize,
}

/// How gradients are applied.
#[derive(Clone, Copy, Debug)]
pub enum Rule {
    /// AdamW.
    AdamW(AdamW),
    /// Plain SGD.
    Sgd(Sgd),
}

/// A processor with a model and an arena.
pub struct Cpu {
    machine: Machine,
    pool: Pool,
    weights: Weights,
    layout: Layout,
    /// Rows and columns of the trainable matrices.
    ranks: Vec<(usize, usize)>,
    arena: Arena,
    /// Sums of squares of the gradients applied last, where asked for.
    watch: Option<Vec<f64>>,
}

impl Cpu {
    /// Sets everything up: threads, the arena for `layout` and a transient part of `transient` floats, the small vectors, and the
    /// tables of rotations.
    ///
    /// # Errors
    /// When the system refuses memory or threads, or a vector is not finite.
    pub fn new(machine: Machine, weights: Weights, graph: &Graph, layout: Layout, transient: usize) -> Result<Self> {
        let pool = Pool::new(machine.threads)
            .map_err(|error| crate::Error::System(format!("{} threads: {error}", machine.threads)))?;
        let mut arena = Arena::new(layout.len + transient)?;
        for (id, decl) in graph.vectors.iter().enumerate() {
            weights.read_vector(VectorId(id), decl.plus, arena.get_mut(layout.vectors[id].range()))?;
        }
        for (rope, span) in graph.ropes.iter().zip(&layout.ropes) {
            let half = rope.frequencies.len();
            for (position, row) in arena.get_mut(span.range()).chunks_exact_mut(2 * half.max(1)).enumerate() {
                for (i, frequency) in rope.frequencies.iter().enumerate() {
                    let angle = position as f64 * frequency;
                    (row[i], row[half + i]) = (angle.cos() as f32, angle.sin() as f32);
                }
            }
        }
        let ranks = graph.params.iter().map(|param| (param.rank, param.cols)).collect();
        Ok(Self { machine, pool, weights, layout, ranks, arena, watch: None })
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
        self.arena.get_mut(self.layout.param(id).range())
    }

    /// The gradient sum of a trainable matrix, where the layout has them.
    pub fn grad(&self, id: ParamId) -> &[f32] {
        self.arena.get(self.layout.grads[id.0].range())
    }

    /// The logits that a generating program left.
    pub fn logits(&self, program: &Program) -> &[f32] {
        let buffer = &program.buffers[program.logits.expect("a generating program has logits").0];
        self.arena.get(self.layout.len + buffer.offset..self.layout.len + buffer.offset + buffer.len)
    }

    /// From now on the sum of squares of every gradient is remembered as it is applied, for [`Cpu::watched`].
    pub fn watch(&mut self) {
        self.watch = Some(vec![f64::NAN; self.ranks.len()]);
    }

    /// What was remembered since [`Cpu::watch`]; NaN where no gradient was applied. Ends the watch.
    pub fn watched(&mut self) -> Option<Vec<f64>> {
        self.watch.take()
    }

    /// Sets all gradient sums to zero.
    pub fn clear_grads(&mut self) {
        for at in 0..self.layout.grads.len() {
            self.arena.get_mut(self.layout.grads[at].range()).fill(0.0);
        }
    }

    /// Applies all gradient sums.
    pub fn apply_grads(&mut self, rule: Rule) {
        for at in 0..self.layout.grads.len() {
            let grad = self.layout.grads[at];
            // SAFETY: `update` writes the matrix and its states, which the layout keeps apart from its gradient sum.
            let grad = unsafe { self.arena.read(grad.range()) };
            self.update(ParamId(at), grad, rule);
        }
    }

    /// Runs `program` on `batch`, `past` tokens of which are in the cache already, applying gradients with `rule`.
    pub fn run(&mut self, program: &Program, batch: Batch, past: usize, rule: Option<Rule>) -> Outcome {
        assert!(batch.ids.len() <= program.tokens, "{} tokens in a program for {}", batch.ids.len(), program.tokens);
        let mut outcome = Outcome::default();
        for instr in &program.instrs {
            self.step(program, instr, batch, past, rule, &mut outcome);
        }
        outcome
    }

    /// One instruction.
    ///
    /// Every slice below comes from a buffer of this instruction or from the persistent layout. [`Program::check`] has verified
    /// that the buffers of an instruction do not overlap where one is written, which is what each `SAFETY` here relies on.
    fn step(
        &mut self,
        program: &Program,
        instr: &Instr,
        batch: Batch,
        past: usize,
        rule: Option<Rule>,
        outcome: &mut Outcome,
    ) {
        let (isa, n) = (self.machine.isa, batch.ids.len());
        let base = self.layout.len;
        let span = |buf: Buf| {
            let buffer = &program.buffers[buf.0];
            let len = buffer.cols.map_or(buffer.len, |cols| cols * n);
            base + buffer.offset..base + buffer.offset + len
        };
        let arena = &self.arena;
        // SAFETY: see above.
        let r = |buf: Buf| unsafe { arena.read(span(buf)) };
        // SAFETY: see above.
        let w = |buf: Buf| unsafe { arena.write(span(buf)) };
        // SAFETY: vectors, matrices and tables are only written by updates, which read none of them but their own.
        let fixed = |span: Span| unsafe { arena.read(span.range()) };
        let vector = |id: VectorId| fixed(self.layout.vectors[id.0]);
        let factor = |id: ParamId| Weight::f32(self.ranks[id.0].0, self.ranks[id.0].1, fixed(self.layout.param(id)));
        let start = |add: bool| if add { Start::Output } else { Start::Zero };
        let pool = &self.pool;
        let ctx = |scratch: Buf| Ctx { pool, isa, precision: self.machine.precision, scratch: w(scratch) };
        let one_row = n == 1 && matches!(program.mode, Mode::Generate { .. });
        match *instr {
            Instr::Embed { weight, scale, out } => {
                let table = self.weights.matrix(weight);
                for (&id, out) in batch.ids.iter().zip(w(out).chunks_exact_mut(table.cols)) {
                    dequant::dequantize_row(isa, table.ty, table.row(id as usize), out);
                    if scale != 1.0 {
                        out.iter_mut().for_each(|x| *x *= scale);
                    }
                }
            }
            Instr::Norm { weight, eps, x, out } => norm::forward(isa, pool, r(x), vector(weight), eps, w(out)),
            Instr::NormBackward { weight, eps, x, g, gx: (gx, add) } => {
                norm::backward(isa, pool, r(x), vector(weight), eps, r(g), w(gx), add);
            }
            Instr::LoraDown { a, scale, x, h, scratch } => {
                let h = w(h);
                if one_row {
                    matvec(&mut ctx(scratch), factor(a), r(x), h, Start::Zero);
                } else {
                    nt(&mut ctx(scratch), factor(a), r(x), n, h, Start::Zero);
                }
                elementwise::scale(pool, h, scale);
            }
            Instr::LoraDownBackward { a, x, gh, ga, gx, scratch } => {
                let (rank, cols) = self.ranks[a.0];
                let (grad, add) = self.gradient(ga, &w);
                tn(&mut ctx(scratch), r(gh), r(x), n, rank, cols, grad, start(add));
                if let Some((gx, add)) = gx {
                    nn(&mut ctx(scratch), factor(a), r(gh), n, w(gx), start(add));
                }
            }
            Instr::Linear { weight, bias, lora, x, out, scratch } => {
                let first = bias.map_or(Start::Zero, |bias| Start::Bias(vector(bias)));
                let (weight, out) = (self.weights.matrix(weight), w(out));
                if one_row {
                    matvec(&mut ctx(scratch), weight, r(x), out, first);
                } else {
                    nt(&mut ctx(scratch), weight, r(x), n, out, first);
                }
                if let Some((b, h)) = lora {
                    nn(&mut ctx(scratch), factor(b), r(h), n, out, Start::Output);
                }
            }
            Instr::LinearBackward { weight, g, gx, lora, scratch } => {
                if let Some((gx, add)) = gx {
                    nn(&mut ctx(scratch), self.weights.matrix(weight), r(g), n, w(gx), start(add));
                }
                if let Some(lora) = lora {
                    let (rank, cols) = self.ranks[lora.b.0];
                    let gh = w(lora.gh);
                    nt(&mut ctx(scratch), factor(lora.b), r(g), n, gh, Start::Zero);
                    elementwise::scale(pool, gh, lora.scale);
                    let (grad, add) = self.gradient(lora.gb, &w);
                    tn(&mut ctx(scratch), r(lora.h), r(g), n, rank, cols, grad, start(add));
                }
            }
            Instr::Rope { table, d, pairs, x, inverse } => {
                let (RopeId(table), width) = (table, program.buffers[x.0].cols.unwrap_or(d));
                rope::rotate(pool, w(x), width, d, fixed(self.layout.ropes[table]), batch.positions, pairs, inverse);
            }
            Instr::Attention { heads, q, k, v, out, lse, scratch } => {
                attention::forward(isa, pool, heads, batch.segments, r(q), r(k), r(v), w(out), w(lse), w(scratch));
            }
            Instr::CachedAttention { block, heads, q, k, v, out, lse, scratch } => {
                let width = heads.kv * heads.d;
                // SAFETY: the caches lie in the persistent part, apart from each other and from every buffer.
                let [keys, values] = self.layout.caches[block].map(|span| unsafe { arena.write(span.range()) });
                keys[past * width..][..n * width].copy_from_slice(r(k));
                values[past * width..][..n * width].copy_from_slice(r(v));
                let segment = [Segment { q_start: 0, q_len: n, k_start: 0, k_len: past + n }];
                attention::forward(isa, pool, heads, &segment, r(q), keys, values, w(out), w(lse), w(scratch));
            }
            Instr::AttentionBackward { heads, read: [q, k, v, out, lse, go], write: [gq, gk, gv], scratch } => {
                attention::backward(
                    isa,
                    pool,
                    heads,
                    batch.segments,
                    (r(q), r(k), r(v)),
                    (r(out), r(lse), r(go)),
                    (w(gq), w(gk), w(gv)),
                    w(scratch),
                );
            }
            Instr::Gated { act, gate, up, out } => gated::forward(isa, pool, act, r(gate), r(up), w(out)),
            Instr::GatedBackward { act, gate, up, g } => gated::backward(isa, pool, act, w(gate), w(up), r(g)),
            Instr::Add { from, to } => elementwise::add(pool, w(to), r(from)),
            Instr::Copy { from, to } => w(to).copy_from_slice(r(from)),
            Instr::CrossEntropy { weight, rows, x, gx, work } => {
                let weight = self.weights.matrix(weight);
                *outcome = self.cross_entropy(weight, rows, r(x), gx.map(w), w(work), batch);
            }
            Instr::Logits { weight, x, out, scratch } => {
                let weight = self.weights.matrix(weight);
                matvec(&mut ctx(scratch), weight, &r(x)[(n - 1) * weight.cols..], w(out), Start::Zero);
            }
            Instr::Update { param, grad } => {
                let grad = r(grad);
                self.update(param, grad, rule.expect("a program that updates runs with a rule"));
            }
        }
    }

    /// The slice that a matrix's gradient goes to, and whether it adds to what is there.
    fn gradient<'a>(&self, grad: Grad, write: &impl Fn(Buf) -> &'a mut [f32]) -> (&'a mut [f32], bool) {
        match grad {
            Grad::Once(buf) => (write(buf), false),
            // SAFETY: gradient sums lie in the persistent part, apart from everything this instruction reads.
            Grad::Sum(param) => (unsafe { self.arena.write(self.layout.grads[param.0].range()) }, true),
        }
    }

    /// Head and loss over pieces of `rows` labelled rows: gather, logits, loss, and the gradient of `x` scattered back.
    fn cross_entropy(
        &self,
        head: Weight,
        rows: usize,
        x: &[f32],
        mut gx: Option<&mut [f32]>,
        work: &mut [f32],
        batch: Batch,
    ) -> Outcome {
        let (c, vocab) = (head.cols, head.rows);
        let (gathered, work) = work.split_at_mut(rows * c);
        let (gradients, work) = work.split_at_mut(rows * c);
        let (logits, work) = work.split_at_mut(rows * vocab);
        let (losses, work) = work.split_at_mut(rows);
        let (hits, work) = work.split_at_mut(rows);
        let (labels, scratch) = work.split_at_mut(rows);
        let labels: &mut [u32] = bytemuck::cast_slice_mut(labels);
        let Machine { isa, precision, .. } = self.machine;
        let mut outcome = Outcome::default();
        if let Some(gx) = gx.as_deref_mut() {
            gx.fill(0.0);
        }
        let mut next = 0;
        while next < batch.labels.len() {
            let first = next;
            let mut count = 0;
            while next < batch.labels.len() && count < rows {
                if batch.labels[next] != NO_LABEL {
                    gathered[count * c..][..c].copy_from_slice(&x[next * c..][..c]);
                    labels[count] = batch.labels[next];
                    count += 1;
                }
                next += 1;
            }
            if count == 0 {
                break;
            }
            let mut ctx = Ctx { pool: &self.pool, isa, precision, scratch };
            let logits = &mut logits[..count * vocab];
            nt(&mut ctx, head, &gathered[..count * c], count, logits, Start::Zero);
            let scale = gx.is_some().then(|| 1.0 / batch.targets.max(1) as f32);
            cross_entropy::rows(
                isa,
                &self.pool,
                logits,
                &labels[..count],
                scale,
                &mut losses[..count],
                &mut hits[..count],
            );
            outcome.loss += losses[..count].iter().map(|&loss| f64::from(loss)).sum::<f64>();
            outcome.hits += hits[..count].iter().filter(|&&hit| hit == 1.0).count();
            outcome.targets += count;
            if let Some(gx) = gx.as_deref_mut() {
                nn(&mut ctx, head, logits, count, &mut gradients[..count * c], Start::Zero);
                let labelled = (first..next).filter(|&row| batch.labels[row] != NO_LABEL);
                for (row, gradient) in labelled.zip(gradients.chunks_exact(c)) {
                    gx[row * c..][..c].copy_from_slice(gradient);
                }
            }
        }
        outcome
    }

    fn update(&mut self, param: ParamId, grad: &[f32], rule: Rule) {
        if let Some(watch) = &mut self.watch {
            watch[param.0] = elementwise::square_sum(grad);
        }
        let isa = self.machine.isa;
        // SAFETY: the layout keeps a matrix, its states and all gradients apart.
        let matrix = unsafe { self.arena.write(self.layout.param(param).range()) };
        match rule {
            Rule::Sgd(rule) => update::sgd(isa, &self.pool, rule, matrix, grad),
            Rule::AdamW(rule) => {
                // SAFETY: as above.
                let [m, v] = [0, 1].map(|i| unsafe { self.arena.write(self.layout.states[param.0][i].range()) });
                update::adamw(isa, &self.pool, rule, matrix, grad, m, v);
            }
        }
    }
}
