//! Writes the instructions: the forward pass, and the derivative of every node in reverse, fetching or computing again what was
//! not kept. Blocks are worked through stage by stage; a stage whose rows are independent may loop over pieces of them.

mod backward;
mod forward;
mod halves;
mod order;
mod scratch;
mod vera;
mod whole;

use std::ops::Range;

use halves::Halves;

use super::policy::Spill;
use super::{Buf, Buffer, Instr, Kind, Passage, Program, Region};
use super::{Mode, Request, moving};
use crate::graph::{Node, Op, Role, Stage, ValueId};

/// The instructions and buffers for `request`, without offsets.
pub(super) fn emit(request: Request) -> Program {
    let graph = request.graph;
    let trains = matches!(request.mode, Mode::TrainAndUpdate | Mode::Accumulate);
    let needs = if trains { graph.needs_gradient() } else { vec![false; graph.values.len()] };
    let mut saved = vec![false; graph.values.len()];
    for node in graph.nodes.iter().filter(|node| node.outputs.iter().any(|output| needs[output.0])) {
        for value in node.derivative_reads(graph, &needs) {
            saved[value.0] = true;
        }
    }
    // What is made again of another value waits as that one.
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Affine(_))) {
        saved[node.inputs[0].0] |= std::mem::take(&mut saved[node.outputs[0].0]);
    }
    let mut emitter = Emitter {
        request,
        producers: graph.producers(),
        saved,
        local: Vec::new(),
        heir: vec![None; graph.values.len()],
        inputs: vec![ValueId(0); graph.blocks],
        stages: vec![[0..0, 0..0, 0..0]; graph.blocks],
        values: vec![0..0; graph.blocks],
        kept: Vec::new(),
        first: graph.blocks,
        backwards: false,
        instrs: Vec::new(),
        regions: Vec::new(),
        passages: Vec::new(),
        region: None,
        updates: Vec::new(),
        buffers: Vec::new(),
        live: vec![None; graph.values.len()],
        spilled: vec![None; graph.values.len()],
        writing: Vec::new(),
        spill: 0,
        grads: vec![None; graph.values.len()],
        sharers: Vec::new(),
        logits: None,
        lse: None,
        halves: Halves::new(request),
        needs,
    };
    emitter.survey();
    emitter.kept = (0..graph.values.len()).map(|at| emitter.keeps(ValueId(at))).collect();
    emitter.program()
}

/// Floats of the loss's work under `request`'s policy.
pub(super) fn loss_work(request: Request) -> usize {
    let work = request.graph.nodes.iter().find_map(|node| match node.op {
        Op::CrossEntropy { weight, lora, skip, .. } => Some(scratch::loss_work(request, weight, lora, skip)),
        Op::Classify(head) => Some(scratch::classes_work(request, head)),
        _ => None,
    });
    work.unwrap_or(0)
}

/// What is known while instructions are written.
struct Emitter<'a> {
    request: Request<'a>,
    producers: Vec<usize>,
    /// Values that a gradient flows through.
    needs: Vec<bool>,
    /// Values that some derivative reads.
    saved: Vec<bool>,
    /// Values and gradients that are bf16.
    halves: Halves,
    /// Values that only their own stage reads.
    local: Vec<bool>,
    /// The value that takes the place of each in memory, where one does.
    heir: Vec<Option<ValueId>>,
    /// The residual stream before each block.
    inputs: Vec<ValueId>,
    /// The nodes of each block's stages, and the values it makes.
    stages: Vec<[Range<usize>; 3]>,
    values: Vec<Range<usize>>,
    /// Values that wait for the backward pass.
    kept: Vec<bool>,
    /// The first block with something to differentiate.
    first: usize,
    /// Whether the forward pass is written: what comes is the derivative, and what it computes again.
    backwards: bool,
    instrs: Vec<Instr>,
    regions: Vec<Region>,
    passages: Vec<Passage>,
    /// The block of the open region, and where it began.
    region: Option<(usize, usize)>,
    /// Updates that wait for the end of the region.
    updates: Vec<Instr>,
    buffers: Vec<Buffer>,
    /// Where each value is in memory now.
    live: Vec<Option<Buf>>,
    /// Where each value is in the spill file now.
    spilled: Vec<Option<usize>>,
    /// Buffers that are being written to the spill file.
    writing: Vec<Buf>,
    /// Floats of the spill file so far.
    spill: usize,
    /// Where the gradient of each value is now.
    grads: Vec<Option<Buf>>,
    /// How many values have their gradient in each buffer.
    sharers: Vec<u32>,
    logits: Option<Buf>,
    /// The log-sum-exp of every row of logits, where the head is trained.
    lse: Option<Buf>,
}

