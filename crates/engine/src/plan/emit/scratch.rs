//! How much scratch memory the kernels of an instruction ask for, in floats.

use pocketune_kernels::BlockType;
use pocketune_kernels::attention::{self, Heads};
use pocketune_kernels::cross_entropy::STRIP;
use pocketune_kernels::matmul::{self, Precision, Shape};

use super::Emitter;
use crate::graph::{Classifier, Factors, ParamId, WeightId};
use crate::plan::{Machine, Mode, Request, moving};

impl Emitter<'_> {
    pub(super) fn attention(&self, heads: Heads) -> usize {
        let m = self.request.machine;
        attention::scratch(heads, self.keys_kept(), m.threads, m.isa, m.precision)
    }

    pub(super) fn attention_backward(&self, heads: Heads) -> usize {
        let m = self.request.machine;
        attention::backward_scratch(heads, self.request.tokens, self.keys_kept(), m.threads, m.isa, m.precision)
    }

    /// Keys of which attention keeps what it makes of them: none where room is short.
    fn keys_kept(&self) -> usize {
        if self.request.policy.rows < self.request.tokens { 0 } else { self.request.tokens }
    }

    /// Forward, with what the adapter `b` adds.
    pub(super) fn nt(&self, weight: WeightId, b: Option<ParamId>) -> usize {
        let rows = self.request.graph.weights[weight.0].rows;
        nt_part(self.request, weight, rows, self.rows(), self.rank(b))
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
        matmul::nt_scratch(shape, m.threads, m.isa, m.precision)
    }

    pub(super) fn nn_f32(&self, param: ParamId) -> usize {
        let (decl, m) = (self.request.graph.params[param.0], self.request.machine);
        let shape = Shape { ty: BlockType::F32, rows: decl.rank, cols: decl.cols, n: self.rows(), rank: 0 };
        matmul::nn_scratch(shape, m.threads, m.isa, m.precision)
    }

    /// A matrix that is moved, and its products in f32.
    pub(super) fn moved(&self, param: ParamId) -> usize {
        let decl = self.request.graph.params[param.0];
        decl.len() + thin(self.request, decl.rank, decl.cols, self.rows())
    }

    pub(super) fn tn(&self, param: ParamId) -> usize {
        let (decl, m) = (self.request.graph.params[param.0], self.request.machine);
        matmul::tn_scratch(self.rows(), decl.rank, decl.cols, m.threads, m.isa, m.precision)
    }
}

/// For `rows` of a weight's rows.
fn nt_part(request: Request, weight: WeightId, rows: usize, n: usize, rank: usize) -> usize {
    let (decl, ty, m) = (&request.graph.weights[weight.0], request.stored[weight.0].ty, request.machine);
    matmul::nt_scratch(Shape { ty, rows, cols: decl.cols, n, rank }, m.threads, m.isa, m.precision)
}

fn nn_part(request: Request, weight: WeightId, rows: usize, n: usize, rank: usize) -> usize {
    let (decl, ty, m) = (&request.graph.weights[weight.0], request.stored[weight.0].ty, request.machine);
    matmul::nn_scratch(Shape { ty, rows, cols: decl.cols, n, rank }, m.threads, m.isa, m.precision)
}

/// What all strips of the head make use of, of the scratch memory of the first one's logits.
fn logits_held(request: Request, weight: WeightId, n: usize) -> usize {
    let (decl, ty, m) = (&request.graph.weights[weight.0], request.stored[weight.0].ty, request.machine);
    let shape = Shape { ty, rows: STRIP.min(decl.rows), cols: decl.cols, n, rank: 0 };
    matmul::nt_held(shape, m.isa, m.precision)
}

/// Rows of head and loss at a time, no more than there are.
pub(super) fn loss_rows(request: Request) -> usize {
    request.policy.loss_rows.clamp(1, request.tokens.max(1))
}

/// The loss: rows gathered and their gradients, logits of one strip, six numbers a row, and the products' own. An adapter has
/// a low-rank value and its gradient beside each row, and a strip of its second factor and of that one's gradient. Where strips are left out
/// for some rows, the others are numbered and their sums brought together.
pub(super) fn loss_work(request: Request, weight: WeightId, lora: Option<Factors>, skip: bool) -> usize {
    let (decl, rows) = (&request.graph.weights[weight.0], loss_rows(request));
    let strip = STRIP.min(decl.rows);
    // Where nothing but the frozen head makes logits, what it makes of its rows stays for all strips.
    let alone = lora.is_none() && !moving::moves(request);
    let held = if alone { logits_held(request, weight, rows) } else { 0 };
    let logits = nt_part(request, weight, strip, rows, 0);
    let product = logits.max(held + nn_part(request, weight, strip, rows, 0));
    let (adapter, thin) = match lora {
        None => (0, 0),
        Some(lora) => {
            let rank = request.graph.params[lora.a.0].rank;
            let wide = thin(request, rank, strip, rows).max(thin(request, rank, decl.cols, rows));
            (2 * rank * (rows + strip), wide)
        }
    };
    let skip = skip && matches!(request.mode, Mode::TrainAndUpdate | Mode::Accumulate);
    let together = if skip { rows * (decl.cols + 1) } else { 0 };
    let moved = if moving::moves(request) { moving::strips(strip * decl.cols) + moving::strips(strip) } else { 0 };
    rows * (2 * decl.cols + strip + 6) + together + adapter + moved + product.max(thin)
}

/// The loss among a few classes: rows gathered, what the first linear makes of them and that one's gradient, logits, and the products' own, all in f32; and what
/// of the head is moved, where it is.
pub(super) fn classes_work(request: Request, head: Classifier) -> usize {
    let (rows, param) = (loss_rows(request), |id: ParamId| request.graph.params[id.0]);
    let [dense, out] = [head.dense, head.out].map(|linear| param(linear.weight));
    let moved = if request.mode == Mode::Perturb { (dense.len() + dense.rank).max(out.len() + out.rank) } else { 0 };
    let products = thin(request, dense.rank, dense.cols, rows).max(thin(request, out.rank, out.cols, rows));
    rows * (3 * dense.cols + out.rank) + moved + products
}

/// All products of `n` rows with a factor of `[rank, cols]`, which at the ends of a model are in f32.
fn thin(request: Request, rank: usize, cols: usize, n: usize) -> usize {
    let Machine { threads, isa, .. } = request.machine;
    let shape = Shape { ty: BlockType::F32, rows: rank, cols, n, rank: 0 };
    let tn = matmul::tn_scratch(n, rank, cols, threads, isa, Precision::F32);
    let nt = matmul::nt_scratch(shape, threads, isa, Precision::F32);
    nt.max(matmul::nn_scratch(shape, threads, isa, Precision::F32)).max(tn)
}

impl Emitter<'_> {
    /// The adapter of the embedding: low-rank values and their gradients of all rows, and its products' own.
    pub(super) fn embedding(&self, lora: Factors) -> usize {
        let (decl, n) = (self.request.graph.params[lora.b.0], self.request.tokens);
        2 * decl.rank * n + thin(self.request, decl.rank, decl.cols, n)
    }

    /// The adapter of the head for one row.
    pub(super) fn head_of_one(&self, lora: Factors) -> usize {
        let [a, b] = [lora.a, lora.b].map(|id| self.request.graph.params[id.0]);
        a.rank + thin(self.request, a.rank, a.cols, 1).max(thin(self.request, b.rank, b.cols, 1))
    }
}
