//! The gradient product of a strip of the vocabulary for those rows alone that it matters to (CCE's gradient filter,
//! [2411.09009](https://arxiv.org/abs/2411.09009), by row). Not exact, and only where it was asked for.
//!
//! CCE leaves a block out when all of its softmax entries are below 2^-12, and knows them, since it has the log-sum-exp of a pass before. Here
//! there is one pass, and while a strip is at hand only the sum *so far* is known. That bounds an entry from above: sums only grow, so
//! `exp(l) / sum of all <= exp(l) / sum so far`, and what is below the threshold now is below it in the end. The other direction does not hold:
//! an entry above it now may be below it in the end. So every entry that is left out is one that CCE leaves out; early strips, which see
//! small sums, are left out less often than they could be, and the first never is, as its largest entry is at least a 1,024th of its sum.
//!
//! The choice is made for each row on its own, and a row's part of the product does not depend on the others: bits don't depend on the pieces
//! that rows are worked on in. The label's own entry is no part of it: it is subtracted exactly, elsewhere.

use pocketune_kernels::cross_entropy::{self, State};
use pocketune_kernels::matmul::{Ctx, Start, Weight, nn};

/// What it works with: the numbers of rows, and room to bring their sums together.
pub(super) struct Faint<'a> {
    rows: &'a mut [u32],
    sums: &'a mut [f32],
}

impl<'a> Faint<'a> {
    /// Cut from the front of `work` where it is `asked` for, and the rest.
    pub(super) fn cut(work: &'a mut [f32], asked: bool, rows: usize, cols: usize) -> (Option<Self>, &'a mut [f32]) {
        if !asked {
            return (None, work);
        }
        let (numbers, work) = work.split_at_mut(rows);
        let (sums, work) = work.split_at_mut(rows * cols);
        (Some(Self { rows: bytemuck::cast_slice_mut(numbers), sums }), work)
    }

    /// Adds to `sums` the product of a strip of exponentials, as `take_in` left them, with its `part` of the head, for the rows it matters to.
    pub(super) fn add(&mut self, ctx: &mut Ctx, part: Weight, strip: &mut [f32], sums: &mut [f32], state: &State) {
        let (count, len, cols) = (state.total.len(), part.rows, part.cols);
        let bright = cross_entropy::bright(ctx.isa, ctx.pool, strip, state, &mut self.rows[..count]);
        let rows = &self.rows[..bright];
        if 4 * bright > 3 * count {
            // Hardly any is left out: a product with zeros costs less than moving the others, and adds nothing.
            let mut next = rows.iter().peekable();
            for (row, strip) in strip.chunks_exact_mut(len).enumerate() {
                if next.next_if(|&&bright| bright as usize == row).is_none() {
                    strip.fill(0.0);
                }
            }
            nn(ctx, part, strip, count, sums, Start::Output, None);
        } else if bright > 0 {
            for (to, &from) in rows.iter().enumerate() {
                strip.copy_within(from as usize * len..(from as usize + 1) * len, to * len);
            }
            let together = &mut self.sums[..bright * cols];
            for (to, &from) in together.chunks_exact_mut(cols).zip(rows) {
                to.copy_from_slice(&sums[from as usize * cols..][..cols]);
            }
            nn(ctx, part, &strip[..bright * len], bright, together, Start::Output, None);
            for (from, &to) in together.chunks_exact(cols).zip(rows) {
                sums[to as usize * cols..][..cols].copy_from_slice(from);
            }
        }
    }
}
