//! The forward instruction of every operation.

use pocketune_kernels::dora;

use super::{Emitter, scratch};
use crate::graph::{Classifier, Factors, Norm, Op, ParamId, ValueId, VectorId, WeightId};
use crate::plan::{Buf, Grad, Instr, Kind, LoraAdd};
use crate::plan::{Mode, moving};

impl Emitter<'_> {
    /// Makes sure that `value` is in memory, by the nodes of the open stage.
    pub(super) fn materialise(&mut self, value: ValueId) {
        if self.live[value.0].is_none() {
            let producer = self.producers[value.0];
            for &input in &self.node(producer).inputs {
                self.materialise(input);
            }
            self.forward_node(producer);
        }
    }

    fn define(&mut self, value: ValueId) -> Buf {
        let kept = std::iter::successors(Some(value), |value| self.heir[value.0]).any(|value| self.kept(value));
        let buf = self.value_buffer(value, if kept { Kind::Checkpoint } else { Kind::Work });
        self.live[value.0] = Some(buf);
        buf
    }

    pub(super) fn forward_node(&mut self, at: usize) {
        let node = self.node(at);
        let input = |i: usize| node.inputs[i];
        let instr = match &node.op {
            Op::Embed { weight, scale, added, lora } => {
                let cols = self.request.graph.weights[weight.0].cols;
                let moved = self.moves_model().then(|| self.scratch(moving::strips(cols)));
                let scratch = lora.map(|lora| self.scratch(self.embedding(lora))).or(moved);
                let (added, lora) = (*added, *lora);
                let out = self.define(node.outputs[0]);
                Instr::Embed { weight: *weight, scale: *scale, added, lora, out, scratch }
            }
            Op::Norm(norm) => self.norm(*norm, input(0), node.outputs[0]),
            // Where nothing waits for what was normalised, both parts are one.
            Op::Normalise(_) if !self.backwards && !self.kept(node.outputs[0]) => return,
            Op::Normalise(norm) => {
                let x = self.at(input(0));
                let [out, rstd] = [0, 1].map(|i| self.define(node.outputs[i]));
                Instr::Normalise { norm: *norm, x, out, rstd }
            }
            Op::Affine(norm) => match self.live[input(0).0] {
                Some(n) => Instr::Affine { norm: *norm, n, out: self.define(node.outputs[0]) },
                None => {
                    let x = self.node(self.producers[input(0).0]).inputs[0];
                    self.norm(*norm, x, node.outputs[0])
                }
            },
            Op::Dropout { .. } if !self.trains() => {
                // Nothing is dropped: the input itself.
                self.live[node.outputs[0].0] = Some(self.at(input(0)));
                return;
            }
            Op::Dropout { share, stream } => {
                let x = self.at(input(0));
                Instr::Dropout { share: *share, stream: *stream, x, out: self.define(node.outputs[0]) }
            }
            Op::LoraDown { a, scale } => {
                let room = if self.perturbs() { self.moved(*a) } else { self.nt_f32(*a) };
                let (x, h) = (self.at(input(0)), self.define(node.outputs[0]));
                Instr::LoraDown { a: *a, scale: *scale, x, h, scratch: self.scratch(room) }
            }
            Op::Linear { weight, bias, lora } => {
                let down = lora.filter(|_| !self.perturbs());
                let made = down.and_then(|_| self.just_made(self.at(input(0)), self.at(input(1))));
                let lora = lora.map(|(b, _)| LoraAdd { b, h: self.at(input(1)), down: made.map(|made| made.0) });
                let needed = match self.moves_model() {
                    true => moving::linear(self.request, *weight, self.rows()),
                    false => self.nt(*weight, lora.map(|lora| lora.b)),
                };
                let before = self.packed(self.at(input(0)), lora);
                let scratch = match (before, made) {
                    (Some(before), made) => {
                        made.into_iter().for_each(|(_, unused)| self.forget(unused));
                        self.grow(before, needed)
                    }
                    (None, Some((_, scratch))) => self.grow(scratch, needed),
                    (None, None) => self.scratch(needed),
                };
                if let (Some(lora), true) = (lora, self.perturbs()) {
                    self.grow(scratch, self.moved(lora.b));
                }
                if let (Some(lora), Mode::Generate { .. }) = (lora, self.request.mode) {
                    // One row is not multiplied with tiles, and then what the adapter adds is a product of its own.
                    self.grow(scratch, self.nn_f32(lora.b));
                }
                let out = self.define(node.outputs[0]);
                let (x, more) = (self.at(input(0)), before.is_some());
                Instr::Linear { weight: *weight, bias: *bias, lora, x, out, scratch, more }
            }
            Op::Magnitude { module, weight, bias, scale, m } => {
                let (module, weight, scale) = (*module, *weight, *scale);
                if !self.backwards {
                    let (decl, cols) = (&self.request.graph.modules[module], self.request.graph.weights[weight.0].cols);
                    let scratch = self.scratch(dora::lengths_scratch(cols, self.request.machine.threads));
                    self.instrs.push(Instr::Lengths { module, weight, a: decl.a, b: decl.b, scale, scratch });
                }
                Instr::Magnitude { module, m: *m, bias: *bias, z: self.at(input(0)), out: self.define(node.outputs[0]) }
            }
            Op::VeraDown(vera) => {
                let scratch = self.scratch(self.vera_down(*vera));
                Instr::VeraDown { vera: *vera, x: self.at(input(0)), h: self.define(node.outputs[0]), scratch }
            }
            Op::VeraUp(vera) => {
                let (h, scratch) = (self.at(input(1)), self.scratch(self.vera_up(*vera)));
                Instr::VeraUp { vera: *vera, h, y: self.take_over(input(0), node.outputs[0]), scratch }
            }
            Op::Rope { table, d, pairs } => {
                let x = self.take_over(input(0), node.outputs[0]);
                Instr::Rope { table: *table, d: *d, pairs: *pairs, x, inverse: false }
            }
            Op::Attention { heads } => {
                let scratch = self.scratch(self.attention(*heads));
                let [q, k, v] = [0, 1, 2].map(|i| self.at(input(i)));
                let [out, lse] = [0, 1].map(|i| self.define(node.outputs[i]));
                match (self.request.mode, node.block) {
                    (Mode::Generate { .. }, Some(block)) => {
                        Instr::CachedAttention { block, heads: *heads, q, k, v, out, lse, scratch }
                    }
                    _ => Instr::Attention { heads: *heads, q, k, v, out, lse, scratch },
                }
            }
            Op::Gated { act, .. } => {
                let (gate, up) = (self.at(input(0)), self.at(input(1)));
                Instr::Gated { act: *act, gate, up, out: self.define(node.outputs[0]) }
            }
            Op::Activation { act, .. } if node.op.in_place().is_some() => {
                Instr::Activation { act: *act, x: self.take_over(input(0), node.outputs[0]), out: None, levels: None }
            }
            Op::Activation { act, steps } => {
                let waits = |this: &Self, levels| this.backwards || this.kept(levels) || node.block.is_none();
                let made = node.outputs.get(1).filter(|&&levels| self.trains() && waits(self, levels));
                let levels = steps.zip(made.map(|&levels| self.define(levels)));
                let out = Some(self.define(node.outputs[0]));
                Instr::Activation { act: *act, x: self.at(input(0)), out, levels }
            }
            Op::Add => Instr::Add { from: self.at(input(0)), to: self.take_over(input(1), node.outputs[0]) },
            Op::CrossEntropy { weight, bias, lora, skip } => self.head(*weight, *bias, *lora, *skip, input(0)),
            Op::Classify(head) => self.classes(*head, input(0)),
        };
        let updates: Vec<(ParamId, Grad)> = match &instr {
            Instr::CrossEntropy { lora: Some(lora), grads: Some(grads), .. } => {
                [lora.a, lora.b].into_iter().zip(*grads).collect()
            }
            Instr::Classify { head, grads: Some(grads), .. } => head.params().into_iter().zip(*grads).collect(),
            _ => Vec::new(),
        };
        self.instrs.push(instr);
        updates.into_iter().for_each(|(param, grad)| self.update(param, grad));
    }

    fn norm(&mut self, norm: Norm, x: ValueId, out: ValueId) -> Instr {
        let len = self.request.graph.vectors[norm.weight.0].len;
        let moved = self.moves_model().then(|| self.scratch(2 * moving::strips(len)));
        Instr::Norm { norm, x: self.at(x), out: self.define(out), moved }
    }

    /// The adapter's factor and scale and the scratch memory, if the last instruction made `h` of `x`: it is taken back, since the linear
    /// makes `h` on the way.
    fn just_made(&mut self, x: Buf, h: Buf) -> Option<((ParamId, f32), Buf)> {
        let made = match self.instrs.last() {
            Some(&Instr::LoraDown { a, scale, x: of, h: made, scratch }) if made == h && of == x => {
                ((a, scale), scratch)
            }
            _ => return None,
        };
        self.instrs.pop();
        Some(made)
    }

    /// The scratch memory of the linear just before, where it read `x` in the same pieces and its adapter is of the same rank and kind.
    fn packed(&self, x: Buf, lora: Option<LoraAdd>) -> Option<Buf> {
        let kind = |lora: Option<LoraAdd>| {
            lora.map(|LoraAdd { b, down, .. }| (self.request.graph.params[b.0].rank, down.is_some()))
        };
        let (border, here) = (self.regions.last().map(|region| region.end), self.instrs.len());
        let border = self.region.map(|(_, start)| start).or(border);
        let alike = border.is_none_or(|border| border < here) && !self.perturbs() && !self.moves_model();
        match self.instrs.last() {
            Some(&Instr::Linear { x: same, lora: before, scratch, .. })
                if alike && same == x && kind(before) == kind(lora) =>
            {
                Some(scratch)
            }
            _ => None,
        }
    }

    /// Takes back the newest buffer, which nothing uses.
    fn forget(&mut self, newest: Buf) {
        assert_eq!(newest.0 + 1, self.buffers.len(), "the newest buffer");
        self.buffers.pop();
        self.sharers.pop();
    }

    /// Makes scratch memory at least `len` long.
    fn grow(&mut self, scratch: Buf, len: usize) -> Buf {
        let buffer = &mut self.buffers[scratch.0];
        buffer.len = buffer.len.max(len);
        scratch
    }

    /// `output` takes the place of `input`, which nothing else reads.
    fn take_over(&mut self, input: ValueId, output: ValueId) -> Buf {
        let buf = self.at(input);
        let (name, kept) = (self.request.graph.values[output.0].name, self.kept(output));
        let buffer = &mut self.buffers[buf.0];
        if kept {
            (buffer.kind, buffer.name) = (Kind::Checkpoint, name);
        }
        self.live[input.0] = None;
        self.live[output.0] = Some(buf);
        buf
    }

    /// The loss, with the gradient of its input when training; or the last token's logits.
    fn head(
        &mut self,
        weight: WeightId,
        bias: Option<VectorId>,
        lora: Option<Factors>,
        skip: bool,
        x: ValueId,
    ) -> Instr {
        let decl = &self.request.graph.weights[weight.0];
        if let Mode::Generate { .. } = self.request.mode {
            let out = self.buffer("logits", None, Kind::Loss, decl.rows, None);
            self.logits = Some(out);
            let scratch = lora.map_or(0, |lora| self.head_of_one(lora));
            return Instr::Logits { weight, bias, lora, x: self.at(x), out, scratch: self.scratch(scratch) };
        }
        let rows = scratch::loss_rows(self.request);
        let work = scratch::loss_work(self.request, weight, lora, skip);
        let work = self.buffer("logits", None, Kind::Loss, work, None);
        let gx = self.loss_gradient(x);
        let grads = lora.filter(|_| self.trains()).map(|lora| [lora.a, lora.b].map(|id| self.grad(id)));
        let skip = skip && gx.is_some();
        if self.trains() && self.request.graph.trained_matrix(weight).is_some() {
            self.lse = Some(self.buffer("logsumexp", None, Kind::Loss, self.request.tokens, Some(1)));
        }
        Instr::CrossEntropy { weight, bias, lora, skip, rows, x: self.at(x), gx, lse: self.lse, grads, work }
    }

    /// The loss among a few classes, whose head is trained beside adapters.
    fn classes(&mut self, head: Classifier, x: ValueId) -> Instr {
        let (rows, work) = (scratch::loss_rows(self.request), scratch::classes_work(self.request, head));
        let work = self.buffer("classes", None, Kind::Loss, work, None);
        let gx = self.loss_gradient(x);
        let grads = self.trains().then(|| head.params().map(|id| self.grad(id)));
        Instr::Classify { head, rows, x: self.at(x), gx, grads, work }
    }

    /// Where the gradient of the loss's input goes, where somebody asks for it.
    fn loss_gradient(&mut self, x: ValueId) -> Option<Buf> {
        self.needs[x.0].then(|| {
            let gx = self.gradient_buffer(x);
            self.set_grad(x, gx);
            gx
        })
    }
}
