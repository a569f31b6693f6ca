//! Scratch memory of VeRA's products, in floats. What a linear gets is made a strip of its outputs at a time, so that it never exists whole
//! beside the linear's own.

use pocketune_kernels::BlockType;
use pocketune_kernels::matmul::{self, Shape};
use pocketune_kernels::vera::STRIP;

use super::Emitter;
use crate::graph::Vera;

impl Emitter<'_> {
    /// Both products with A.
    pub(super) fn vera_down(&self, vera: Vera) -> usize {
        self.shared_products(vera.cols, vera.rank)
    }

    /// `h ∘ d`, a strip of outputs, the rows of B for it where they lie in another order, and both products with them.
    pub(super) fn vera_up(&self, vera: Vera) -> usize {
        let (n, strip) = (self.rows(), STRIP.min(vera.rows));
        let rows_of_b = if vera.permuted.is_some() { strip * vera.rank } else { 0 };
        n * (vera.rank + strip) + rows_of_b + self.shared_products(strip, vera.rank)
    }

    /// The same, and the gradient of `h ∘ d`.
    pub(super) fn vera_up_backward(&self, vera: Vera) -> usize {
        self.vera_up(vera) + self.rows() * vera.rank
    }

    fn shared_products(&self, rows: usize, cols: usize) -> usize {
        let m = self.request.machine;
        let shape = Shape { ty: BlockType::F32, rows, cols, n: self.rows(), rank: 0 };
        let [nt, nn] = [matmul::nt_scratch, matmul::nn_scratch].map(|of| of(shape, m.threads, m.isa, m.precision));
        nt.max(nn)
    }
}
