//! One match over instructions, each a kernel call on slices of the arena.

use std::ops::Range;

use pocketune_kernels::attention::Segment;
use pocketune_kernels::matmul::{Ctx, Low, LowRank, Precision, Start, Weight, matvec};
use pocketune_kernels::matmul::{nn, nn_values, nt, nt_values, tn, tn_part, tn_values};
use pocketune_kernels::rope::Rotation;
use pocketune_kernels::{
    Values, ValuesMut, activation, attention, dora, dropout, elementwise, embed, gated, layer_norm, levels, norm, rope,
    shared_norm,
};

use super::classify::Gradients;
use super::head::{Head, HeadAdapter};
use super::learn::{self, Behind, Lesson};
use super::{Batch, Cpu, LOGITS_PIECE, Outcome, Rule};
use crate::error::{Error, Result};
use crate::graph::{Added, Norm, ParamId, RopeId, VectorId};
use crate::plan::{Buf, Embedded, Grad, HeadBehind, Instr, LoraAdd, LoraUp, Mode, Program, Span};

impl Cpu {
    /// One instruction, on the rows `window`.
    ///
    /// Every slice below comes from a buffer of this instruction or from the persistent layout. [`Program::check`] has verified
    /// that the buffers of an instruction do not overlap where one is written, which is what each `SAFETY` here relies on.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn step(
        &mut self,
        program: &Program,
        instr: &Instr,
        batch: Batch,
        window: Range<usize>,
        past: usize,
        rule: Option<Rule>,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let (isa, n, first_piece) = (self.machine.isa, window.len(), window.start == 0);
        let base = self.layout.len;
        let span = |buf: Buf| {
            let buffer = &program.buffers[buf.0];
            let start = base + buffer.offset;
            match buffer.cols {
                None => start..start + buffer.len,
                Some(_) if buffer.local => start..start + buffer.floats(n),
                // Pieces are of an even number of rows, and so begin at a float.
                Some(_) => start + buffer.floats(window.start)..start + buffer.floats(window.end),
            }
        };
        let arena = &self.arena;
        // SAFETY: see above.
        let r = |buf: Buf| unsafe { arena.read(span(buf)) };
        // SAFETY: see above.
        let w = |buf: Buf| unsafe { arena.write(span(buf)) };
        // Values of either type.
        let half = |buf: Buf| program.buffers[buf.0].half.then(|| n * program.buffers[buf.0].cols.unwrap_or(0));
        let v = |buf: Buf| match half(buf) {
            None => Values::F32(r(buf)),
            Some(len) => Values::Bf16(&bytemuck::cast_slice(r(buf))[..len]),
        };
        let v_mut = |buf: Buf| match half(buf) {
            None => ValuesMut::F32(w(buf)),
            Some(len) => ValuesMut::Bf16(&mut bytemuck::cast_slice_mut(w(buf))[..len]),
        };
        // SAFETY: vectors, matrices and tables are only written by updates, which read none of them but their own.
        let fixed = |span: Span| unsafe { arena.read(span.range()) };
        let vector = |id: VectorId| fixed(self.layout.vectors[id.0]);
        let matrix = |id: ParamId| fixed(self.layout.param(id));
        let factor = |id: ParamId| Weight::f32(self.ranks[id.0].0, self.ranks[id.0].1, matrix(id));
        let start = |add: bool| if add { Start::Output } else { Start::Zero };
        let pool = &self.pool;
        let ctx = |scratch: Buf| Ctx { pool, isa, precision: self.machine.precision, scratch: w(scratch) };
        // At the ends of a model, where pieces of rows are not multiples of a tile, adapters are multiplied in f32.
        let thin = |scratch| Ctx { pool, isa, precision: Precision::F32, scratch };
        // A gradient that is added to from here on.
        let begun = |grad: Grad| {
            let (grad, add) = self.gradient(grad, &w, true);
            if !add {
                grad.fill(0.0);
            }
            grad
        };
        let width = |buf: Buf| program.buffers[buf.0].cols.unwrap_or(1);
        let perturbs = program.mode == Mode::Perturb;
        let moves_model = perturbs && self.is_whole();
        let one_row = n == 1 && matches!(program.mode, Mode::Generate { .. });
        if let Some(weight) = instr.whole_weight().filter(|_| program.stream) {
            self.weights.enter(weight, 0..usize::MAX);
        }
        match *instr {
            Instr::Embed { weight, scale, added, lora, out, scratch } => {
                let table = self.weights.matrix(weight);
                // What a record's row is made of. Around each, pages would be mapped that nobody reads.
                let looked_up = |row: usize| {
                    let added = added.iter().flat_map(move |added| {
                        let at = added.offset + batch.positions[row] as usize;
                        [Some((added.positions, at)), added.types.map(|types| (types, 0))]
                    });
                    [Some((weight, batch.ids[row] as usize))].into_iter().chain(added).flatten()
                };
                let release =
                    |row: usize| looked_up(row).for_each(|(table, at)| self.weights.release_rows(table, at..at + 1));
                for (row, (&id, out)) in batch.ids.iter().zip(w(out).chunks_exact_mut(table.cols)).enumerate() {
                    if program.stream {
                        row.checked_sub(1).into_iter().for_each(release);
                        looked_up(row).for_each(|(table, at)| self.weights.enter(table, at..at + 1));
                    }
                    if let (true, Some(room)) = (moves_model, scratch) {
                        self.embed_moved(batch, row, (weight, scale), added, out, w(room));
                        continue;
                    }
                    table.read(isa, id as usize, 0..table.cols, out);
                    if scale != 1.0 {
                        out.iter_mut().for_each(|x| *x *= scale);
                    }
                    if let Some(Added { positions, offset, types }) = added {
                        let table = self.weights.matrix(positions);
                        embed::add_row(isa, table, offset + batch.positions[row] as usize, out);
                        if let Some(types) = types {
                            let table = self.weights.matrix(types);
                            embed::add_row(isa, table, 0, out);
                        }
                    }
                }
                if program.stream && n > 0 {
                    release(n - 1);
                }
                if let (Some(lora), Some(scratch)) = (lora, scratch) {
                    let (h, scratch) = w(scratch).split_at_mut(n * self.ranks[lora.a.0].0);
                    embed::gather(matrix(lora.a), self.ranks[lora.a.0].1, batch.ids, lora.scale, h);
                    nn(&mut thin(scratch), factor(lora.b), h, n, w(out), Start::Output, None);
                }
            }
            Instr::EmbedBackward { lora, g, grads, scratch } => {
                let ((rank, vocab), cols) = (self.ranks[lora.a.0], self.ranks[lora.b.0].1);
                let (h, scratch) = w(scratch).split_at_mut(n * rank);
                let (gh, scratch) = scratch.split_at_mut(n * rank);
                let [(ga, add_a), (gb, add_b)] = grads.map(|grad| self.gradient(grad, &w, first_piece));
                embed::gather(matrix(lora.a), vocab, batch.ids, lora.scale, h);
                let mut ctx = thin(scratch);
                tn(&mut ctx, h, r(g), n, rank, cols, gb, start(add_b));
                nt(&mut ctx, factor(lora.b), r(g), n, gh, Start::Zero, None);
                if !add_a {
                    ga.fill(0.0);
                }
                embed::scatter(gh, vocab, batch.ids, lora.scale, ga);
            }
            Instr::Norm { norm, x, out, moved: Some(moved) } => {
                self.norm_by_group(batch, &window, norm, r(x), w(out), w(moved));
            }
            Instr::Norm { norm: Norm { weight, bias: None, eps }, x, out, .. } => {
                norm::forward_values(isa, pool, r(x), vector(weight), eps, v_mut(out));
            }
            Instr::Norm { norm: Norm { weight, bias: Some(bias), eps }, x, out, .. } => {
                layer_norm::forward(isa, pool, r(x), vector(weight), vector(bias), eps, w(out));
            }
            Instr::NormBackward { norm: Norm { weight, bias, eps }, x, g, gx: (gx, add) } => {
                let backward = if bias.is_some() { layer_norm::backward } else { norm::backward };
                backward(isa, pool, r(x), vector(weight), eps, r(g), w(gx), add);
            }
            Instr::Normalise { norm: Norm { weight, bias, eps }, x, out, rstd } => {
                let (centred, width) = (bias.is_some(), vector(weight).len());
                shared_norm::normalise(isa, pool, centred, width, eps, r(x), w(out), w(rstd));
            }
            Instr::Affine { norm: Norm { weight, bias, .. }, n, out } => {
                shared_norm::affine(isa, pool, r(n), vector(weight), bias.map(vector), w(out));
            }
            Instr::SharedNormBackward { norm: Norm { weight, bias, .. }, n, rstd, g, gx: (gx, add) } => {
                let weight = vector(weight);
                shared_norm::backward(isa, pool, bias.is_some(), r(n), r(rstd), weight, r(g), w(gx), add);
            }
            Instr::LoraDown { a, scale, x, h, scratch } => {
                let h = w(h);
                if perturbs {
                    self.down_by_group(batch, &window, a, r(x), h, w(scratch));
                } else if one_row {
                    matvec(&mut ctx(scratch), factor(a), r(x), h, Start::Zero);
                } else {
                    nt_values(&mut ctx(scratch), factor(a), (v(x), n), ValuesMut::F32(h), Start::Zero, None, false);
                }
                elementwise::scale(pool, h, scale);
            }
            Instr::Dropout { share, stream, x, out } => {
                let first = window.start * width(x);
                dropout::forward(isa, pool, batch.noise.mask(stream, share), first, r(x), w(out));
            }
            Instr::DropoutBackward { share, stream, g, gx: (gx, add) } => {
                let first = window.start * width(g);
                dropout::backward(isa, pool, batch.noise.mask(stream, share), first, r(g), w(gx), add);
            }
            Instr::Lengths { module, .. } if self.known[module] => {}
            Instr::Lengths { module, weight, a, b, scale, scratch } => {
                // SAFETY: lengths are only written here, in a part of the arena of their own.
                let n = unsafe { arena.write(self.layout.lengths[module].range()) };
                let weight = self.weights.matrix(weight);
                dora::lengths(isa, pool, weight, matrix(a), matrix(b), scale, w(scratch), n);
                self.known[module] = true;
            }
            Instr::Magnitude { module, m, bias, z, out } => {
                let n = fixed(self.layout.lengths[module]);
                dora::forward(isa, pool, r(z), matrix(m), n, bias.map(vector), w(out));
            }
            Instr::MagnitudeBackward { module, m, z, g, gz: (gz, add), gm } => {
                let (grad, more) = self.gradient(gm, &w, first_piece);
                let lengths = (matrix(m), fixed(self.layout.lengths[module]));
                dora::backward(isa, pool, (r(z), r(g)), lengths, (w(gz), add), (grad, more));
            }
            Instr::LoraDownBackward { a, gh, gx, ga, scratch } => {
                let (rank, cols) = self.ranks[a.0];
                if let Some((gx, add)) = gx {
                    nn(&mut ctx(scratch), factor(a), r(gh), n, w(gx), start(add), None);
                }
                if let Some((x, ga)) = ga {
                    let (grad, add) = self.gradient(ga, &w, first_piece);
                    tn_values(&mut ctx(scratch), r(gh), v(x), n, rank, cols, grad, start(add));
                }
            }
            Instr::Linear { weight, bias, x, out, scratch, .. } if moves_model => {
                self.linear_by_group(batch, &window, (weight, bias), r(x), w(out), w(scratch));
            }
            Instr::Linear { weight, bias, lora, x, out, scratch, more } => {
                let first = bias.map_or(Start::Zero, |bias| Start::Bias(vector(bias)));
                let weight = self.weights.matrix(weight);
                if let (true, Some(LoraAdd { b, h, .. })) = (perturbs, lora) {
                    let out = w(out);
                    nt(&mut ctx(scratch), weight, r(x), n, out, first, None);
                    self.up_by_group(batch, &window, b, r(h), out, w(scratch));
                } else if one_row {
                    let out = w(out);
                    matvec(&mut ctx(scratch), weight, r(x), out, first);
                    if let Some(LoraAdd { b, h, down }) = lora {
                        if let Some((a, scale)) = down {
                            matvec(&mut ctx(scratch), factor(a), r(x), w(h), Start::Zero);
                            elementwise::scale(pool, w(h), scale);
                        }
                        nn(&mut ctx(scratch), factor(b), r(h), n, out, Start::Output, None);
                    }
                } else {
                    let low_rank = lora.map(|LoraAdd { b, h, down }| {
                        let low = match down {
                            Some((a, scale)) => Low::Made { by: matrix(a), scale, into: w(h) },
                            None => Low::Given(r(h)),
                        };
                        LowRank { low, factor: matrix(b), rank: self.ranks[b.0].0 }
                    });
                    nt_values(&mut ctx(scratch), weight, (v(x), n), v_mut(out), first, low_rank, more);
                }
            }
            Instr::LinearBackward { weight, g, gx, lora, scratch } => {
                let together = lora.and_then(|lora| Some((lora, lora.a?, lora.gh?))).filter(|_| gx.is_some());
                if let Some((gx, add)) = gx {
                    let low_rank = together.map(|(LoraUp { b, scale, .. }, a, gh)| {
                        let low = Low::Made { by: matrix(b), scale, into: w(gh) };
                        LowRank { low, factor: matrix(a), rank: self.ranks[a.0].0 }
                    });
                    let weight = self.weights.matrix(weight);
                    nn_values(&mut ctx(scratch), weight, (v(g), n), v_mut(gx), start(add), low_rank);
                }
                if let Some(LoraUp { b, scale, gh: Some(gh), .. }) = lora.filter(|_| together.is_none()) {
                    let gh = w(gh);
                    nt_values(&mut ctx(scratch), factor(b), (v(g), n), ValuesMut::F32(gh), Start::Zero, None, false);
                    elementwise::scale(pool, gh, scale);
                }
                if let Some(lora) = lora {
                    let (rank, cols) = self.ranks[lora.b.0];
                    let (grad, add) = self.gradient(lora.gb, &w, first_piece);
                    tn_values(&mut ctx(scratch), r(lora.h), v(g), n, rank, cols, grad, start(add));
                }
            }
            Instr::VeraDown { vera, x, h, scratch } => self.vera_down(vera, r(x), n, w(h), ctx(scratch)),
            Instr::VeraDownBackward { vera, gh, gx: (gx, add), scratch } => {
                self.vera_down_backward(vera, r(gh), n, (w(gx), add), ctx(scratch));
            }
            Instr::VeraUp { vera, h, y, scratch } => self.vera_up(vera, r(h), n, w(y), w(scratch)),
            Instr::VeraUpBackward { vera, h, g, gh, grads, scratch } => {
                let grads = grads.map(|grad| self.gradient(grad, &w, first_piece));
                self.vera_up_backward(vera, (r(h), r(g)), n, gh.map(w), grads, w(scratch));
            }
            Instr::Rope { table, d, pairs, x, inverse } => {
                let (RopeId(table), width) = (table, program.buffers[x.0].cols.unwrap_or(d));
                let rotation = Rotation { d, table: fixed(self.layout.ropes[table]), pairs, inverse };
                rope::rotate(isa, pool, v_mut(x), width, rotation, &batch.positions[window.clone()]);
            }
            Instr::Attention { heads, q, k, v: values, out, lse, scratch } => {
                let read = [q, k, values].map(v);
                attention::forward_values(&mut ctx(scratch), heads, batch.segments, read, (v_mut(out), w(lse)));
            }
            Instr::CachedAttention { block, heads, q, k, v, out, lse, scratch } => {
                let width = heads.kv * heads.d;
                // SAFETY: the caches lie in the persistent part, apart from each other and from every buffer.
                let [keys, values] = self.layout.caches[block].map(|span| unsafe { arena.write(span.range()) });
                keys[past * width..][..n * width].copy_from_slice(r(k));
                values[past * width..][..n * width].copy_from_slice(r(v));
                let segment = [Segment { q_start: 0, q_len: n, k_start: 0, k_len: past + n }];
                attention::forward(&mut ctx(scratch), heads, &segment, (r(q), keys, values), (w(out), w(lse)));
            }
            Instr::AttentionBackward { heads, read: [q, k, values, out, lse, go], write: [gq, gk, gv], scratch } => {
                let (read, given, to) = ([q, k, values].map(v), (v(out), r(lse), v(go)), (w(gq), w(gk), w(gv)));
                attention::backward_values(&mut ctx(scratch), heads, batch.segments, read, given, to);
            }
            Instr::Gated { act, gate, up, out } => gated::forward_values(isa, pool, act, v(gate), v(up), v_mut(out)),
            Instr::GatedBackward { act, steps, gate, up, g } => {
                gated::backward_values(isa, pool, act, steps, v_mut(gate), v_mut(up), v(g));
            }
            Instr::Activation { act, x, out: Some(out), levels: kept } => {
                activation::forward(isa, pool, act, r(x), w(out));
                if let Some((steps, kept)) = kept {
                    levels::pack(isa, pool, steps, width(x), r(x), w(kept));
                }
            }
            Instr::Activation { act, x, out: None, .. } => activation::in_place(isa, pool, act, w(x)),
            Instr::ActivationBackward { act, x, g } => activation::backward(isa, pool, act, w(x), r(g)),
            Instr::LevelsBackward { steps, levels: kept, g } => {
                levels::backward(isa, pool, steps, width(g), r(kept), w(g));
            }
            Instr::Add { from, to } => elementwise::add(isa, pool, w(to), r(from)),
            Instr::Copy { from, to } => elementwise::copy(pool, w(to), r(from)),
            Instr::CrossEntropy { weight, bias, lora, skip, rows, x, gx, lse, grads, work } => {
                let lora = lora.map(|lora| HeadAdapter { a: factor(lora.a), b: matrix(lora.b), scale: lora.scale });
                let grads = grads.map(|grads| grads.map(begun));
                let moved = moves_model.then_some(bias);
                let head = Head { weight, bias: bias.map(vector), lora, skip, rows, stream: program.stream, moved };
                *outcome = self.cross_entropy(head, r(x), gx.map(w), lse.map(w), grads, w(work), batch)?;
            }
            Instr::Classify { head, rows, x, gx, grads, work } => {
                let gradients = Gradients { x: gx.map(w), params: grads.map(|grads| grads.map(begun)) };
                *outcome = self.classify(head, (rows, perturbs), r(x), gradients, w(work), batch)?;
            }
            Instr::Logits { weight, bias, lora, x, out, scratch } => {
                let (matrix, bias, stream) = (self.weights.matrix(weight), bias.map(vector), program.stream);
                let x = &r(x)[(n - 1) * matrix.cols..];
                let piece = if stream { LOGITS_PIECE } else { matrix.rows };
                for first in (0..matrix.rows).step_by(piece) {
                    let rows = first..(first + piece).min(matrix.rows);
                    let start = bias.map_or(Start::Zero, |bias| Start::Bias(&bias[rows.clone()]));
                    if stream {
                        self.weights.read_ahead(weight, rows.end..rows.end + piece);
                    }
                    if stream {
                        self.weights.enter(weight, rows.clone());
                    }
                    matvec(&mut ctx(scratch), matrix.part(rows.clone()), x, &mut w(out)[rows.clone()], start);
                    if stream {
                        self.weights.release_rows(weight, rows);
                    }
                }
                if let Some(lora) = lora {
                    let (h, scratch) = w(scratch).split_at_mut(self.ranks[lora.a.0].0);
                    let mut ctx = thin(scratch);
                    nt(&mut ctx, factor(lora.a), x, 1, h, Start::Zero, None);
                    elementwise::scale(pool, h, lora.scale);
                    nn(&mut ctx, factor(lora.b), h, 1, w(out), Start::Output, None);
                }
            }
            Instr::Update { param, grad, .. } if self.measures(param, 0, r(grad)) => {}
            Instr::Update { param, grad, state } => {
                let (grad, state) = (w(grad), state.map(w));
                if self.gradient_scale() != 1.0 {
                    elementwise::scale(pool, grad, self.gradient_scale());
                }
                self.update(param, grad, state, rule.expect("a program that updates runs with a rule"))?;
            }
            Instr::NormGradient { centred, eps, x, g, grad } => {
                norm::weight_gradient(isa, centred, r(x), eps, r(g), w(grad));
            }
            Instr::BiasGradient { g, grad } => elementwise::column_sums(r(g), w(grad)),
            Instr::Learn { weight, param, x, g, how, work } => {
                let (x, g) = (r(x), r(g));
                let finite = n as f32 * learn::largest(x) * learn::largest(g) <= learn::FINITE;
                let lesson = Lesson { weight, param, how, noise: batch.noise, stream: program.stream, finite };
                let sum = self.learn(lesson, rule, w(work), &mut |strip, grad, room| {
                    let mut ctx = Ctx { pool, isa, precision: self.machine.precision, scratch: room };
                    tn_part(&mut ctx, (g, how.rows), strip, x, n, how.cols, grad, Start::Zero);
                })?;
                self.note(param, sum);
            }
            Instr::LearnTable { weight, param, embedded, head, how, work } => {
                let embedded = embedded.map(|of| Embedded { g: r(of.g), scale: of.scale, by: of.by });
                let mut behind = head.map(|HeadBehind { x, lse, bias }| Behind {
                    x: r(x),
                    lse: r(lse),
                    bias: bias.map(|(bias, grad)| (vector(bias), w(grad))),
                });
                let of_embedding = embedded.map_or(0.0, |of| learn::largest(of.g) * of.scale.abs());
                // Where sums of exponentials are finite, entries of the softmax are at most 1.
                let of_head = behind.as_ref().map_or(0.0, |of| learn::largest(of.x).max(learn::largest(of.lse)));
                let finite = n as f32 * (of_embedding + of_head) <= learn::FINITE;
                // What is not made, because the table's own gradient is not finite, is not applied either.
                if let Some((_, grad)) = behind.as_mut().and_then(|of| of.bias.as_mut()) {
                    grad.fill(f32::NAN);
                }
                let lesson = Lesson { weight, param, how, noise: batch.noise, stream: program.stream, finite };
                let sum = self.learn(lesson, rule, w(work), &mut |strip, grad, room| {
                    self.table_gradient(weight, how, strip, embedded, behind.as_mut(), batch, grad, room);
                })?;
                self.note(param, sum);
            }
            // SAFETY: the buffer lives, untouched, until the matching `Spilled` or `Fetched`.
            Instr::Spill { from, at } => self.tickets[from.0] = unsafe { self.disk().write(r(from), at) },
            // SAFETY: as above.
            Instr::Fetch { to, at } => self.tickets[to.0] = unsafe { self.disk().read(w(to), at) },
            Instr::Spilled { from: buf } | Instr::Fetched { to: buf } => {
                self.disk().wait(self.tickets[buf.0]).map_err(|error| Error::System(error.to_string()))?;
            }
        }
        if let Some(weight) = instr.weight().filter(|_| program.stream) {
            self.weights.release(weight);
        }
        Ok(())
    }

    /// The slice that a matrix's gradient goes to, and whether it adds to what is there (an earlier piece's share).
    fn gradient<'a>(
        &self,
        grad: Grad,
        write: &impl Fn(Buf) -> &'a mut [f32],
        first_piece: bool,
    ) -> (&'a mut [f32], bool) {
        match grad {
            Grad::Once(buf) => (write(buf), !first_piece),
            // SAFETY: gradient sums lie in the persistent part, apart from everything this instruction reads.
            Grad::Sum(param) => (unsafe { self.arena.write(self.layout.grads[param.0].range()) }, true),
        }
    }
}
