//! MLorc's step of one matrix: the products of its moments with a random matrix, then the step and what is kept of the moments along a basis of these products.

use pocketune_kernels::perturb::{self, Direction, Draw};
use pocketune_kernels::update::{BOTH, Kept, Mlorc, orthonormalise};

use super::{Cpu, Desk, Lesson, Make, cut};
use crate::error::Result;
use crate::plan::Learning;

impl Cpu {
    /// Looks at the gradient twice.
    pub(super) fn learn_compressed(
        &self,
        lesson: Lesson,
        rule: Mlorc,
        desk: &mut Desk,
        make: &mut Make,
    ) -> Result<f64> {
        let Learning { rows, cols, strip, slab, .. } = lesson.how;
        let (isa, pool) = (self.machine.isa, &self.pool);
        let (room, figures) = (std::mem::take(&mut desk.state), std::mem::take(&mut desk.figures));
        let (basis, rest) = figures.split_at_mut(BOTH * rows);
        let (next, rest) = rest.split_at_mut(BOTH * cols);
        let (omega, sums) = rest.split_at_mut(Mlorc::rank() * cols);
        omega.fill(0.0);
        let direction = Direction { draw: Draw::Normal(rule.numbers(lesson.param.0)), limit: f32::INFINITY };
        perturb::step(isa, pool, omega, (cols, 0), 0.0, &[(direction, -1.0)]);
        self.with_state(lesson.param, 0..BOTH * (rows + cols), room, |state| {
            let (left, right) = state.split_at_mut(BOTH * rows);
            let raised = Mlorc::raised(isa, pool, left, right, &mut sums[..2 * rows]);
            let kept = |rows: &std::ops::Range<usize>| {
                let left = &left[BOTH * rows.start..BOTH * rows.end];
                Kept { left, right, raised }
            };
            let (mut sum, mut finite) = (0.0, true);
            for strip in cut(0..rows, strip) {
                desk.look(&strip, cols, make);
                let grad = &desk.grad[..strip.len() * cols];
                finite &= self.take_in(grad, &mut sum);
                let to = &mut basis[BOTH * strip.start..BOTH * strip.end];
                rule.sketch(isa, pool, kept(&strip), grad, omega, to);
                self.leave(lesson, strip);
            }
            if !finite {
                return Ok(f64::NAN);
            }
            orthonormalise(basis, (rows, BOTH / 2), (BOTH, 1));
            orthonormalise(&mut basis[BOTH / 2..], (rows, BOTH / 2), (BOTH, 1));
            next.fill(0.0);
            for strip in cut(0..rows, strip) {
                desk.look(&strip, cols, make);
                let grad = &desk.grad[..strip.len() * cols];
                let basis = &basis[BOTH * strip.start..BOTH * strip.end];
                rule.compress(isa, pool, kept(&strip), grad, basis, next);
                for slab in cut(strip.clone(), slab) {
                    let numbers = &mut desk.numbers[..slab.len() * cols];
                    let grad = &grad[(slab.start - strip.start) * cols..][..numbers.len()];
                    self.weights.matrix(lesson.weight).read_rows(isa, pool, slab.clone(), numbers);
                    rule.step(isa, pool, kept(&slab), grad, numbers);
                    self.store(lesson, &slab, numbers, desk.bytes)?;
                }
                self.leave(lesson, strip);
            }
            left.copy_from_slice(basis);
            right.copy_from_slice(next);
            Ok(sum)
        })?
    }
}
