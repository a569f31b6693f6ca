//! GaLore's step of one matrix: where it is due, another projection from a few looks at the gradient; the gradient's projection; and the step, which is projected back slab by slab.

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Precision, Start, Weight, nn, nt, tn};
use pocketune_kernels::perturb::{self, Direction, Draw};
use pocketune_kernels::update::{Galore, orthonormalise, turn};

use super::{Cpu, Desk, Lesson, Make, cut};
use crate::error::Result;
use crate::plan::Learning;

/// What a range finder works with.
struct Finder<'a> {
    /// The vectors it has.
    y: &'a mut [f32],
    /// Their products with `G Gᵀ`, or `Gᵀ G`.
    next: &'a mut [f32],
    /// What is between the two products.
    between: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl Cpu {
    /// Looks at the gradient once, and some more times where the projection is renewed.
    pub(super) fn learn_in_subspace(
        &self,
        lesson: Lesson,
        rule: Galore,
        desk: &mut Desk,
        make: &mut Make,
    ) -> Result<f64> {
        let Learning { rows, cols, strip, slab, .. } = lesson.how;
        let (isa, pool) = (self.machine.isa, &self.pool);
        let (tall, large, small) = (rows >= cols, rows.max(cols), rows.min(cols));
        let (kept, tried) = (Galore::kept(rule.rank, small), Galore::tried(rule.rank, small));
        let (room, figures) = (std::mem::take(&mut desk.state), std::mem::take(&mut desk.figures));
        let (projected, rest) = figures.split_at_mut(kept * large);
        let (y, rest) = rest.split_at_mut(tried * small);
        let (next, rest) = rest.split_at_mut(tried * small);
        let (between, rest) = rest.split_at_mut(tried * large);
        let (steps, scratch) = rest.split_at_mut(slab * cols);
        self.with_state(lesson.param, 0..kept * (small + 2 * large), room, |state| {
            let (projection, moments) = state.split_at_mut(kept * small);
            if rule.renews() {
                let finder = Finder { y, next, between, scratch: &mut *scratch };
                if !self.find_subspace(lesson, rule, desk, make, finder, projection) {
                    return Ok(f64::NAN);
                }
            }
            projected.fill(0.0);
            let (mut sum, mut finite) = (0.0, true);
            for strip in cut(0..rows, strip) {
                desk.look(&strip, cols, make);
                let grad = &desk.grad[..strip.len() * cols];
                finite &= self.take_in(grad, &mut sum);
                let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
                let part = kept * strip.start..kept * strip.end;
                if tall {
                    let by = Weight::f32(kept, cols, projection);
                    nt(&mut ctx, by, grad, strip.len(), &mut projected[part], Start::Zero, None);
                } else {
                    tn(&mut ctx, &projection[part], grad, strip.len(), kept, cols, projected, Start::Output);
                }
                self.leave(lesson, strip);
            }
            if !finite {
                return Ok(f64::NAN);
            }
            rule.moments(isa, pool, projected, moments.split_at_mut(kept * large));
            let (left, right) = if tall { (&*projected, &*projection) } else { (&*projection, &*projected) };
            for slab in cut(0..rows, slab) {
                let numbers = &mut desk.numbers[..slab.len() * cols];
                let steps = &mut steps[..numbers.len()];
                let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch: &mut *scratch };
                let left = &left[kept * slab.start..kept * slab.end];
                nn(&mut ctx, Weight::f32(kept, cols, right), left, slab.len(), steps, Start::Zero, None);
                self.weights.matrix(lesson.weight).read_rows(isa, pool, slab.clone(), numbers);
                rule.step(isa, pool, numbers, steps);
                self.store(lesson, &slab, numbers, desk.bytes)?;
                self.leave(lesson, slab);
            }
            Ok(sum)
        })?
    }

    /// Another projection onto the leading singular vectors of the gradient. Whether the gradient is finite; nothing has changed where not.
    fn find_subspace(
        &self,
        lesson: Lesson,
        rule: Galore,
        desk: &mut Desk,
        make: &mut Make,
        finder: Finder,
        projection: &mut [f32],
    ) -> bool {
        let Learning { rows, cols, strip, .. } = lesson.how;
        let (isa, pool, small) = (self.machine.isa, &self.pool, rows.min(cols));
        let (kept, tried) = (Galore::kept(rule.rank, small), Galore::tried(rule.rank, small));
        let Finder { y, next, between, scratch } = finder;
        let tall = rows >= cols;
        let (by, kept_by) = if tall { ((1, small), (1, small)) } else { ((tried, 1), (kept, 1)) };
        y.fill(0.0);
        let direction = Direction { draw: Draw::Normal(rule.numbers(lesson.param.0)), limit: f32::INFINITY };
        perturb::step(isa, pool, y, (small, 0), 0.0, &[(direction, -1.0)]);
        let mut ctx = Ctx { pool, isa, precision: Precision::F32, scratch };
        let part = |strip: &Range<usize>| tried * strip.start..tried * strip.end;
        for power in 0..Galore::POWERS {
            if power > 0 {
                y.copy_from_slice(next);
                orthonormalise(y, (small, tried), by);
            }
            next.fill(0.0);
            between.fill(0.0);
            for strip in cut(0..rows, strip) {
                desk.look(&strip, cols, make);
                let grad = &desk.grad[..strip.len() * cols];
                if power == 0 && !self.take_in(grad, &mut 0.0) {
                    self.leave(lesson, strip);
                    return false;
                }
                let (ctx, n) = (&mut ctx, strip.len());
                if tall {
                    let between = &mut between[..tried * n];
                    nt(ctx, Weight::f32(tried, cols, y), grad, n, between, Start::Zero, None);
                    tn(ctx, between, grad, n, tried, cols, next, Start::Output);
                } else {
                    tn(ctx, &y[part(&strip)], grad, n, tried, cols, between, Start::Output);
                }
                self.leave(lesson, strip);
            }
            // The other product needs all of the first where strips cut the side that it sums over.
            for strip in cut(0..if tall { 0 } else { rows }, strip) {
                desk.look(&strip, cols, make);
                let (grad, by) = (&desk.grad[..strip.len() * cols], Weight::f32(tried, cols, between));
                nt(&mut ctx, by, grad, strip.len(), &mut next[part(&strip)], Start::Zero, None);
                self.leave(lesson, strip);
            }
        }
        turn([y, next], (small, tried), by, projection, kept, kept_by);
        true
    }
}
