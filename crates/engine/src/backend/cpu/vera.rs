//! What VeRA adds to a linear, and its derivative: products with the two matrices that all modules share, of which each takes the first rows, and the
//! vectors on either side of the second. Outputs are worked through in strips.

use std::ops::Range;

use pocketune_kernels::matmul::{Ctx, Start, Weight, nn, nt};
use pocketune_kernels::vera;

use super::Cpu;
use crate::graph::{Vera, hugging_face_row};

/// What the strips work with; see `plan/emit/vera.rs`.
struct Desk<'a> {
    /// `h ∘ d`.
    low: &'a mut [f32],
    strip: &'a mut [f32],
    rows_of_b: &'a mut [f32],
    scratch: &'a mut [f32],
}

impl<'a> Desk<'a> {
    fn new(of: Vera, n: usize, work: &'a mut [f32]) -> Self {
        let strip = vera::STRIP.min(of.rows);
        let (low, work) = work.split_at_mut(n * of.rank);
        let (outputs, work) = work.split_at_mut(n * strip);
        let (rows_of_b, scratch) = work.split_at_mut(if of.permuted.is_some() { strip * of.rank } else { 0 });
        Self { low, strip: outputs, rows_of_b, scratch }
    }
}

impl Cpu {
    /// `h = x Aᵀ`.
    pub(super) fn vera_down(&self, of: Vera, x: &[f32], n: usize, h: &mut [f32], mut ctx: Ctx) {
        nn(&mut ctx, self.first_rows(of), x, n, h, Start::Zero, None);
    }

    /// `gx = gh A`, or added to it.
    pub(super) fn vera_down_backward(
        &self,
        of: Vera,
        gh: &[f32],
        n: usize,
        (gx, add): (&mut [f32], bool),
        mut ctx: Ctx,
    ) {
        nt(&mut ctx, self.first_rows(of), gh, n, gx, if add { Start::Output } else { Start::Zero }, None);
    }

    /// `y += ((h ∘ d) Bᵀ) ∘ b`.
    pub(super) fn vera_up(&self, of: Vera, h: &[f32], n: usize, y: &mut [f32], work: &mut [f32]) {
        let desk = Desk::new(of, n, work);
        vera::times(&self.pool, h, self.param(of.lambda_d), desk.low);
        for strip in strips(of.rows) {
            let u = &mut desk.strip[..n * strip.len()];
            nt(
                &mut self.on(desk.scratch),
                self.rows_of_b(of, &strip, desk.rows_of_b),
                desk.low,
                n,
                u,
                Start::Zero,
                None,
            );
            let b = &self.param(of.lambda_b)[strip.clone()];
            vera::add_strip(&self.pool, u, b, strip.start, of.rows, y);
        }
    }

    /// Gradients of `d` and `b`, each added to where so asked, and of `h`.
    pub(super) fn vera_up_backward(
        &self,
        of: Vera,
        (h, g): (&[f32], &[f32]),
        n: usize,
        gh: Option<&mut [f32]>,
        [(gd, add_d), (gb, add_b)]: [(&mut [f32], bool); 2],
        work: &mut [f32],
    ) {
        let (low_gradient, work) = work.split_at_mut(n * of.rank);
        let desk = Desk::new(of, n, work);
        [(&mut *gd, add_d), (&mut *gb, add_b)].into_iter().filter(|(_, add)| !add).for_each(|(grad, _)| grad.fill(0.0));
        let d = self.param(of.lambda_d);
        vera::times(&self.pool, h, d, desk.low);
        low_gradient.fill(0.0);
        for strip in strips(of.rows) {
            let u = &mut desk.strip[..n * strip.len()];
            let rows = self.rows_of_b(of, &strip, desk.rows_of_b);
            nt(&mut self.on(desk.scratch), rows, desk.low, n, u, Start::Zero, None);
            let b = &self.param(of.lambda_b)[strip.clone()];
            vera::strip_backward(g, b, strip.start, of.rows, u, &mut gb[strip.clone()]);
            nn(&mut self.on(desk.scratch), rows, u, n, low_gradient, Start::Output, None);
        }
        vera::add_products(low_gradient, h, gd);
        if let Some(gh) = gh {
            vera::times(&self.pool, low_gradient, d, gh);
        }
    }

    /// The rows of A, held transposed, that a linear of so many inputs takes.
    fn first_rows(&self, of: Vera) -> Weight<'_> {
        Weight::f32(of.cols, of.rank, &self.param(of.a)[..of.cols * of.rank])
    }

    /// The rows of B for some outputs, brought into the order of the model's file where that is another.
    fn rows_of_b<'a>(&'a self, of: Vera, strip: &Range<usize>, room: &'a mut [f32]) -> Weight<'a> {
        let (all, rank) = (self.param(of.b), of.rank);
        let Some(d) = of.permuted else {
            return Weight::f32(strip.len(), rank, &all[strip.start * rank..strip.end * rank]);
        };
        let room = &mut room[..strip.len() * rank];
        for (row, to) in strip.clone().zip(room.chunks_exact_mut(rank)) {
            to.copy_from_slice(&all[hugging_face_row(row, d) * rank..][..rank]);
        }
        Weight::f32(strip.len(), rank, room)
    }

    fn on<'a>(&'a self, scratch: &'a mut [f32]) -> Ctx<'a> {
        Ctx { pool: &self.pool, isa: self.machine.isa, precision: self.machine.precision, scratch }
    }
}

fn strips(rows: usize) -> impl Iterator<Item = Range<usize>> {
    (0..rows).step_by(vera::STRIP).map(move |first| first..(first + vera::STRIP).min(rows))
}
