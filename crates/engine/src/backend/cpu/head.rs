//! Head and loss, with the head's adapter where it has one: the one instruction that is a loop of its own, over pieces of labelled rows and
//! strips of the vocabulary. A strip of the head's weight serves logits and gradient before the next one is read, as attention goes over keys
//! and values; only an adapter of the head, whose gradient needs each row's whole sum, has a second look at the logits.

use std::ops::Range;

use pocketune_kernels::cross_entropy::{self, STRIP, State};
use pocketune_kernels::matmul::{Ctx, Precision, Shape, Start, Weight, nn, nt, nt_held, nt_values, tn};
use pocketune_kernels::{Values, ValuesMut, elementwise, embed};

use super::faint::Faint;
use super::{Batch, Cpu, NO_LABEL, Outcome};
use crate::error::Result;
use crate::graph::{VectorId, WeightId};
use crate::plan::{Machine, strips as moved_strips};

/// The head of the model and how its loss is worked through.
#[derive(Clone, Copy)]
pub(super) struct Head<'a> {
    pub weight: WeightId,
    pub bias: Option<&'a [f32]>,
    pub lora: Option<HeadAdapter<'a>>,
    /// Whether strips that hardly matter to a row are left out of its gradient.
    pub skip: bool,
    /// Labelled rows at a time.
    pub rows: usize,
    pub stream: bool,
    /// Where the model itself is moved: its bias as well, where it has one.
    pub moved: Option<Option<VectorId>>,
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

/// What the adapter works with: strips of the second factor and of its gradient, and the low-rank values of a piece of rows and their
/// gradients. All in f32, where a sum in pieces has the bits of the whole.
struct Work<'a> {
    piece: &'a mut [f32],
    grad: &'a mut [f32],
    h: &'a mut [f32],
    gh: &'a mut [f32],
}

impl<'a> Work<'a> {
    /// Cut from the front of `work`, and the rest.
    fn cut(work: &'a mut [f32], rank: usize, rows: usize, strip: usize) -> (Self, &'a mut [f32]) {
        let (piece, work) = work.split_at_mut(rank * strip);
        let (grad, work) = work.split_at_mut(rank * strip);
        let (h, work) = work.split_at_mut(rank * rows);
        let (gh, work) = work.split_at_mut(rank * rows);
        (Self { piece, grad, h, gh }, work)
    }
}

/// The columns `strip` of a matrix with `rank` rows, one row after another.
fn columns(matrix: &[f32], rank: usize, strip: &Range<usize>, to: &mut [f32]) {
    for (row, to) in matrix.chunks_exact(matrix.len() / rank).zip(to.chunks_exact_mut(strip.len())) {
        to.copy_from_slice(&row[strip.clone()]);
    }
}

/// The way back.
fn put_columns(from: &[f32], rank: usize, strip: &Range<usize>, matrix: &mut [f32]) {
    let width = matrix.len() / rank;
    for (row, from) in matrix.chunks_exact_mut(width).zip(from.chunks_exact(strip.len())) {
        row[strip.clone()].copy_from_slice(from);
    }
}

/// Labelled rows that are worked on together.
struct Piece<'a> {
    /// The rows of `x`, one after another.
    x: &'a [f32],
    labels: &'a [u32],
}

impl Piece<'_> {
    fn len(&self) -> usize {
        self.labels.len()
    }
}

