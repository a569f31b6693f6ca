//! The instructions that train a model's own tensors: each is applied when its gradient is complete, which no earlier instruction of the backward pass reads any more.
//! A table that is both embedding and head comes last.

use super::Emitter;
use crate::graph::{Added, Norm, Op, ValueId, VectorId, WeightId};
use crate::plan::{Buf, By, Embedded, Grad, HeadBehind, Instr, Kind, Learning};

/// The head's matrix, its bias and its input.
#[derive(Clone, Copy)]
struct HeadOfGraph {
    weight: WeightId,
    bias: Option<VectorId>,
    x: ValueId,
}

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
        let (centred, eps) = (norm.bias.is_some(), norm.eps);
        self.learn_vector(norm.weight, |grad| Instr::NormGradient { centred, eps, x, g, grad });
        if let Some(bias) = norm.bias {
            self.learn_vector(bias, |grad| Instr::BiasGradient { g, grad });
        }
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
        if let Some(head) = self.head_of_graph().filter(|head| !embeds(head.weight)) {
            self.learn_table(head.weight, None, Some(head));
        }
    }

    /// The embedding, whose output has the gradient `g`, and the tables whose rows are added to it; the first may be the head too.
    pub(super) fn learn_embedding(&mut self, weight: WeightId, scale: f32, added: Option<Added>, g: Buf) {
        let head = self.head_of_graph().filter(|head| head.weight == weight);
        self.learn_table(weight, Some(Embedded { g, scale, by: By::Token }), head);
        let Some(Added { positions, offset, types }) = added else { return };
        self.learn_table(positions, Some(Embedded { g, scale: 1.0, by: By::Position(offset) }), None);
        if let Some(types) = types {
            self.learn_table(types, Some(Embedded { g, scale: 1.0, by: By::Nothing }), None);
        }
    }

    fn learn_table(&mut self, weight: WeightId, embedded: Option<Embedded<Buf>>, head: Option<HeadOfGraph>) {
        let graph = self.request.graph;
        let Some(param) = graph.trained_matrix(weight) else { return };
        let head = head.zip(self.lse).map(|(head, lse)| {
            let bias = head.bias.map(|bias| {
                let len = graph.vectors[bias.0].len;
                (bias, self.buffer("gradient", None, Kind::Gradient, len, None))
            });
            HeadBehind { x: self.at(head.x), lse, bias }
        });
        let how = Learning::table(self.request, weight, param, head.is_some());
        let work = self.buffer("gradient", None, Kind::Gradient, how.floats(), None);
        self.instrs.push(Instr::LearnTable { weight, param, embedded, head, how, work });
        // Every look at the table's gradient makes logits with the bias as it was.
        if let Some((bias, grad)) = head.and_then(|head| head.bias)
            && let Some(param) = graph.trained_vector(bias)
        {
            self.update(param, Grad::Once(grad));
        }
    }

    fn head_of_graph(&self) -> Option<HeadOfGraph> {
        self.request.graph.nodes.iter().find_map(|node| match node.op {
            Op::CrossEntropy { weight, bias, .. } => Some(HeadOfGraph { weight, bias, x: node.inputs[0] }),
            _ => None,
        })
    }
}
