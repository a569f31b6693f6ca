//! Gradients of tables: what those who looked rows up send back, and what the head does, whose logits are made again, strip by strip of the vocabulary.

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Start, nt, tn};
use pocketune_kernels::{cross_entropy, elementwise};

use super::cut;
use crate::backend::cpu::{Batch, Cpu};
use crate::graph::WeightId;
use crate::plan::{By, Embedded, Learning};

/// What the gradient of the head is made of: its input, the log-sum-exp of each row, and its bias with the place of that one's gradient.
pub(in crate::backend::cpu) struct Behind<'a> {
    pub x: &'a [f32],
    pub lse: &'a [f32],
    pub bias: Option<(&'a [f32], &'a mut [f32])>,
}

impl Cpu {
    /// The gradient of rows `strip` of a table: what those who looked them up send back where it is an embedding, and `(softmax - onehot)ᵀ x` where it is the head,
    /// whose logits are made again. With it that of the head's bias, as far as these rows go.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::backend::cpu) fn table_gradient(
        &self,
        weight: WeightId,
        how: Learning,
        strip: Range<usize>,
        embedded: Option<Embedded<&[f32]>>,
        head: Option<&mut Behind>,
        batch: Batch,
        grad: &mut [f32],
        room: &mut [f32],
    ) {
        let cols = how.cols;
        grad.fill(0.0);
        if let Some(head) = head {
            self.head_gradient(weight, how, &strip, head, batch, grad, room);
        }
        let Some(Embedded { g, scale, by }) = embedded else { return };
        for (at, g) in g.chunks_exact(cols).enumerate().take(batch.ids.len()) {
            let row = match by {
                By::Token => batch.ids[at] as usize,
                By::Position(offset) => offset + batch.positions[at] as usize,
                By::Nothing => 0,
            };
            if let Some(row) = row.checked_sub(strip.start).filter(|&row| row < strip.len()) {
                grad[row * cols..][..cols].iter_mut().zip(g).for_each(|(grad, g)| *grad = g.mul_add(scale, *grad));
            }
        }
    }

    /// Adds what the head sends back. Of tokens that are not chosen among, the softmax is zero.
    #[allow(clippy::too_many_arguments)]
    fn head_gradient(
        &self,
        weight: WeightId,
        how: Learning,
        strip: &Range<usize>,
        head: &mut Behind,
        batch: Batch,
        grad: &mut [f32],
        room: &mut [f32],
    ) {
        let (isa, precision, pool, cols) = (self.machine.isa, self.machine.precision, &self.pool, how.cols);
        let (bias, mut bias_grad) = match &mut head.bias {
            Some((bias, grad)) => (Some(&bias[strip.clone()]), Some(&mut grad[strip.clone()])),
            None => (None, None),
        };
        if let Some(grad) = &mut bias_grad {
            grad.fill(0.0);
        }
        if !(batch.choices.is_empty() || batch.choices.iter().any(|&choice| strip.contains(&(choice as usize)))) {
            return;
        }
        let part = self.weights.matrix(weight).part(strip.clone());
        let (logits, scratch) = room.split_at_mut(how.logit_rows * how.strip);
        let scale = 1.0 / batch.targets.max(1) as f32;
        for rows in cut(0..batch.labels.len(), how.logit_rows) {
            let (n, x) = (rows.len(), &head.x[rows.start * cols..rows.end * cols]);
            let logits = &mut logits[..n * strip.len()];
            let mut ctx = Ctx { pool, isa, precision, scratch: &mut *scratch };
            nt(&mut ctx, part, x, n, logits, bias.map_or(Start::Zero, Start::Bias), None);
            if !batch.choices.is_empty() {
                cross_entropy::only(pool, logits, n, strip.start, batch.choices);
            }
            let (labels, lse) = (&batch.labels[rows.clone()], &head.lse[rows]);
            cross_entropy::gradient_of(isa, pool, logits, strip.start, labels, lse, scale);
            tn(&mut ctx, logits, x, n, strip.len(), cols, grad, Start::Output);
            if let Some(grad) = &mut bias_grad {
                elementwise::add_column_sums(logits, grad);
            }
        }
    }
}
