//! The derivative's instructions for every operation. Gradients flow only where one was asked for.

use super::Emitter;
use crate::graph::{Node, Op, ParamId, ValueId, WeightId};
use crate::plan::Mode;
use crate::plan::{Buf, Grad, Instr, Kind, LoraUp};

impl Emitter<'_> {
    /// The derivative of one node, if a gradient has reached its output.
    pub(super) fn differentiate(&mut self, at: usize) {
        let node = self.node(at);
        let Some(g) = node.outputs.first().and_then(|&output| self.take_grad(output)) else { return };
        for value in node.derivative_reads(self.request.graph, &self.needs) {
            self.materialise(value);
        }
        let input = |i: usize| node.inputs[i];
        match &node.op {
            Op::Embed { lora: Some(lora), .. } => {
                let (scratch, grads) = (self.scratch(self.embedding(*lora)), [lora.a, lora.b].map(|id| self.grad(id)));
                self.instrs.push(Instr::EmbedBackward { lora: *lora, g, grads, scratch });
                [lora.a, lora.b].into_iter().zip(grads).for_each(|(param, grad)| self.update(param, grad));
            }
            Op::Embed { weight, scale, added, .. } => self.learn_embedding(*weight, *scale, *added, g),
            Op::CrossEntropy { .. } | Op::Classify(_) => {}
            Op::Norm(norm) => {
                let x = self.at(input(0));
                if let Some(gx) = self.target(input(0)) {
                    self.instrs.push(Instr::NormBackward { norm: *norm, x, g, gx });
                }
                self.learn_norm(*norm, input(0), g);
            }
            Op::Normalise(norm) => {
                let [n, rstd] = [0, 1].map(|i| self.at(node.outputs[i]));
                if let Some(gx) = self.target(input(0)) {
                    self.instrs.push(Instr::SharedNormBackward { norm: *norm, n, rstd, g, gx });
                }
            }
            Op::Affine(_) => self.pass(input(0), g),
            Op::LoraDown { a, .. } => self.lora_down(*a, input(0), g),
            Op::Dropout { share, stream } => {
                if let Some(gx) = self.target(input(0)) {
                    self.instrs.push(Instr::DropoutBackward { share: *share, stream: *stream, g, gx });
                }
            }
            Op::Magnitude { module, m, .. } => {
                let (z, gm) = (self.at(input(0)), self.grad(*m));
                let gz = self.target(input(0)).expect("what a magnitude scales is trained too");
                self.instrs.push(Instr::MagnitudeBackward { module: *module, m: *m, z, g, gz, gm });
                self.update(*m, gm);
            }
            Op::Linear { weight, bias, lora } => {
                self.linear(node, *weight, *lora, g);
                self.learn_linear(*weight, *bias, input(0), g);
            }
            Op::VeraUp(vera) => {
                let h = input(1);
                let gh = self.needs[h.0].then(|| {
                    let gh = self.gradient_buffer(h);
                    self.set_grad(h, gh);
                    gh
                });
                let ids = [vera.lambda_d, vera.lambda_b];
                let (scratch, grads) = (self.scratch(self.vera_up_backward(*vera)), ids.map(|id| self.grad(id)));
                self.instrs.push(Instr::VeraUpBackward { vera: *vera, h: self.at(h), g, gh, grads, scratch });
                ids.into_iter().zip(grads).for_each(|(param, grad)| self.update(param, grad));
                self.pass(input(0), g);
            }
            Op::VeraDown(vera) => {
                if let Some(gx) = self.target(input(0)) {
                    let scratch = self.scratch(self.vera_down(*vera));
                    self.instrs.push(Instr::VeraDownBackward { vera: *vera, gh: g, gx, scratch });
                }
            }
            Op::Rope { table, d, pairs } => {
                self.instrs.push(Instr::Rope { table: *table, d: *d, pairs: *pairs, x: g, inverse: true });
                self.pass(input(0), g);
            }
            Op::Attention { heads } => {
                let scratch = self.scratch(self.attention_backward(*heads));
                let [q, k, v] = [0, 1, 2].map(|i| self.at(input(i)));
                let read = [q, k, v, self.at(node.outputs[0]), self.at(node.outputs[1]), g];
                let write = [0, 1, 2].map(|i| self.gradient_buffer(input(i)));
                self.instrs.push(Instr::AttentionBackward { heads: *heads, read, write, scratch });
                (0..3).for_each(|i| self.pass(input(i), write[i]));
            }
            Op::Gated { act, steps } => {
                let [gate, up] = [0, 1].map(|i| self.live[input(i).0].take().expect("materialised"));
                self.instrs.push(Instr::GatedBackward { act: *act, steps: *steps, gate, up, g });
                self.pass(input(0), gate);
                self.pass(input(1), up);
            }
            Op::Activation { steps: Some(steps), .. } => {
                let levels = self.at(node.outputs[1]);
                self.instrs.push(Instr::LevelsBackward { steps: *steps, levels, g });
                self.pass(input(0), g);
            }
            Op::Activation { act, .. } => {
                let read = node.derivative_reads(self.request.graph, &self.needs);
                let x = read.first().and_then(|x| self.live[x.0].take()).expect("materialised");
                self.instrs.push(Instr::ActivationBackward { act: *act, x, g });
                self.pass(input(0), x);
            }
            Op::Add => {
                self.pass(input(0), g);
                self.pass(input(1), g);
            }
        }
    }

    fn linear(&mut self, node: &Node, weight: WeightId, lora: Option<(ParamId, f32)>, g: Buf) {
        let gx = self.target(node.inputs[0]);
        let mut scratch = 0;
        let lora = lora.map(|(b, scale)| {
            let h = node.inputs[1];
            let down = self.node(self.producers[h.0]);
            let Op::LoraDown { a, .. } = down.op else { unreachable!("h comes from LoraDown") };
            let a = (down.inputs[0] == node.inputs[0]).then_some(a);
            scratch = self.nt_f32(b).max(self.tn(b));
            let gh = self.needs[h.0].then(|| {
                let gh = self.gradient_buffer(h);
                self.set_grad(h, gh);
                gh
            });
            LoraUp { a, b, scale, h: self.at(h), gh, gb: self.grad(b) }
        });
        if gx.is_some() {
            scratch = scratch.max(self.nn(weight, lora.and_then(|lora| lora.a)));
        }
        let scratch = self.scratch(scratch);
        self.instrs.push(Instr::LinearBackward { weight, g, gx, lora, scratch });
        if let Some(lora) = lora {
            self.update(lora.b, lora.gb);
        }
    }

    /// The gradient of A, where it is trained. That of the input went with the linear's where both read the same one.
    fn lora_down(&mut self, a: ParamId, x: ValueId, gh: Buf) {
        let ga = self.request.graph.params[a.0].trained.then(|| (self.at(x), self.grad(a)));
        let apart = matches!(self.node(self.producers[x.0]).op, Op::Dropout { .. });
        let gx = if apart { self.target(x) } else { None };
        let room = ga.map_or(0, |_| self.tn(a)).max(gx.map_or(0, |_| self.nn_f32(a)));
        if ga.is_some() || gx.is_some() {
            let scratch = self.scratch(room);
            self.instrs.push(Instr::LoraDownBackward { a, gh, gx, ga, scratch });
        }
        if let Some((_, grad)) = ga {
            self.update(a, grad);
        }
    }

    pub(super) fn grad(&mut self, param: ParamId) -> Grad {
        match self.request.mode {
            Mode::TrainAndUpdate => {
                let len = self.request.graph.params[param.0].len();
                Grad::Once(self.buffer("gradient", None, Kind::Gradient, len, None))
            }
            _ => Grad::Sum(param),
        }
    }

    /// Applies a gradient when it is complete: at once, or after the last piece.
    pub(super) fn update(&mut self, param: ParamId, grad: Grad) {
        let Grad::Once(grad) = grad else { return };
        let paged = self.request.policy.page_optimizer && self.request.states.any();
        let room = self.request.states.in_use(&self.request.graph.params[param.0]);
        let state = paged.then(|| self.buffer("optimizer", None, Kind::Scratch, room, None));
        let update = Instr::Update { param, grad, state };
        if self.region.is_some() { self.updates.push(update) } else { self.instrs.push(update) }
    }

    /// Where the gradient of `value` is to be written, and whether it adds to what is there; `None` when nobody asked for it.
    fn target(&mut self, value: ValueId) -> Option<(Buf, bool)> {
        if !self.needs[value.0] {
            return None;
        }
        let Some(buf) = self.grads[value.0] else {
            let buf = self.gradient_buffer(value);
            self.set_grad(value, buf);
            return Some((buf, false));
        };
        if self.sharers[buf.0] > 1 {
            let own = self.copy(value, buf);
            self.take_grad(value);
            self.set_grad(value, own);
        }
        self.grads[value.0].map(|buf| (buf, true))
    }

    /// A copy of a gradient in a buffer of the value's own.
    fn copy(&mut self, value: ValueId, from: Buf) -> Buf {
        let to = self.gradient_buffer(value);
        self.instrs.push(Instr::Copy { from, to });
        to
    }

    pub(super) fn set_grad(&mut self, value: ValueId, buf: Buf) {
        self.grads[value.0] = Some(buf);
        self.sharers[buf.0] += 1;
    }

    pub(super) fn take_grad(&mut self, value: ValueId) -> Option<Buf> {
        let buf = self.grads[value.0].take()?;
        self.sharers[buf.0] -= 1;
        Some(buf)
    }

    /// `g` is (part of) the gradient of `value` as it stands.
    fn pass(&mut self, value: ValueId, g: Buf) {
        if !self.needs[value.0] {
            return;
        }
        if self.grads[value.0].is_none() {
            // What is for one piece ends with its region; the gradient of a value that other stages read does not.
            let ends = self.buffers[g.0].local && !self.local[value.0];
            let g = if ends { self.copy(value, g) } else { g };
            self.set_grad(value, g);
        } else if let Some((to, _)) = self.target(value) {
            self.instrs.push(Instr::Add { from: g, to });
        }
    }
}