impl<'a> Emitter<'a> {
    fn node(&self, at: usize) -> &'a Node {
        &self.request.graph.nodes[at]
    }

    /// The numbers of a block's nodes in one stage: nodes of a stage lie together.
    fn stage(&self, block: usize, stage: Stage) -> Range<usize> {
        self.stages[block][stage as usize].clone()
    }

    /// The numbers of the values that a block makes, which lie together.
    fn made(&self, block: usize) -> Range<usize> {
        self.values[block].clone()
    }

    /// Whether `value` waits for the backward pass, in memory or on disk.
    fn kept(&self, value: ValueId) -> bool {
        self.kept[value.0]
    }

    /// Finds what every block starts from, where differentiation starts, and which values never leave their stage.
    fn survey(&mut self) {
        let graph = self.request.graph;
        let mut local = vec![true; graph.values.len()];
        for node in graph.nodes.iter().rev() {
            for input in &node.inputs {
                let producer = self.node(self.producers[input.0]);
                local[input.0] &= producer.block == node.block && producer.stage == node.stage && node.block.is_some();
            }
            if let Some(at) = node.op.in_place() {
                local[node.inputs[at].0] &= local[node.outputs[0].0];
                self.heir[node.inputs[at].0] = Some(node.outputs[0]);
            }
        }
        for (at, value) in graph.values.iter().enumerate() {
            local[at] &= graph.nodes[self.producers[at]].stage != Stage::Attention && value.block.is_some();
        }
        let widen = |range: &mut Range<usize>, at: usize| {
            *range = if range.start == range.end { at..at + 1 } else { range.start.min(at)..range.end.max(at + 1) };
        };
        for (at, node) in graph.nodes.iter().enumerate().rev() {
            if let Some(block) = node.block {
                widen(&mut self.stages[block][node.stage as usize], at);
                node.outputs.iter().for_each(|output| widen(&mut self.values[block], output.0));
                let outside = node.inputs.iter().find(|input| graph.values[input.0].role == Role::BlockInput);
                self.inputs[block] = outside.copied().unwrap_or(self.inputs[block]);
                if node.outputs.iter().any(|output| self.needs[output.0]) {
                    self.first = self.first.min(block);
                }
            }
        }
        self.local = local;
    }

    /// Whether gradients are wanted.
    const fn trains(&self) -> bool {
        matches!(self.request.mode, Mode::TrainAndUpdate | Mode::Accumulate)
    }

    /// Whether matrices of adapters are moved.
    fn perturbs(&self) -> bool {
        self.request.mode == Mode::Perturb
    }

    /// Whether the model's own tensors are.
    fn moves_model(&self) -> bool {
        moving::moves(self.request)
    }

    fn pieces(&self) -> bool {
        self.request.policy.rows < self.request.tokens
    }

    /// Rows that the next instruction handles at most.
    fn rows(&self) -> usize {
        if self.region.is_some() { self.request.policy.rows.min(self.request.tokens) } else { self.request.tokens }
    }

    fn buffer(&mut self, name: &'static str, block: Option<usize>, kind: Kind, len: usize, cols: Option<usize>) -> Buf {
        let (first, last, local) = (usize::MAX, 0, false);
        self.sharers.push(0);
        let (len, half, offset) = (len.max(1), false, 0);
        self.buffers.push(Buffer { name, block, kind, len, cols, half, local, first, last, offset });
        Buf(self.buffers.len() - 1)
    }

    /// A buffer for a value.
    fn value_buffer(&mut self, value: ValueId, kind: Kind) -> Buf {
        self.rows_buffer(value, kind, self.halves.values[value.0])
    }

    /// A buffer for the gradient of a value.
    fn gradient_buffer(&mut self, value: ValueId) -> Buf {
        self.rows_buffer(value, Kind::Work, self.halves.gradients[value.0])
    }

    /// A buffer for either: of one piece when it never leaves the open region.
    fn rows_buffer(&mut self, value: ValueId, kind: Kind, half: bool) -> Buf {
        let decl = &self.request.graph.values[value.0];
        let local = self.region.is_some() && self.local[value.0] && kind != Kind::Checkpoint;
        let rows = if local { self.rows() } else { self.request.tokens };
        let buf = self.buffer(decl.name, decl.block, kind, 0, Some(decl.cols));
        let buffer = &mut self.buffers[buf.0];
        (buffer.local, buffer.half) = (local, half);
        buffer.len = buffer.floats(rows).max(1);
        buf
    }

    fn scratch(&mut self, len: usize) -> Buf {
        self.buffer("scratch", None, Kind::Scratch, len, None)
    }

    fn at(&self, value: ValueId) -> Buf {
        self.live[value.0].expect("a value is computed before it is read")
    }

    /// Opens a loop over pieces of rows in a stage of `block`, where the policy has pieces.
    fn open(&mut self, block: usize, stage: Stage) {
        if self.pieces() && stage != Stage::Attention {
            self.region = Some((block, self.instrs.len()));
        }
    }

    /// Closes it: values of one piece are gone, and updates that waited for the last piece follow.
    fn close(&mut self) {
        if let Some((block, start)) = self.region.take() {
            if start < self.instrs.len() {
                self.regions.push(Region { start, end: self.instrs.len() });
            }
            let made = self.made(block);
            for place in self.live[made.clone()].iter_mut().chain(&mut self.grads[made]) {
                if place.is_some_and(|buf| self.buffers[buf.0].local) {
                    *place = None;
                }
            }
        }
        self.instrs.append(&mut self.updates);
    }

    /// Whether `value` is to wait for the backward pass.
    fn keeps(&self, value: ValueId) -> bool {
        let (graph, policy) = (self.request.graph, self.request.policy);
        let decl = &graph.values[value.0];
        if decl.role != Role::BlockInput {
            let inside = decl.block.is_some_and(|block| policy.keep.of(block).contains(decl.role));
            return self.saved[value.0] && inside && policy.every[0] <= 1;
        }
        let Some(block) = self.inputs.iter().position(|&input| input == value) else { return self.saved[value.0] };
        if block < self.first || policy.every[0] > 1 {
            return block >= self.first && (block - self.first).is_multiple_of(policy.every[0]);
        }
        self.saved[value.0] || self.recomputes(block)
    }

    /// Whether something inside `block` is computed again.
    fn recomputes(&self, block: usize) -> bool {
        let graph = self.request.graph;
        let roles = self.request.policy.keep.of(block);
        graph.values.iter().zip(&self.saved).any(|(value, &saved)| {
            saved && value.block == Some(block) && value.role != Role::BlockInput && !roles.contains(value.role)
        })
    }

    fn spills(&self) -> bool {
        self.request.policy.spill != Spill::No
    }

    fn program(mut self) -> Program {
        self.forward();
        if self.trains() {
            self.backwards = true;
            self.backward();
        }
        Program {
            mode: self.request.mode,
            states: self.request.states,
            tokens: self.request.tokens,
            rows: self.request.policy.rows.min(self.request.tokens),
            stream: self.request.policy.stream,
            instrs: self.instrs,
            regions: self.regions,
            passages: self.passages,
            spill: self.spill,
            buffers: self.buffers,
            logits: self.logits,
            len: 0,
        }
    }
}
