//! Head and loss, with the head's adapter where it has one: the one instruction that is a loop of its own, over pieces of labelled rows and
//! pieces of the vocabulary.

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Precision, Start, Weight, nn, nt, tn};
use pocketune_kernels::{cross_entropy, elementwise};

use super::{Batch, Cpu, NO_LABEL, Outcome};
use crate::error::Result;
use crate::graph::WeightId;
use crate::plan::{Loss, Machine};

/// The head of the model and how its loss is worked through.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub weight: WeightId,
    pub bias: Option<&'a [f32]>,
    pub lora: Option<HeadAdapter<'a>>,
    pub loss: Loss,
    pub stream: bool,
}

/// The head's adapter.
#[derive(Clone, Copy)]
pub(super) struct HeadAdapter<'a> {
    /// The first factor.
    pub a: Weight<'a>,
    /// The second, `[rank, vocab]`.
    pub b: &'a [f32],
    pub scale: f32,
}

/// What the adapter works with: pieces of the second factor and of its gradient, and the low-rank values of a piece of rows and their
/// gradients. All in f32, where a sum in pieces has the bits of the whole.
struct Work<'a> {
    piece: &'a mut [f32],
    grad: &'a mut [f32],
    h: &'a mut [f32],
    gh: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Cut from the front of `work`, and the rest.
    fn cut(work: &'a mut [f32], rank: usize, loss: Loss) -> (Self, &'a mut [f32]) {
        let (piece, work) = work.split_at_mut(rank * loss.vocab);
        let (grad, work) = work.split_at_mut(rank * loss.vocab);
        let (h, work) = work.split_at_mut(rank * loss.rows);
        let (gh, work) = work.split_at_mut(rank * loss.rows);
        (Self { piece, grad, h, gh }, work)
    }
}

/// The columns `piece` of a matrix with `rank` rows, one row after another.
fn columns(matrix: &[f32], rank: usize, piece: &Range<usize>, to: &mut [f32]) {
    for (row, to) in matrix.chunks_exact(matrix.len() / rank).zip(to.chunks_exact_mut(piece.len())) {
        to.copy_from_slice(&row[piece.clone()]);
    }
}

/// The way back.
fn put_columns(from: &[f32], rank: usize, piece: &Range<usize>, matrix: &mut [f32]) {
    let width = matrix.len() / rank;
    for (row, from) in matrix.chunks_exact_mut(width).zip(from.chunks_exact(piece.len())) {
        row[piece.clone()].copy_from_slice(from);
    }
}

impl<'a> Head<'a> {
    /// What the logits of a piece of the vocabulary start from.
    fn start(&self, piece: &Range<usize>) -> Start<'a> {
        self.bias.map_or(Start::Zero, |bias| Start::Bias(&bias[piece.clone()]))
    }
}

