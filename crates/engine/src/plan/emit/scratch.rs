//! How much scratch memory the kernels of an instruction ask for, in floats.

use pocketune_kernels::BlockType;
use pocketune_kernels::attention::{self, Heads};
use pocketune_kernels::matmul::{self, Shape};

use super::Emitter;
use crate::graph::{ParamId, WeightId};
use crate::plan::{Loss, Mode, Request};

impl Emitter<'_> {
    pub(super) fn matvec(&self) -> usize {
        matmul::matvec_scratch(self.request.machine.threads)
    }

    pub(super) fn attention(&self, heads: Heads) -> usize {
        let m = self.request.machine;
        attention::scratch(heads, m.threads, m.isa, m.precision)
    }

    pub(super) fn attention_backward(&self, heads: Heads) -> usize {
        let m = self.request.machine;
        attention::backward_scratch(heads, self.request.tokens, m.threads, m.isa, m.precision)
    }

    /// Forward, with what the adapter `b` adds.
    pub(super) fn nt(&self, weight: WeightId, b: Option<ParamId>) -> usize {
        let rows = self.request.graph.weights[weight.0].rows;
        let many = nt_part(self.request, weight, rows, self.rows(), self.rank(b));
        if matches!(self.request.mode, Mode::Generate { .. }) { many.max(self.matvec()) } else { many }
    }

    /// Backward, with what goes through the adapter `a`.
    pub(super) fn nn(&self, weight: WeightId, a: Option<ParamId>) -> usize {
        let rows = self.request.graph.weights[weight.0].rows;
        nn_part(self.request, weight, rows, self.rows(), self.rank(a))
    }

    fn rank(&self, param: Option<ParamId>) -> usize {
        param.map_or(0, |param| self.request.graph.params[param.0].rank)
    }

    pub(super) fn nt_f32(&self, param: ParamId) -> usize {
        let (decl, m) = (self.request.graph.params[param.0], self.request.machine);
        let shape = Shape { ty: BlockType::F32, rows: decl.rank, cols: decl.cols, n: self.rows(), rank: 0 };
        let many = matmul::nt_scratch(shape, m.threads, m.isa, m.precision);
        if matches!(self.request.mode, Mode::Generate { .. }) { many.max(self.matvec()) } else { many }
    }

    pub(super) fn nn_f32(&self, param: ParamId) -> usize {
        let (decl, m) = (self.request.graph.params[param.0], self.request.machine);
        let shape = Shape { ty: BlockType::F32, rows: decl.rank, cols: decl.cols, n: self.rows(), rank: 0 };
        matmul::nn_scratch(shape, m.threads, m.isa, m.precision)
    }

    pub(super) fn tn(&self, param: ParamId) -> usize {
        let (decl, m) = (self.request.graph.params[param.0], self.request.machine);
        matmul::tn_scratch(self.rows(), decl.rank, decl.cols, m.threads, m.isa, m.precision)
    }
}

/// For `rows` of a weight's rows.
fn nt_part(request: Request, weight: WeightId, rows: usize, n: usize, rank: usize) -> usize {
    let (decl, ty, m) = (&request.graph.weights[weight.0], request.types[weight.0], request.machine);
    matmul::nt_scratch(Shape { ty, rows, cols: decl.cols, n, rank }, m.threads, m.isa, m.precision)
}

fn nn_part(request: Request, weight: WeightId, rows: usize, n: usize, rank: usize) -> usize {
    let (decl, ty, m) = (&request.graph.weights[weight.0], request.types[weight.0], request.machine);
    matmul::nn_scratch(Shape { ty, rows, cols: decl.cols, n, rank }, m.threads, m.isa, m.precision)
}

/// A loss with its pieces no larger than what there is.
pub(super) fn clamped(request: Request, weight: WeightId, loss: Loss) -> Loss {
    let vocab = request.graph.weights[weight.0].rows;
    Loss { rows: loss.rows.clamp(1, request.tokens.max(1)), vocab: loss.vocab.clamp(1, vocab), ..loss }
}

/// The loss: rows gathered and their gradients, logits of one piece or of all, five numbers a row, and the products' own.
pub(super) fn loss_work(request: Request, weight: WeightId, loss: Loss) -> usize {
    let (decl, loss) = (&request.graph.weights[weight.0], clamped(request, weight, loss));
    let logits = if loss.retain { decl.rows } else { loss.vocab };
    let product =
        nt_part(request, weight, loss.vocab, loss.rows, 0).max(nn_part(request, weight, loss.vocab, loss.rows, 0));
    loss.rows * (2 * decl.cols + logits + 5) + product
}
