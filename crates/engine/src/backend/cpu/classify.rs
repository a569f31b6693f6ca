//! A head of classes that is trained beside adapters, with the loss: one instruction over pieces of labelled rows, of which every record has one. All in f32, where a sum in
//! pieces has the bits of the whole.

use pocketune_kernels::activation::{self, Act};
use pocketune_kernels::cross_entropy;
use pocketune_kernels::elementwise::add_column_sums;
use pocketune_kernels::matmul::{Ctx, Precision, Start, Weight, nn, nt, tn};

use super::{Batch, Cpu, NO_LABEL, Outcome};
use crate::error::Result;
use crate::graph::{Classifier, Dense};

/// Where gradients go: that of the input, and those of the head's tensors, which are added to what is there.
pub(super) struct Gradients<'a> {
    pub x: Option<&'a mut [f32]>,
    pub params: Option<[&'a mut [f32]; 4]>,
}

impl Cpu {
    /// Finds the loss of `x`'s labelled rows, `rows` at a time, each as its group sees the head where `moved`, and the gradients that are asked for.
    ///
    /// # Errors
    /// When it was asked to stop.
    pub(super) fn classify(
        &self,
        head: Classifier,
        (rows, moved): (usize, bool),
        x: &[f32],
        mut gradients: Gradients,
        work: &mut [f32],
        batch: Batch,
    ) -> Result<Outcome> {
        let ((_, c), (classes, _)) = (self.ranks[head.dense.weight.0], self.ranks[head.out.weight.0]);
        let (gathered, work) = work.split_at_mut(rows * c);
        let (inside, work) = work.split_at_mut(rows * c);
        let (behind, work) = work.split_at_mut(rows * c);
        let (logits, work) = work.split_at_mut(rows * classes);
        let room = if moved { self.room(head.dense).max(self.room(head.out)) } else { 0 };
        let (room, scratch) = work.split_at_mut(room);
        let scale = 1.0 / batch.targets.max(1) as f32;
        let mut outcome = Outcome::default();
        if let Some(gx) = gradients.x.as_deref_mut() {
            gx.fill(0.0);
        }
        let labelled = |from: usize| (from..batch.labels.len()).filter(|&row| batch.labels[row] != NO_LABEL);
        let mut next = 0;
        loop {
            self.unless_stopping()?;
            // A piece is of one group, which sees a head of its own.
            let Some(first) = labelled(next).next() else { break };
            let group = batch.group_of(first);
            let same = |&row: &usize| batch.group_of(row) == group;
            let mut count = 0;
            for row in labelled(first).take_while(same).take(rows) {
                gathered[count * c..][..c].copy_from_slice(&x[row * c..][..c]);
                (count, next) = (count + 1, row + 1);
            }
            let places = labelled(first).take(count);
            let (x, inside, logits) =
                (&gathered[..count * c], &mut inside[..count * c], &mut logits[..count * classes]);
            let seen = moved.then_some(group);
            self.dense(head.dense, seen, x, count, inside, (&mut *room, &mut *scratch));
            let (isa, pool) = (self.machine.isa, &self.pool);
            activation::in_place(isa, pool, Act::Tanh, inside);
            self.dense(head.out, seen, inside, count, logits, (&mut *room, &mut *scratch));
            for (row, logits) in places.clone().zip(logits.chunks_exact_mut(classes)) {
                let (loss, hit) = cross_entropy::few(logits, batch.labels[row] as usize, scale);
                let found = Outcome { loss, hits: usize::from(hit), targets: 1 };
                outcome = outcome.plus(found);
                let sum = &self.sums[group];
                sum.set(sum.get().plus(found));
            }
            if gradients.x.is_none() && gradients.params.is_none() {
                continue;
            }
            // The logits have given way to their gradients.
            let behind = &mut behind[..count * c];
            let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
            nn(&mut ctx, self.matrix_of(head.out), logits, count, behind, Start::Zero, None);
            behind.iter_mut().zip(&*inside).for_each(|(g, t)| *g *= t.mul_add(-t, 1.0));
            if let Some([dense, dense_bias, out, out_bias]) = &mut gradients.params {
                tn(&mut ctx, logits, inside, count, classes, c, out, Start::Output);
                add_column_sums(logits, out_bias);
                tn(&mut ctx, behind, x, count, c, c, dense, Start::Output);
                add_column_sums(behind, dense_bias);
            }
            if let Some(gx) = gradients.x.as_deref_mut() {
                // What was inside is no longer needed.
                nn(&mut ctx, self.matrix_of(head.dense), behind, count, inside, Start::Zero, None);
                for (row, g) in places.zip(inside.chunks_exact(c)) {
                    gx[row * c..][..c].copy_from_slice(g);
                }
            }
        }
        Ok(outcome)
    }

    /// Floats of a linear's weight and bias.
    fn room(&self, linear: Dense) -> usize {
        [linear.weight, linear.bias].iter().map(|id| self.param(*id).len()).sum()
    }

    fn matrix_of(&self, linear: Dense) -> Weight<'_> {
        let (rows, cols) = self.ranks[linear.weight.0];
        Weight::f32(rows, cols, self.param(linear.weight))
    }

    /// `y = x Wᵀ + b`, as a group sees them where one is named.
    fn dense(
        &self,
        linear: Dense,
        group: Option<usize>,
        x: &[f32],
        count: usize,
        y: &mut [f32],
        (room, scratch): (&mut [f32], &mut [f32]),
    ) {
        let (weight, bias) = (self.param(linear.weight), self.param(linear.bias));
        let (rows, cols) = self.ranks[linear.weight.0];
        let mut ctx = Ctx { pool: &self.pool, isa: self.machine.isa, precision: Precision::F32, scratch };
        let (weight, bias) = match group {
            None => (weight, bias),
            Some(group) => {
                let (room, bias_room) = room[..weight.len() + bias.len()].split_at_mut(weight.len());
                (self.seen(linear.weight, group, weight, room), self.seen(linear.bias, group, bias, bias_room))
            }
        };
        nt(&mut ctx, Weight::f32(rows, cols, weight), x, count, y, Start::Bias(bias), None);
    }
}