impl Cpu {
    /// Head and loss over pieces of labelled rows and pieces of the vocabulary: gather, logits, loss, and the gradient of `x`
    /// scattered back. Logits of a piece stay until the gradient or are computed again; weights are released behind. Nothing has been
    /// applied yet when it runs, and it takes long, so it looks whether to stop at every piece.
    ///
    /// # Errors
    /// When it was asked to stop.
    pub(super) fn cross_entropy(
        &self,
        head: Head,
        x: &[f32],
        mut gx: Option<&mut [f32]>,
        mut grads: Option<[&mut [f32]; 2]>,
        work: &mut [f32],
        batch: Batch,
    ) -> Result<Outcome> {
        let matrix = self.weights.matrix(head.weight);
        let (rows, c, vocab) = (head.loss.rows, matrix.cols, matrix.rows);
        let (gathered, work) = work.split_at_mut(rows * c);
        let (gradients, work) = work.split_at_mut(rows * c);
        let (logits, work) = work.split_at_mut(rows * if head.loss.retain { vocab } else { head.loss.vocab });
        let (numbers, work) = work.split_at_mut(5 * rows);
        let rank = head.lora.map_or(0, |lora| lora.a.rows);
        let (mut low, scratch) = Work::cut(work, rank, head.loss);
        let Machine { isa, precision, .. } = self.machine;
        let pool = &self.pool;
        let scale = 1.0 / batch.targets.max(1) as f32;
        let mut outcome = Outcome::default();
        if let Some(gx) = gx.as_deref_mut() {
            gx.fill(0.0);
        }
        let mut next = 0;
        while next < batch.labels.len() {
            let first_row = next;
            let (labels, state) = numbers.split_at_mut(rows);
            let labels: &mut [u32] = bytemuck::cast_slice_mut(labels);
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
            let (labels, gathered) = (&labels[..count], &gathered[..count * c]);
            let mut parts = state.chunks_exact_mut(rows).map(|part| &mut part[..count]);
            let mut part = || parts.next().expect("four numbers a row beside the label");
            let mut state = cross_entropy::State { top: part(), total: part(), label: part(), best: part() };
            state.clear();
            let pieces = (0..vocab).step_by(head.loss.vocab).map(|first| first..(first + head.loss.vocab).min(vocab));
            let place = |piece: &Range<usize>| {
                let start = if head.loss.retain { count * piece.start } else { 0 };
                start..start + count * piece.len()
            };
            if let Some(lora) = head.lora {
                let h = &mut low.h[..count * rank];
                let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
                nt(&mut thin, lora.a, gathered, count, h, Start::Zero, None);
                elementwise::scale(pool, h, lora.scale);
            }
            let make = |low: &mut Work, scratch: &mut [f32], piece: &Range<usize>, logits: &mut [f32]| {
                let mut ctx = Ctx { pool, isa, precision, scratch: &mut *scratch };
                nt(&mut ctx, matrix.part(piece.clone()), gathered, count, logits, head.start(piece), None);
                if let Some(lora) = head.lora {
                    let b = &mut low.piece[..rank * piece.len()];
                    columns(lora.b, rank, piece, b);
                    let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch };
                    let factor = Weight::f32(rank, piece.len(), b);
                    nn(&mut thin, factor, &low.h[..count * rank], count, logits, Start::Output, None);
                }
            };
            for piece in pieces.clone() {
                self.unless_stopping()?;
                let logits = &mut logits[place(&piece)];
                make(&mut low, scratch, &piece, logits);
                cross_entropy::take_in(isa, pool, logits, piece.start, labels, &mut state);
                if head.stream {
                    self.weights.release_rows(head.weight, piece);
                }
            }
            let places = (first_row..next).filter(|&row| batch.labels[row] != NO_LABEL);
            for (row, (place, &label)) in places.zip(labels).enumerate() {
                let found =
                    Outcome { loss: f64::from(state.loss(row)), hits: usize::from(state.hit(row, label)), targets: 1 };
                outcome = outcome.plus(found);
                let sum = &self.sums[batch.group_of(place)];
                sum.set(sum.get().plus(found));
            }
            if gx.is_none() && grads.is_none() {
                continue;
            }
            let gradients = &mut gradients[..count * c];
            for piece in pieces {
                self.unless_stopping()?;
                let logits = &mut logits[place(&piece)];
                if !head.loss.retain {
                    make(&mut low, scratch, &piece, logits);
                }
                cross_entropy::gradient(isa, pool, logits, piece.start, labels, &state, scale);
                self.unless_stopping()?;
                let start = if piece.start == 0 { Start::Zero } else { Start::Output };
                if gx.is_some() {
                    let mut ctx = Ctx { pool, isa, precision, scratch: &mut *scratch };
                    nn(&mut ctx, matrix.part(piece.clone()), logits, count, gradients, start, None);
                }
                if let Some(lora) = head.lora {
                    let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
                    let b = &mut low.piece[..rank * piece.len()];
                    columns(lora.b, rank, &piece, b);
                    let factor = Weight::f32(rank, piece.len(), b);
                    nt(&mut thin, factor, logits, count, &mut low.gh[..count * rank], start, None);
                    if let Some([_, gb]) = &mut grads {
                        let grad = &mut low.grad[..rank * piece.len()];
                        columns(gb, rank, &piece, grad);
                        let h = &low.h[..count * rank];
                        tn(&mut thin, h, logits, count, rank, piece.len(), grad, Start::Output);
                        put_columns(grad, rank, &piece, gb);
                    }
                }
                if head.stream {
                    self.weights.release_rows(head.weight, piece);
                }
            }
            if let Some(lora) = head.lora {
                let gh = &mut low.gh[..count * rank];
                elementwise::scale(pool, gh, lora.scale);
                let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
                if let Some([ga, _]) = &mut grads {
                    tn(&mut thin, gh, gathered, count, rank, c, ga, Start::Output);
                }
                if gx.is_some() {
                    nn(&mut thin, lora.a, gh, count, gradients, Start::Output, None);
                }
            }
            let Some(gx) = gx.as_deref_mut() else { continue };
            let labelled = (first_row..next).filter(|&row| batch.labels[row] != NO_LABEL);
            for (row, gradient) in labelled.zip(gradients.chunks_exact(c)) {
                gx[row * c..][..c].copy_from_slice(gradient);
            }
        }
        Ok(outcome)
    }
}