impl Cpu {
    /// Head and loss: gather, logits, loss, and the gradient of `x` scattered back. Weights are released behind. Nothing has been
    /// applied yet when it runs, and it takes long, so it looks whether to stop at every strip.
    ///
    /// # Errors
    /// When it was asked to stop.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn cross_entropy(
        &self,
        head: Head,
        x: &[f32],
        mut gx: Option<&mut [f32]>,
        mut lse: Option<&mut [f32]>,
        mut grads: Option<[&mut [f32]; 2]>,
        work: &mut [f32],
        batch: Batch,
    ) -> Result<Outcome> {
        let matrix = self.weights.matrix(head.weight);
        let (rows, c, vocab) = (head.rows, matrix.cols, matrix.rows);
        let longest = STRIP.min(vocab);
        let (gathered, work) = work.split_at_mut(rows * c);
        let (sums, work) = work.split_at_mut(rows * c);
        let (logits, work) = work.split_at_mut(rows * longest);
        let (numbers, work) = work.split_at_mut(6 * rows);
        let (mut faint, work) = Faint::cut(work, head.skip, rows, c);
        let rank = head.lora.map_or(0, |lora| lora.a.rows);
        let (mut low, work) = Work::cut(work, rank, rows, longest);
        let room = if head.moved.is_some() { moved_strips(longest * c) + moved_strips(longest) } else { 0 };
        let (room, scratch) = work.split_at_mut(room);
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
            let piece = Piece { x: &gathered[..count * c], labels: &labels[..count] };
            let labelled = (first_row..next).filter(|&row| batch.labels[row] != NO_LABEL);
            let mut parts = state.chunks_exact_mut(rows).map(|part| &mut part[..count]);
            let mut part = || parts.next().expect("five numbers a row beside the label");
            let mut state = State { top: part(), total: part(), shift: part(), label: part(), best: part() };
            state.clear();
            let sums = &mut sums[..count * c];
            if let Some(lora) = head.lora {
                let h = &mut low.h[..count * rank];
                let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
                nt(&mut thin, lora.a, piece.x, count, h, Start::Zero, None);
                elementwise::scale(pool, h, lora.scale);
            }
            let chosen = |strip: &Range<usize>| batch.choices.iter().any(|&choice| strip.contains(&(choice as usize)));
            // Behind what all strips' logits go on with; an adapter's products, and moved weights, leave nothing there.
            let shape = Shape { ty: matrix.ty, rows: longest, cols: c, n: count, rank: 0 };
            let alone = head.lora.is_none() && head.moved.is_none();
            let held = if alone { nt_held(shape, isa, precision) } else { 0 };
            let mut first = true;
            for strip in strips(vocab).filter(|strip| batch.choices.is_empty() || chosen(strip)) {
                self.unless_stopping()?;
                if head.stream {
                    self.weights.enter(head.weight, strip.clone());
                }
                if head.stream && strip.end < vocab {
                    self.weights.read_ahead(head.weight, strip.end..strip.end + STRIP);
                }
                let logits = &mut logits[..count * strip.len()];
                match head.moved {
                    None => self.logits_of(head, &piece, &strip, &mut low, logits, scratch, !first && alone),
                    Some(bias) => {
                        let groups = labelled.clone().map(|row| batch.group_of(row));
                        self.moved_logits((head.weight, bias), &piece, groups, &strip, logits, (room, scratch));
                    }
                }
                if !batch.choices.is_empty() {
                    cross_entropy::only(pool, logits, count, strip.start, batch.choices);
                }
                cross_entropy::take_in(isa, pool, logits, strip.start, piece.labels, &mut state);
                if let Some(gx) = gx.as_deref_mut() {
                    self.unless_stopping()?;
                    let start = if first { Start::Zero } else { Start::Output };
                    if !first {
                        cross_entropy::rescale(pool, sums, &state);
                    }
                    let mut ctx = Ctx { pool, isa, precision, scratch: &mut scratch[held..] };
                    let part = matrix.part(strip.clone());
                    match faint.as_mut().filter(|_| !first) {
                        Some(faint) => faint.add(&mut ctx, part, logits, sums, &state),
                        None => nn(&mut ctx, part, logits, count, sums, start, None),
                    }
                    // The label's own row of the weight is at hand now.
                    for (row, &label) in labelled.clone().zip(piece.labels) {
                        if strip.contains(&(label as usize)) {
                            let gx = &mut gx[row * c..][..c];
                            embed::add_row(isa, matrix, label as usize, gx);
                            gx.iter_mut().for_each(|x| *x *= -scale);
                        }
                    }
                }
                first = false;
                if head.stream {
                    self.weights.release_rows(head.weight, strip);
                }
            }
            for (row, (place, &label)) in labelled.clone().zip(piece.labels).enumerate() {
                let found =
                    Outcome { loss: f64::from(state.loss(row)), hits: usize::from(state.hit(row, label)), targets: 1 };
                outcome = outcome.plus(found);
                let sum = &self.sums[batch.group_of(place)];
                sum.set(sum.get().plus(found));
                if let Some(lse) = lse.as_deref_mut() {
                    lse[place] = state.lse(row);
                }
            }
            for (sums, total) in sums.chunks_exact_mut(c).zip(&*state.total).filter(|_| gx.is_some()) {
                let share = scale / total;
                sums.iter_mut().for_each(|x| *x *= share);
            }
            if let (Some(lora), true) = (head.lora, gx.is_some() || grads.is_some()) {
                let grads = grads.as_mut().map(|[ga, gb]| [&mut **ga, &mut **gb]);
                let sums = gx.is_some().then_some(&mut *sums);
                self.head_adapter(head, lora, &piece, &state, scale, grads, sums, &mut low, logits, scratch)?;
            }
            let Some(gx) = gx.as_deref_mut() else { continue };
            for (row, sums) in labelled.zip(sums.chunks_exact(c)) {
                gx[row * c..][..c].iter_mut().zip(sums).for_each(|(gx, sum)| *gx += sum);
            }
        }
        Ok(outcome)
    }

    /// The logits of a strip, perhaps `again` for the same rows, with the scratch memory that holds them.
    #[allow(clippy::too_many_arguments)]
    fn logits_of(
        &self,
        head: Head,
        piece: &Piece,
        strip: &Range<usize>,
        low: &mut Work,
        logits: &mut [f32],
        scratch: &mut [f32],
        again: bool,
    ) {
        let (Machine { isa, precision, .. }, pool) = (self.machine, &self.pool);
        let part = self.weights.matrix(head.weight).part(strip.clone());
        let start = head.bias.map_or(Start::Zero, |bias| Start::Bias(&bias[strip.clone()]));
        let mut ctx = Ctx { pool, isa, precision, scratch: &mut *scratch };
        let (x, logits_out) = ((Values::F32(piece.x), piece.len()), ValuesMut::F32(&mut *logits));
        nt_values(&mut ctx, part, x, logits_out, start, None, again);
        if let Some(lora) = head.lora {
            let rank = lora.a.rows;
            let b = &mut low.piece[..rank * strip.len()];
            columns(lora.b, rank, strip, b);
            let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch };
            let factor = Weight::f32(rank, strip.len(), b);
            nn(&mut thin, factor, &low.h[..piece.len() * rank], piece.len(), logits, Start::Output, None);
        }
    }

    /// The logits of a strip as each row's group sees it; rows of a group lie together.
    fn moved_logits(
        &self,
        (weight, bias): (WeightId, Option<VectorId>),
        piece: &Piece,
        groups: impl Iterator<Item = usize>,
        strip: &Range<usize>,
        logits: &mut [f32],
        (room, scratch): (&mut [f32], &mut [f32]),
    ) {
        let (Machine { isa, precision, .. }, pool) = (self.machine, &self.pool);
        let cols = self.weights.matrix(weight).cols;
        let (room, bias_room) = room.split_at_mut(moved_strips(strip.len() * cols));
        let mut matrix = self.moved_rows(weight, strip.clone(), room);
        let mut bias = bias.map(|bias| self.moved_part(bias, strip.clone(), bias_room));
        let mut groups = groups.peekable();
        let mut first = 0;
        while let Some(group) = groups.next() {
            let mut n = 1;
            while groups.next_if_eq(&group).is_some() {
                n += 1;
            }
            let start = bias.as_mut().map_or(Start::Zero, |bias| Start::Bias(bias.of(self, group)));
            let seen = Weight::f32(strip.len(), cols, matrix.of(self, group));
            let (x, to) = (&piece.x[first * cols..][..n * cols], &mut logits[first * strip.len()..][..n * strip.len()]);
            nt(&mut Ctx { pool, isa, precision, scratch: &mut *scratch }, seen, x, n, to, start, None);
            first += n;
        }
    }

    /// What the head's adapter learns, and what it adds to the gradient of `x`: with logits computed once more, as the sums are known.
    #[allow(clippy::too_many_arguments)]
    fn head_adapter(
        &self,
        head: Head,
        lora: HeadAdapter,
        piece: &Piece,
        state: &State,
        scale: f32,
        mut grads: Option<[&mut [f32]; 2]>,
        sums: Option<&mut [f32]>,
        low: &mut Work,
        logits: &mut [f32],
        scratch: &mut [f32],
    ) -> Result<()> {
        let (isa, pool, count) = (self.machine.isa, &self.pool, piece.len());
        let (rank, c) = (lora.a.rows, lora.a.cols);
        for strip in strips(self.weights.matrix(head.weight).rows) {
            self.unless_stopping()?;
            if head.stream {
                self.weights.enter(head.weight, strip.clone());
            }
            let logits = &mut logits[..count * strip.len()];
            self.logits_of(head, piece, &strip, low, logits, scratch, false);
            cross_entropy::gradient(isa, pool, logits, strip.start, piece.labels, state, scale);
            self.unless_stopping()?;
            let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
            let start = if strip.start == 0 { Start::Zero } else { Start::Output };
            let factor = Weight::f32(rank, strip.len(), &low.piece[..rank * strip.len()]);
            nt(&mut thin, factor, logits, count, &mut low.gh[..count * rank], start, None);
            if let Some([_, gb]) = &mut grads {
                let grad = &mut low.grad[..rank * strip.len()];
                columns(gb, rank, &strip, grad);
                let h = &low.h[..count * rank];
                tn(&mut thin, h, logits, count, rank, strip.len(), grad, Start::Output);
                put_columns(grad, rank, &strip, gb);
            }
            if head.stream {
                self.weights.release_rows(head.weight, strip);
            }
        }
        let gh = &mut low.gh[..count * rank];
        elementwise::scale(pool, gh, lora.scale);
        let mut thin = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
        if let Some([ga, _]) = &mut grads {
            tn(&mut thin, gh, piece.x, count, rank, c, ga, Start::Output);
        }
        if let Some(sums) = sums {
            nn(&mut thin, lora.a, gh, count, sums, Start::Output, None);
        }
        Ok(())
    }
}

fn strips(vocab: usize) -> impl Iterator<Item = Range<usize>> {
    (0..vocab).step_by(STRIP).map(move |first| first..(first + STRIP).min(vocab))
}
