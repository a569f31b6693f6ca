//! The instructions that train a model's own tensors: each is applied when its gradient is complete, which no earlier instruction of the backward pass reads any more.
//! A table that is both embedding and head comes last.

use super::Emitter;
use crate::graph::{Norm, Op, ValueId, VectorId, WeightId};
use crate::plan::{Buf, Grad, Instr, Kind, Learning};

impl Emitter<'_> {
    /// A linear whose output has the gradient `g`.
    pub(super) fn learn_linear(&mut self, weight: WeightId, bias: Option<VectorId>, x: ValueId, g: Buf) {
        let Some(param) = self.request.graph.trained_matrix(weight) else { return };
        let how = Learning::linear(self.request, weight, param);
        let work = self.buffer("gradient", None, Kind::Gradient, how.floats(), None);
        self.instrs.push(Instr::Learn { weight, param, x: self.at(x), g, how, work });
        if let Some(bias) = bias {
            self.learn_vector(bias, |grad| Instr::BiasGradient { g, grad });
        }
    }

    /// A norm whose output has the gradient `g`.
    pub(super) fn learn_norm(&mut self, norm: Norm, x: ValueId, g: Buf) {
        let x = self.at(x);
        self.learn_vector(norm.weight, |grad| Instr::NormGradient { eps: norm.eps, x, g, grad });
    }

    fn learn_vector(&mut self, vector: VectorId, gradient: impl FnOnce(Buf) -> Instr) {
        let Some(param) = self.request.graph.trained_vector(vector) else { return };
        let len = self.request.graph.vectors[vector.0].len;
        let grad = self.buffer("gradient", None, Kind::Gradient, len, None);
        self.instrs.push(gradient(grad));
        self.update(param, Grad::Once(grad));
    }

    /// The head, where it is no embedding too.
    pub(super) fn learn_head(&mut self) {
        let graph = self.request.graph;
        let embeds =
            |of: WeightId| graph.nodes.iter().any(|node| matches!(node.op, Op::Embed { weight, .. } if weight == of));
        if let Some((weight, x)) = self.head_of_graph().filter(|(weight, _)| !embeds(*weight)) {
            self.learn_table(weight, None, Some(x));
        }
    }

    /// The embedding, whose output has the gradient `g`; it may be the head too.
    pub(super) fn learn_embedding(&mut self, weight: WeightId, scale: f32, g: Buf) {
        let head = self.head_of_graph().filter(|(head, _)| *head == weight);
        self.learn_table(weight, Some((g, scale)), head.map(|(_, x)| x));
    }

    fn learn_table(&mut self, weight: WeightId, embedded: Option<(Buf, f32)>, head: Option<ValueId>) {
        let Some(param) = self.request.graph.trained_matrix(weight) else { return };
        let head = head.zip(self.lse).map(|(x, lse)| [self.at(x), lse]);
        let how = Learning::table(self.request, weight, param, head.is_some());
        let work = self.buffer("gradient", None, Kind::Gradient, how.floats(), None);
        self.instrs.push(Instr::LearnTable { weight, param, embedded, head, how, work });
    }

    /// The head's matrix and its input.
    fn head_of_graph(&self) -> Option<(WeightId, ValueId)> {
        self.request.graph.nodes.iter().find_map(|node| match node.op {
            Op::CrossEntropy { weight, .. } => Some((weight, node.inputs[0])),
            _ => None,
        })
    }
}
