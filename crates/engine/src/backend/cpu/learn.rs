//! A model's own matrices: their gradients, strip by strip, and the rules that move them where they are stored. Rows are read from the mapping, moved in f32, rounded
//! (stochastically where they are stored in bf16) and written to the file. A rule that has to know all of a gradient before it moves a number looks at the
//! strips several times. What is not finite is never applied, and no part of what has such a part: where the sizes of what a gradient is made of don't exclude it, all strips are looked
//! through before the first is applied.

mod compressed;
mod subspace;
mod table;

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Precision, Start, Weight, nt, tn};
use pocketune_kernels::perturb::{self, Direction, Draw};
use pocketune_kernels::update::{AdaLomo, Apollo, Factors};
use pocketune_kernels::{BlockType, elementwise, round, update};

use super::state::failed;
use super::{Cpu, Noise, Rule};
use crate::error::Result;
use crate::graph::{ParamId, WeightId};
use crate::plan::Learning;

pub(super) use table::Behind;

/// A matrix, and how it is worked through.
#[derive(Clone, Copy)]
pub(super) struct Lesson {
    pub weight: WeightId,
    pub param: ParamId,
    pub how: Learning,
    pub noise: Noise,
    /// Whether pages are released behind.
    pub stream: bool,
    /// Whether the sizes of what it is made of say that the gradient is finite.
    pub finite: bool,
}

/// Numbers of this size are finite, also where their parts were rounded up on the way to a sum.
pub(super) const FINITE: f32 = f32::MAX / 2.0;

/// The size of the largest number; infinite where one is not finite. Sizes are in the order of their bits, and what is no number comes last.
pub(super) fn largest(x: &[f32]) -> f32 {
    let most = x.iter().fold(0, |most: u32, x| most.max(x.abs().to_bits()));
    f32::from_bits(most.min(f32::INFINITY.to_bits()))
}

/// Makes the gradient of some rows, with memory to work in.
type Make<'a> = dyn FnMut(Range<usize>, &mut [f32], &mut [f32]) + 'a;

/// What a lesson works with; see [`Learning`].
struct Desk<'a> {
    grad: &'a mut [f32],
    numbers: &'a mut [f32],
    bytes: &'a mut [u8],
    state: &'a mut [f32],
    figures: &'a mut [f32],
    room: &'a mut [f32],
    /// The rows whose gradient is there.
    there: Range<usize>,
}

impl<'a> Desk<'a> {
    fn new(how: &Learning, work: &'a mut [f32]) -> Self {
        let (grad, work) = work.split_at_mut(how.strip * how.cols);
        let (numbers, work) = work.split_at_mut(how.slab * how.cols);
        let (bytes, work) = work.split_at_mut(how.bytes.div_ceil(4));
        let (state, work) = work.split_at_mut(how.state);
        let (figures, room) = work.split_at_mut(how.figures);
        Self { grad, numbers, bytes: bytemuck::cast_slice_mut(bytes), state, figures, room, there: 0..0 }
    }

    /// Sees to it that the gradient of `strip` is there.
    fn look(&mut self, strip: &Range<usize>, cols: usize, make: &mut Make) {
        if self.there != *strip {
            make(strip.clone(), &mut self.grad[..strip.len() * cols], self.room);
            self.there = strip.clone();
        }
    }
}

/// Ranges of up to `len` that make up `all`.
fn cut(all: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    let end = all.end;
    all.step_by(len).map(move |first| first..(first + len).min(end))
}

