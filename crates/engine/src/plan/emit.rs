//! Writes the instructions: the forward pass, and the derivative of every node in reverse, computing again what was not kept.

use pocketune_kernels::{BlockType, attention, matmul};

use super::program::{Buf, Buffer, Grad, Instr, Kind, LoraUp, Program};
use super::{Mode, Request};
use crate::graph::{Node, Op, ParamId, Role, ValueId, WeightId};

/// The instructions and buffers for `request`, without offsets.
pub(super) fn emit(request: Request) -> Program {
    let graph = request.graph;
    let needs = graph.needs_gradient();
    let mut saved = vec![false; graph.values.len()];
    if matches!(request.mode, Mode::TrainAndUpdate | Mode::Accumulate) {
        for node in graph.nodes.iter().filter(|node| node.outputs.iter().any(|output| needs[output.0])) {
            for value in node.derivative_reads(&needs) {
                saved[value.0] = true;
            }
        }
    }
    let mut emitter = Emitter {
        request,
        producers: graph.producers(),
        needs,
        saved,
        instrs: Vec::new(),
        buffers: Vec::new(),
        live: vec![None; graph.values.len()],
        grads: vec![None; graph.values.len()],
        logits: None,
    };
    emitter.forward();
    if matches!(request.mode, Mode::TrainAndUpdate | Mode::Accumulate) {
        emitter.backward();
    }
    Program {
        mode: request.mode,
        tokens: request.tokens,
        instrs: emitter.instrs,
        buffers: emitter.buffers,
        logits: emitter.logits,
        len: 0,
    }
}

struct Emitter<'a> {
    request: Request<'a>,
    producers: Vec<usize>,
    needs: Vec<bool>,
    /// Values that some derivative reads.
    saved: Vec<bool>,
    instrs: Vec<Instr>,
    buffers: Vec<Buffer>,
    /// Where each value is now.
    live: Vec<Option<Buf>>,
    /// Where the gradient of each value is now.
    grads: Vec<Option<Buf>>,
    logits: Option<Buf>,
}

