//! Head and loss: the one instruction that is a loop of its own, over pieces of labelled rows and pieces of the vocabulary.

use std::ops::Range;

use pocketune_kernels::cross_entropy;
use pocketune_kernels::matmul::{Ctx, Start, nn, nt};

use super::{Batch, Cpu, NO_LABEL, Outcome};
use crate::error::Result;
use crate::graph::WeightId;
use crate::plan::{Loss, Machine};

/// The head of the model and how its loss is worked through.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub weight: WeightId,
    pub bias: Option<&'a [f32]>,
    pub loss: Loss,
    pub stream: bool,
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
        work: &mut [f32],
        batch: Batch,
    ) -> Result<Outcome> {
        let matrix = self.weights.matrix(head.weight);
        let (rows, c, vocab) = (head.loss.rows, matrix.cols, matrix.rows);
        let (gathered, work) = work.split_at_mut(rows * c);
        let (gradients, work) = work.split_at_mut(rows * c);
        let (logits, work) = work.split_at_mut(rows * if head.loss.retain { vocab } else { head.loss.vocab });
        let (numbers, scratch) = work.split_at_mut(5 * rows);
        let Machine { isa, precision, .. } = self.machine;
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
            let mut ctx = Ctx { pool: &self.pool, isa, precision, scratch };
            let pieces = (0..vocab).step_by(head.loss.vocab).map(|first| first..(first + head.loss.vocab).min(vocab));
            let place = |piece: &Range<usize>| {
                let start = if head.loss.retain { count * piece.start } else { 0 };
                start..start + count * piece.len()
            };
            for piece in pieces.clone() {
                self.unless_stopping()?;
                let logits = &mut logits[place(&piece)];
                nt(&mut ctx, matrix.part(piece.clone()), gathered, count, logits, head.start(&piece), None);
                cross_entropy::take_in(isa, &self.pool, logits, piece.start, labels, &mut state);
                if head.stream {
                    self.weights.release_rows(head.weight, piece);
                }
            }
            for (row, &label) in labels.iter().enumerate() {
                outcome.loss += f64::from(state.loss(row));
                outcome.hits += usize::from(state.hit(row, label));
            }
            outcome.targets += count;
            let Some(gx) = gx.as_deref_mut() else { continue };
            let gradients = &mut gradients[..count * c];
            for piece in pieces {
                self.unless_stopping()?;
                let (logits, part) = (&mut logits[place(&piece)], matrix.part(piece.clone()));
                if !head.loss.retain {
                    nt(&mut ctx, part, gathered, count, logits, head.start(&piece), None);
                }
                cross_entropy::gradient(isa, &self.pool, logits, piece.start, labels, &state, scale);
                self.unless_stopping()?;
                let start = if piece.start == 0 { Start::Zero } else { Start::Output };
                nn(&mut ctx, part, logits, count, gradients, start, None);
                if head.stream {
                    self.weights.release_rows(head.weight, piece);
                }
            }
            let labelled = (first_row..next).filter(|&row| batch.labels[row] != NO_LABEL);
            for (row, gradient) in labelled.zip(gradients.chunks_exact(c)) {
                gx[row * c..][..c].copy_from_slice(gradient);
            }
        }
        Ok(outcome)
    }
}