impl Cpu {
    /// Makes and applies the gradient of a matrix. The sum of the squares of the gradient comes back where it is watched or not finite (in which case
    /// nothing was applied); zero otherwise.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn learn(&self, lesson: Lesson, rule: Option<Rule>, work: &mut [f32], make: &mut Make) -> Result<f64> {
        let mut desk = Desk::new(&lesson.how, work);
        let Learning { rows, cols, strip, .. } = lesson.how;
        if self.is_measuring() {
            for strip in cut(0..rows, strip) {
                desk.look(&strip, cols, make);
                self.measures(lesson.param, strip.start * cols, &desk.grad[..strip.len() * cols]);
                self.leave(lesson, strip);
            }
            return Ok(0.0);
        }
        let scale = self.gradient_scale();
        let make: &mut Make = &mut |strip, grad, room| {
            make(strip, grad, room);
            if scale != 1.0 {
                elementwise::scale(&self.pool, grad, scale);
            }
        };
        let rule = self.rule_in_turn(lesson.param, rule.expect("a program that updates runs with a rule"));
        match rule {
            Rule::AdaLomo(rule) => self.learn_factored(lesson, rule, &mut desk, make),
            Rule::Apollo(rule) => self.learn_projected(lesson, rule, &mut desk, make),
            Rule::Mlorc(rule) => self.learn_compressed(lesson, rule, &mut desk, make),
            Rule::Galore(rule) => self.learn_in_subspace(lesson, rule, &mut desk, make),
            rule => self.learn_at_once(lesson, rule, &mut desk, make),
        }
    }

    /// Keeps what [`Cpu::learn`] found.
    pub(super) fn note(&mut self, param: ParamId, sum: f64) {
        if let Some(watch) = &mut self.watch {
            watch[param.0] = sum;
        }
        if !sum.is_finite() {
            self.refused += 1;
        }
    }

    /// Rules that move every number by itself.
    fn learn_at_once(&self, lesson: Lesson, rule: Rule, desk: &mut Desk, make: &mut Make) -> Result<f64> {
        let Learning { rows, cols, strip, slab, .. } = lesson.how;
        let (isa, pool) = (self.machine.isa, &self.pool);
        let a_row = rule.states().floats(cols);
        let mut sum = 0.0;
        if strip < rows && !lesson.finite {
            for strip in cut(0..rows, strip) {
                desk.look(&strip, cols, make);
                let finite = self.take_in(&desk.grad[..strip.len() * cols], &mut sum);
                self.leave(lesson, strip);
                if !finite {
                    return Ok(f64::NAN);
                }
            }
            sum = 0.0;
        }
        for strip in cut(0..rows, strip) {
            desk.look(&strip, cols, make);
            let grad = &desk.grad[..strip.len() * cols];
            if self.take_in(grad, &mut sum) {
                for slab in cut(strip.clone(), slab) {
                    let numbers = &mut desk.numbers[..slab.len() * cols];
                    let grad = &grad[(slab.start - strip.start) * cols..][..numbers.len()];
                    self.weights.matrix(lesson.weight).read_rows(isa, pool, slab.clone(), numbers);
                    self.with_state(
                        lesson.param,
                        slab.start * a_row..slab.end * a_row,
                        desk.state,
                        |state| match rule {
                            Rule::Sgd(rule) => update::sgd(isa, pool, rule, numbers, grad),
                            Rule::AdamW(rule) => update::adamw_rows(isa, pool, rule, cols, numbers, grad, state),
                            Rule::AdamW8bit(rule) => {
                                update::adamw_8bit_rows(isa, pool, rule, cols, numbers, grad, state)
                            }
                            Rule::AdaLomo(_) | Rule::Apollo(_) | Rule::Mlorc(_) | Rule::Galore(_) => {
                                unreachable!("it looks at a matrix as a whole")
                            }
                        },
                    )?;
                    self.store(lesson, &slab, numbers, desk.bytes)?;
                }
            }
            self.leave(lesson, strip);
        }
        Ok(sum)
    }

    /// AdaLomo: squares of the gradient by row and column, the size of the step, and the step.
    fn learn_factored(&self, lesson: Lesson, rule: AdaLomo, desk: &mut Desk, make: &mut Make) -> Result<f64> {
        let Learning { rows, cols, strip, slab, .. } = lesson.how;
        let (isa, pool) = (self.machine.isa, &self.pool);
        let matrix = || self.weights.matrix(lesson.weight);
        let figures = std::mem::take(&mut desk.figures);
        let (by_row, rest) = figures.split_at_mut(rows);
        let (by_col, sums) = rest.split_at_mut(cols);
        by_col.fill(0.0);
        let (mut sum, mut squares, mut steps, mut finite) = (0.0, 0.0, 0.0, true);
        for strip in cut(0..rows, strip) {
            desk.look(&strip, cols, make);
            let grad = &desk.grad[..strip.len() * cols];
            finite &= self.take_in(grad, &mut sum);
            update::row_squares(isa, pool, grad, &mut by_row[strip.clone()]);
            update::add_column_squares(isa, pool, grad, by_col);
            for slab in cut(strip.clone(), slab) {
                let (numbers, sums) = (&mut desk.numbers[..slab.len() * cols], &mut sums[..slab.len()]);
                matrix().read_rows(isa, pool, slab, numbers);
                update::row_squares(isa, pool, numbers, sums);
                sums.iter().for_each(|&x| squares += f64::from(x));
            }
            self.leave(lesson, strip);
        }
        if !finite {
            return Ok(f64::NAN);
        }
        self.with_state(lesson.param, 0..rows + cols, desk.state, |state| {
            rule.factors(state.split_at_mut(rows), by_row, by_col)
        })?;
        let factors = |rows: Range<usize>| Factors { rows: &by_row[rows], cols: by_col };
        for strip in cut(0..rows, strip) {
            desk.look(&strip, cols, make);
            let sums = &mut sums[..strip.len()];
            AdaLomo::sizes(isa, pool, &desk.grad[..strip.len() * cols], &factors(strip.clone()), sums);
            sums.iter().for_each(|&x| steps += f64::from(x));
            self.leave(lesson, strip);
        }
        let length = rule.length(steps, squares, rows * cols);
        for strip in cut(0..rows, strip) {
            desk.look(&strip, cols, make);
            for slab in cut(strip.clone(), slab) {
                let numbers = &mut desk.numbers[..slab.len() * cols];
                let grad = &desk.grad[(slab.start - strip.start) * cols..][..numbers.len()];
                matrix().read_rows(isa, pool, slab.clone(), numbers);
                update::move_rows(isa, pool, numbers, grad, &factors(slab.clone()), length);
                self.store(lesson, &slab, numbers, desk.bytes)?;
            }
            self.leave(lesson, strip);
        }
        Ok(sum)
    }

    /// APOLLO: the gradient's projection and the squares of its channels, and the step.
    fn learn_projected(&self, lesson: Lesson, rule: Apollo, desk: &mut Desk, make: &mut Make) -> Result<f64> {
        let Learning { rows, cols, strip, slab, .. } = lesson.how;
        let (isa, pool, rank) = (self.machine.isa, &self.pool, rule.rank);
        let (tall, large, small) = (rows >= cols, rows.max(cols), rows.min(cols));
        let figures = std::mem::take(&mut desk.figures);
        let (by_row, rest) = figures.split_at_mut(rows);
        let (by_col, rest) = rest.split_at_mut(cols);
        // What is for the rows of a strip is not needed here.
        let (projection, rest) = rest[strip..].split_at_mut(rank * small);
        let (projected, scratch) = rest.split_at_mut(rank * large);
        projection.fill(0.0);
        let draw = Draw::Normal(rule.numbers(lesson.param.0));
        let direction = Direction { draw, limit: f32::INFINITY };
        perturb::step(isa, pool, projection, (small, 0), 0.0, &[(direction, -1.0 / (rank as f32).sqrt())]);
        projected.fill(0.0);
        by_row.fill(1.0);
        by_col.fill(if tall { 1.0 } else { 0.0 });
        let (mut sum, mut finite) = (0.0, true);
        for strip in cut(0..rows, strip) {
            desk.look(&strip, cols, make);
            let grad = &desk.grad[..strip.len() * cols];
            finite &= self.take_in(grad, &mut sum);
            let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
            if tall {
                let to = &mut projected[strip.start * rank..strip.end * rank];
                nt(&mut ctx, Weight::f32(rank, cols, projection), grad, strip.len(), to, Start::Zero, None);
                update::row_squares(isa, pool, grad, &mut by_row[strip.clone()]);
            } else {
                let from = &projection[strip.start * rank..strip.end * rank];
                tn(&mut ctx, from, grad, strip.len(), rank, cols, projected, Start::Output);
                update::add_column_squares(isa, pool, grad, by_col);
            }
            self.leave(lesson, strip);
        }
        if !finite {
            return Ok(f64::NAN);
        }
        let mut length = (1.0, 0.0);
        self.with_state(lesson.param, 0..2 * rank * large + 1, desk.state, |state| {
            let (moments, before) = state.split_at_mut(2 * rank * large);
            let (by, channels) = if tall { ((rank, 1), &mut *by_row) } else { ((1, large), &mut *by_col) };
            let size = rule.factors(projected, moments.split_at_mut(rank * large), by, channels);
            length = rule.length(size, &mut before[0]);
        })?;
        for strip in cut(0..rows, strip) {
            desk.look(&strip, cols, make);
            for slab in cut(strip.clone(), slab) {
                let numbers = &mut desk.numbers[..slab.len() * cols];
                let grad = &desk.grad[(slab.start - strip.start) * cols..][..numbers.len()];
                self.weights.matrix(lesson.weight).read_rows(isa, pool, slab.clone(), numbers);
                let factors = Factors { rows: &by_row[slab.clone()], cols: by_col };
                update::move_rows(isa, pool, numbers, grad, &factors, length);
                self.store(lesson, &slab, numbers, desk.bytes)?;
            }
            self.leave(lesson, strip);
        }
        Ok(sum)
    }

    /// Adds what is to be known of a strip of the gradient, the sum of its squares where it is watched or not finite, to `sum`. Whether it is finite.
    fn take_in(&self, grad: &[f32], sum: &mut f64) -> bool {
        let finite = elementwise::all_finite(grad);
        if self.watch.is_some() || !finite {
            *sum += elementwise::square_sum(grad);
        }
        finite
    }

    /// Hands part of the state of a matrix to `with`; what waits on disk passes through `room`.
    fn with_state<T>(
        &self,
        param: ParamId,
        part: Range<usize>,
        room: &mut [f32],
        with: impl FnOnce(&mut [f32]) -> T,
    ) -> Result<T> {
        let param = self.room_of(param);
        if let Some(span) = self.layout.states.get(param.0) {
            // SAFETY: states lie in the persistent part, apart from each other and from every buffer.
            return Ok(with(unsafe { self.arena.write(span.start + part.start..span.start + part.end) }));
        }
        let Some(at) = self.layout.paged.get(param.0).map(|at| self.states_at + at + part.start) else {
            return Ok(with(&mut []));
        };
        let room = &mut room[..part.len()];
        self.disk().read_now(room, at).map_err(failed)?;
        let result = with(room);
        self.disk().write_now(room, at).map_err(failed)?;
        Ok(result)
    }

    /// Rounds rows as they are stored and writes them.
    fn store(&self, lesson: Lesson, slab: &Range<usize>, numbers: &[f32], bytes: &mut [u8]) -> Result<()> {
        let Lesson { weight, param, how, noise, .. } = lesson;
        let a_row = how.bytes / how.slab;
        let first = slab.start * a_row;
        if self.weights.matrix(weight).ty == BlockType::F32 {
            return self.weights.write(weight, first, bytemuck::cast_slice(numbers));
        }
        let (bytes, place) = (&mut bytes[..slab.len() * a_row], (slab.start * how.cols) as u64);
        round::to_bf16(self.machine.isa, &self.pool, noise.rounding(param.0), place, numbers, bytes);
        self.weights.write(weight, first, bytes)
    }

    fn leave(&self, lesson: Lesson, rows: Range<usize>) {
        if lesson.stream {
            self.weights.release_rows(lesson.weight, rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use pocketune_kernels::Isa;
    use pocketune_kernels::update::Sgd;

    use super::*;
    use crate::backend::Weights;
    use crate::graph::{LoraSpec, Of};
    use crate::model::{Model, Source};
    use crate::plan::{Layout, Machine, Mode, States};

    #[test]
    fn nothing_of_a_matrix_moves_where_a_later_strip_of_its_gradient_is_not_finite() {
        let mut copy = tempfile::NamedTempFile::new().unwrap();
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/qwen2.gguf");
        std::io::copy(&mut std::fs::File::open(golden).unwrap(), &mut copy).unwrap();
        let model = Model::open(&Source::Path(copy.path().into())).unwrap();
        let graph = model.config.graph(Some(&LoraSpec { whole: true, ..LoraSpec::default() })).unwrap();
        let weights = Weights::bind(model.files, &model.config, &graph).unwrap().writable(copy.into_file());
        let (weight, machine) = (WeightId(1), Machine { threads: 1, isa: Isa::Scalar, precision: Precision::F32 });
        let (ty, layout) = (weights.matrix(weight).ty, Layout::new(&graph, States::None, false, 8, Mode::Evaluate, 0));
        let cpu = Cpu::new(machine, weights, &graph, layout, &[], &std::env::temp_dir()).unwrap();
        let (rows, cols) = (graph.weights[1].rows, graph.weights[1].cols);
        let param = ParamId(graph.params.iter().position(|param| param.of == Of::Matrix(weight)).unwrap());
        let stored = || {
            let mut bytes = vec![0; cpu.weights().stored_bytes(weight)];
            cpu.weights().read(weight, 0, &mut bytes).unwrap();
            bytes
        };
        let (strip, slab) = (rows / 2, 1);
        let bytes = slab * ty.row_bytes(cols).unwrap();
        let how =
            Learning { rows, cols, strip, slab, bytes, times: 1, state: 0, figures: 0, logit_rows: 0, scratch: 0 };
        let learn = |bad: bool| {
            let lesson = Lesson { weight, param, how, noise: Noise::default(), stream: false, finite: !bad };
            let mut make = |strip: Range<usize>, grad: &mut [f32], _: &mut [f32]| {
                grad.fill(if bad && strip.start > 0 { f32::INFINITY } else { 1.0 });
            };
            let rule = Rule::Sgd(Sgd { lr: 0.5, weight_decay: 0.0 });
            cpu.learn(lesson, Some(rule), &mut vec![0.0; how.floats()], &mut make).unwrap()
        };
        let before = stored();
        assert!(!learn(true).is_finite());
        assert!(stored() == before, "a part of it moved");
        assert_eq!(learn(false), 0.0);
        assert!(stored() != before);
    }
}
