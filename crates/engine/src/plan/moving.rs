//! In what pieces the matrices of a model are moved that is looked at without gradients: some rows are read, the numbers of a direction drawn for them, and their sum
//! multiplied, for one group of the batch after another. Floats of what that works with.

use pocketune_kernels::BlockType;
use pocketune_kernels::matmul::{self, Shape};

use super::{Mode, Request};
use crate::graph::WeightId;

/// Numbers of a strip, at most.
const STRIP: usize = 1 << 18;

/// Rows of a matrix that are moved at a time: whole tiles, where there are so many.
pub(crate) fn strip_rows(rows: usize, cols: usize) -> usize {
    let most = (STRIP / cols.max(1)).max(1);
    (if most >= 32 { most / 32 * 32 } else { most }).min(rows)
}

/// Floats of a strip, of its numbers, and of their sum.
pub(crate) const fn strips(numbers: usize) -> usize {
    3 * numbers
}

/// Whether a model itself is moved.
pub(super) fn moves(request: Request) -> bool {
    request.graph.whole && request.mode == Mode::Perturb
}

/// A linear over `n` rows: strips, a bias, what they make of the rows, and the product's.
pub(super) fn linear(request: Request, weight: WeightId, n: usize) -> usize {
    let (decl, m) = (&request.graph.weights[weight.0], request.machine);
    let rows = strip_rows(decl.rows, decl.cols);
    let shape = Shape { ty: BlockType::F32, rows, cols: decl.cols, n, rank: 0 };
    strips(rows * decl.cols) + strips(rows) + n * rows + matmul::nt_scratch(shape, m.threads, m.isa, m.precision)
}

/// Floats that the step works with between two runs: a strip of the largest matrix, and the same as it is stored.
pub(super) fn step(request: Request) -> usize {
    if !moves(request) {
        return 0;
    }
    let of = |decl: &crate::graph::WeightDecl| 2 * strip_rows(decl.rows, decl.cols) * decl.cols;
    request.graph.weights.iter().map(of).max().unwrap_or(0)
}