impl<'a> Emitter<'a> {
    fn node(&self, at: usize) -> &'a Node {
        &self.request.graph.nodes[at]
    }

    fn forward(&mut self) {
        let graph = self.request.graph;
        let mut block = None;
        for at in 0..graph.nodes.len() {
            if graph.nodes[at].block != block {
                self.forget(block);
                block = graph.nodes[at].block;
            }
            self.forward_node(at);
        }
    }

    /// At the end of a block's forward pass: values that are not kept are gone, but for the block's output, which the next reads.
    fn forget(&mut self, block: Option<usize>) {
        let graph = self.request.graph;
        let Some(block) = block else { return };
        let output = self.live.iter().rposition(Option::is_some);
        for (at, value) in graph.values.iter().enumerate() {
            let older = value.block.is_none_or(|of| of <= block);
            if older && Some(at) != output && !self.kept(ValueId(at)) {
                self.live[at] = None;
            }
        }
    }

    fn kept(&self, value: ValueId) -> bool {
        let role = self.request.graph.values[value.0].role;
        let recomputes_from = role == Role::BlockInput && self.recomputed_block_reads(value);
        self.request.policy.keeps(role) && (self.saved[value.0] || recomputes_from)
    }

    /// Whether a block whose inside is computed again starts from `value`.
    fn recomputed_block_reads(&self, value: ValueId) -> bool {
        let graph = self.request.graph;
        let reader = graph.nodes.iter().find(|node| node.inputs.contains(&value));
        let Some(block) = reader.and_then(|node| node.block) else { return false };
        graph.values.iter().zip(&self.saved).any(|(inside, &saved)| {
            saved
                && inside.block == Some(block)
                && inside.role != Role::BlockInput
                && !self.request.policy.keeps(inside.role)
        })
    }

    fn buffer(&mut self, name: &'static str, block: Option<usize>, kind: Kind, len: usize, cols: Option<usize>) -> Buf {
        self.buffers.push(Buffer { name, block, kind, len: len.max(1), cols, first: usize::MAX, last: 0, offset: 0 });
        Buf(self.buffers.len() - 1)
    }

    /// A buffer for a value, or for its gradient.
    fn value_buffer(&mut self, value: ValueId, kind: Kind) -> Buf {
        let decl = &self.request.graph.values[value.0];
        self.buffer(decl.name, decl.block, kind, decl.cols * self.request.tokens, Some(decl.cols))
    }

    fn scratch(&mut self, len: usize) -> Buf {
        self.buffer("scratch", None, Kind::Scratch, len, None)
    }

    fn define(&mut self, value: ValueId) -> Buf {
        let kind = if self.kept(value) { Kind::Checkpoint } else { Kind::Work };
        let buf = self.value_buffer(value, kind);
        self.live[value.0] = Some(buf);
        buf
    }

    fn at(&self, value: ValueId) -> Buf {
        self.live[value.0].expect("a value is computed before it is read")
    }

    /// Makes sure that `value` is in memory.
    fn materialise(&mut self, value: ValueId) {
        if self.live[value.0].is_none() {
            let producer = self.producers[value.0];
            for &input in &self.node(producer).inputs {
                self.materialise(input);
            }
            self.forward_node(producer);
        }
    }

    fn forward_node(&mut self, at: usize) {
        let node = self.node(at);
        let input = |i: usize| node.inputs[i];
        let instr = match &node.op {
            Op::Embed { weight, scale } => {
                Instr::Embed { weight: *weight, scale: *scale, out: self.define(node.outputs[0]) }
            }
            Op::Norm { weight, eps, .. } => {
                Instr::Norm { weight: *weight, eps: *eps, x: self.at(input(0)), out: self.define(node.outputs[0]) }
            }
            Op::LoraDown { a, scale } => {
                let scratch = self.scratch(self.nt_f32(self.rank(*a), self.param_cols(*a)));
                Instr::LoraDown { a: *a, scale: *scale, x: self.at(input(0)), h: self.define(node.outputs[0]), scratch }
            }
            Op::Linear { weight, bias, lora } => {
                let lora = lora.map(|(b, _)| (b, self.at(input(1))));
                let up = lora.map_or(0, |(b, _)| self.nn_f32(self.rank(b), self.param_cols(b)));
                let scratch = self.scratch(self.nt(*weight, self.request.tokens).max(up));
                Instr::Linear {
                    weight: *weight,
                    bias: *bias,
                    lora,
                    x: self.at(input(0)),
                    out: self.define(node.outputs[0]),
                    scratch,
                }
            }
            Op::Rope { table, d, pairs } => {
                let x = self.take_over(input(0), node.outputs[0]);
                Instr::Rope { table: *table, d: *d, pairs: *pairs, x, inverse: false }
            }
            Op::Attention { heads } => {
                let scratch = self.scratch(attention::scratch(*heads, self.request.machine.threads));
                let [q, k, v] = [0, 1, 2].map(|i| self.at(input(i)));
                let [out, lse] = [0, 1].map(|i| self.define(node.outputs[i]));
                match (self.request.mode, node.block) {
                    (Mode::Generate { .. }, Some(block)) => {
                        Instr::CachedAttention { block, heads: *heads, q, k, v, out, lse, scratch }
                    }
                    _ => Instr::Attention { heads: *heads, q, k, v, out, lse, scratch },
                }
            }
            Op::Gated { act } => Instr::Gated {
                act: *act,
                gate: self.at(input(0)),
                up: self.at(input(1)),
                out: self.define(node.outputs[0]),
            },
            Op::Add => Instr::Add { from: self.at(input(0)), to: self.take_over(input(1), node.outputs[0]) },
            Op::CrossEntropy { weight } => self.head(*weight, input(0)),
        };
        self.instrs.push(instr);
    }

    /// `output` takes the place of `input`, which nothing else reads.
    fn take_over(&mut self, input: ValueId, output: ValueId) -> Buf {
        let buf = self.at(input);
        if self.kept(output) {
            let decl = &self.request.graph.values[output.0];
            let buffer = &mut self.buffers[buf.0];
            (buffer.kind, buffer.name) = (Kind::Checkpoint, decl.name);
        }
        self.live[input.0] = None;
        self.live[output.0] = Some(buf);
        buf
    }

    /// The loss, with the gradient of its input when training; or the last token's logits.
    fn head(&mut self, weight: WeightId, x: ValueId) -> Instr {
        let decl = &self.request.graph.weights[weight.0];
        if let Mode::Generate { .. } = self.request.mode {
            let out = self.buffer("logits", None, Kind::Loss, decl.rows, None);
            self.logits = Some(out);
            let scratch = matmul::matvec_scratch(self.request.machine.threads);
            return Instr::Logits { weight, x: self.at(x), out, scratch: self.scratch(scratch) };
        }
        let rows = self.request.policy.loss_rows.min(self.request.tokens).max(1);
        let gather = rows * (2 * decl.cols + decl.rows + 3);
        let product = self.nt(weight, rows).max(self.nn(weight, rows));
        let work = self.buffer("logits", None, Kind::Loss, gather + product, None);
        let gx = (self.request.mode != Mode::Evaluate && self.needs[x.0]).then(|| {
            let gx = self.value_buffer(x, Kind::Work);
            self.grads[x.0] = Some(gx);
            gx
        });
        Instr::CrossEntropy { weight, rows, x: self.at(x), gx, work }
    }

    fn backward(&mut self) {
        for at in (0..self.request.graph.nodes.len()).rev() {
            let node = self.node(at);
            let Some(g) = node.outputs.first().and_then(|output| self.grads[output.0].take()) else { continue };
            for value in node.derivative_reads(&self.needs) {
                self.materialise(value);
            }
            self.backward_node(node, g);
        }
    }

    fn backward_node(&mut self, node: &Node, g: Buf) {
        let input = |i: usize| node.inputs[i];
        match &node.op {
            Op::Embed { .. } | Op::CrossEntropy { .. } => {}
            Op::Norm { weight, eps, .. } => {
                let x = self.at(input(0));
                if let Some(gx) = self.target(input(0)) {
                    self.instrs.push(Instr::NormBackward { weight: *weight, eps: *eps, x, g, gx });
                }
            }
            Op::LoraDown { a, .. } => self.lora_down_backward(*a, input(0), g),
            Op::Linear { weight, lora, .. } => self.linear_backward(node, *weight, *lora, g),
            Op::Rope { table, d, pairs } => {
                self.instrs.push(Instr::Rope { table: *table, d: *d, pairs: *pairs, x: g, inverse: true });
                self.pass(input(0), g);
            }
            Op::Attention { heads } => {
                let scratch = self.scratch(attention::scratch(*heads, self.request.machine.threads));
                let [q, k, v] = [0, 1, 2].map(|i| self.at(input(i)));
                let read = [q, k, v, self.at(node.outputs[0]), self.at(node.outputs[1]), g];
                let write = [0, 1, 2].map(|i| self.value_buffer(input(i), Kind::Work));
                self.instrs.push(Instr::AttentionBackward { heads: *heads, read, write, scratch });
                (0..3).for_each(|i| self.pass(input(i), write[i]));
            }
            Op::Gated { act } => {
                let [gate, up] = [0, 1].map(|i| self.live[input(i).0].take().expect("materialised"));
                self.instrs.push(Instr::GatedBackward { act: *act, gate, up, g });
                self.pass(input(0), gate);
                self.pass(input(1), up);
            }
            Op::Add => {
                self.pass(input(0), g);
                self.pass(input(1), g);
            }
        }
    }

    fn linear_backward(&mut self, node: &Node, weight: WeightId, lora: Option<(ParamId, f32)>, g: Buf) {
        let x = node.inputs[0];
        let gx = self.target(x);
        let mut scratch = if gx.is_some() { self.nn(weight, self.request.tokens) } else { 0 };
        let lora = lora.map(|(b, scale)| {
            let h = node.inputs[1];
            let (rank, cols) = (self.rank(b), self.param_cols(b));
            scratch = scratch.max(self.nt_f32(rank, cols)).max(self.tn(rank, cols));
            let gh = self.value_buffer(h, Kind::Work);
            self.grads[h.0] = Some(gh);
            LoraUp { b, scale, h: self.at(h), gh, gb: self.grad(b) }
        });
        let scratch = self.scratch(scratch);
        self.instrs.push(Instr::LinearBackward { weight, g, gx, lora, scratch });
        if let Some(LoraUp { b, gb: Grad::Once(grad), .. }) = lora {
            self.instrs.push(Instr::Update { param: b, grad });
        }
    }

    fn lora_down_backward(&mut self, a: ParamId, x: ValueId, gh: Buf) {
        let (rank, cols) = (self.rank(a), self.param_cols(a));
        let gx = self.target(x);
        let ga = self.grad(a);
        let scratch = self.scratch(self.tn(rank, cols).max(self.nn_f32(rank, cols)));
        let x = self.at(x);
        self.instrs.push(Instr::LoraDownBackward { a, x, gh, ga, gx, scratch });
        if let Grad::Once(grad) = ga {
            self.instrs.push(Instr::Update { param: a, grad });
        }
    }

    fn grad(&mut self, param: ParamId) -> Grad {
        match self.request.mode {
            Mode::TrainAndUpdate => {
                let len = self.request.graph.params[param.0].len();
                Grad::Once(self.buffer("gradient", None, Kind::Gradient, len, None))
            }
            _ => Grad::Sum(param),
        }
    }

    /// Where the gradient of `value` is to be written, and whether it adds to what is there; `None` when nobody asked for it.
    fn target(&mut self, value: ValueId) -> Option<(Buf, bool)> {
        if !self.needs[value.0] {
            return None;
        }
        let Some(buf) = self.grads[value.0] else {
            let buf = self.value_buffer(value, Kind::Work);
            self.grads[value.0] = Some(buf);
            return Some((buf, false));
        };
        let sharers = self.grads.iter().filter(|grad| **grad == Some(buf)).count();
        if sharers > 1 {
            let own = self.value_buffer(value, Kind::Work);
            self.instrs.push(Instr::Copy { from: buf, to: own });
            self.grads[value.0] = Some(own);
        }
        self.grads[value.0].map(|buf| (buf, true))
    }

    /// `g` is (part of) the gradient of `value` as it stands.
    fn pass(&mut self, value: ValueId, g: Buf) {
        if !self.needs[value.0] {
            return;
        }
        if self.grads[value.0].is_none() {
            self.grads[value.0] = Some(g);
        } else if let Some((to, _)) = self.target(value) {
            self.instrs.push(Instr::Add { from: g, to });
        }
    }

    fn rank(&self, param: ParamId) -> usize {
        self.request.graph.params[param.0].rank
    }

    fn param_cols(&self, param: ParamId) -> usize {
        self.request.graph.params[param.0].cols
    }

    fn nt(&self, weight: WeightId, n: usize) -> usize {
        let (decl, ty, m) = (&self.request.graph.weights[weight.0], self.request.types[weight.0], self.request.machine);
        let many = matmul::nt_scratch(ty, decl.rows, decl.cols, n, m.threads, m.isa, m.precision);
        match self.request.mode {
            Mode::Generate { .. } => many.max(matmul::matvec_scratch(self.request.machine.threads)),
            _ => many,
        }
    }

    fn nn(&self, weight: WeightId, n: usize) -> usize {
        let (decl, ty, m) = (&self.request.graph.weights[weight.0], self.request.types[weight.0], self.request.machine);
        matmul::nn_scratch(ty, decl.rows, decl.cols, n, m.threads, m.isa, m.precision)
    }

    fn nt_f32(&self, rows: usize, cols: usize) -> usize {
        let m = self.request.machine;
        matmul::nt_scratch(BlockType::F32, rows, cols, self.request.tokens, m.threads, m.isa, m.precision)
    }

    fn nn_f32(&self, rows: usize, cols: usize) -> usize {
        let m = self.request.machine;
        matmul::nn_scratch(BlockType::F32, rows, cols, self.request.tokens, m.threads, m.isa, m.precision)
    }

    fn tn(&self, rank: usize, cols: usize) -> usize {
        let m = self.request.machine;
        matmul::tn_scratch(self.request.tokens, rank, cols, m.threads, m.isa, m.precision)
    }
}
