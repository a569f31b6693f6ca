//! In what pieces the gradient of one of the model's matrices is made and applied. Its gradient exists a strip of rows at a time; where the rule looks at it several
//! times it is kept if one strip is all of it, and made again if not. Numbers are moved a slab of rows at a time, each read, moved, rounded
//! and written while it is near. No piece changes a bit.

use pocketune_kernels::BlockType;
use pocketune_kernels::cross_entropy::STRIP as TABLE_STRIP;
use pocketune_kernels::matmul::{self, Precision, Shape};
use pocketune_kernels::update::{BOTH, Galore, Mlorc};

use super::{Request, States};
use crate::graph::{ParamId, WeightId};

/// Numbers of a strip where the gradient is looked at once.
const STRIP: usize = 1 << 20;
/// Numbers of a strip where it is looked at several times: most matrices are one.
const WHOLE: usize = 1 << 23;
/// Numbers of a slab.
const SLAB: usize = 1 << 18;
/// Rows of the batch whose logits are there at a time, for the gradient of the head.
const LOGIT_ROWS: usize = 512;

/// The pieces, and the floats of what they work with, one after another in the memory of the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// Rows of the matrix.
    pub rows: usize,
    /// Its columns.
    pub cols: usize,
    /// Rows of a strip.
    pub strip: usize,
    /// Rows of a slab.
    pub slab: usize,
    /// Bytes of a slab as it is stored.
    pub bytes: usize,
    /// How often each gradient is made.
    pub times: usize,
    /// Room for a state that waits on disk: of a slab, or all of a small one.
    pub state: usize,
    /// Figures of all rows and columns, one more for each row of a strip, and what a projection takes.
    pub figures: usize,
    /// Rows of the batch that the head is looked at with at a time.
    pub logit_rows: usize,
    /// What products need.
    pub scratch: usize,
}

impl Learning {
    /// For a linear over the step's tokens.
    pub(super) fn linear(request: Request, weight: WeightId, param: ParamId) -> Self {
        let cols = request.graph.weights[weight.0].cols;
        let strip = (if request.states.looks() > 1 { WHOLE } else { STRIP } / cols).max(1);
        let all = Self::pieces(request, weight, param, strip);
        let m = request.machine;
        Self { scratch: matmul::tn_scratch(request.tokens, all.strip, cols, m.threads, m.isa, m.precision), ..all }
    }

    /// For a table of the vocabulary, which may be the head.
    pub(super) fn table(request: Request, weight: WeightId, param: ParamId, head: bool) -> Self {
        let all = Self::pieces(request, weight, param, TABLE_STRIP);
        if !head {
            return all;
        }
        let (m, n, ty) = (request.machine, request.tokens.min(LOGIT_ROWS), request.stored[weight.0].ty);
        let shape = Shape { ty, rows: all.strip, cols: all.cols, n, rank: 0 };
        let logits = matmul::nt_scratch(shape, m.threads, m.isa, m.precision);
        let gradient = matmul::tn_scratch(n, all.strip, all.cols, m.threads, m.isa, m.precision);
        Self { logit_rows: n, scratch: logits.max(gradient), ..all }
    }

    fn pieces(request: Request, weight: WeightId, param: ParamId, strip: usize) -> Self {
        let decl = &request.graph.weights[weight.0];
        let (rows, cols) = (decl.rows, decl.cols);
        let (strip, slab) = (strip.min(rows), (SLAB / cols).clamp(1, strip.min(rows)));
        let bytes = request.stored[weight.0].ty.row_bytes(cols).unwrap_or(0) * slab;
        let state = match request.states {
            _ if !request.policy.page_optimizer => 0,
            States::Factored | States::Projected(_) | States::Compressed | States::Subspace(_) => {
                request.states.in_use(&request.graph.params[param.0])
            }
            by_row => slab * by_row.floats(cols),
        };
        let figures = match request.states {
            States::None | States::F32 | States::Bits8 => 0,
            States::Factored => rows + cols + strip,
            // The projection and what it makes, and the products'.
            States::Projected(rank) => {
                rows + cols + strip + rank * (rows + cols) + thin(request, rank, rows, cols, strip)
            }
            // New factors, the random matrix, and what is rebuilt below zero.
            States::Compressed => BOTH * (rows + cols) + Mlorc::rank() * cols + 2 * rows,
            States::Subspace(rank) => subspace(request, rank, rows, cols, strip, slab),
        };
        let times = if strip < rows { request.states.looks() } else { 1 };
        Self { rows, cols, strip, slab, bytes, times, state, figures, logit_rows: 0, scratch: 0 }
    }

    /// Floats of all of it.
    pub const fn floats(&self) -> usize {
        (self.strip + self.slab) * self.cols
            + self.bytes.div_ceil(4)
            + self.state
            + self.figures
            + self.logit_rows * self.strip
            + self.scratch
    }
}

/// What a step in a subspace works with: the projection, what finds another, steps projected back, and the products'.
fn subspace(request: Request, rank: usize, rows: usize, cols: usize, strip: usize, slab: usize) -> usize {
    let (m, small, large) = (request.machine, rows.min(cols), rows.max(cols));
    let (kept, tried) = (Galore::kept(rank, small), Galore::tried(rank, small));
    let shape = |rows: usize, n: usize| Shape { ty: BlockType::F32, rows, cols, n, rank: 0 };
    let products = [
        matmul::nt_scratch(shape(kept, strip), m.threads, m.isa, Precision::F32),
        matmul::nt_scratch(shape(tried, strip), m.threads, m.isa, Precision::F32),
        matmul::tn_scratch(strip, kept, cols, m.threads, m.isa, Precision::F32),
        matmul::tn_scratch(strip, tried, cols, m.threads, m.isa, Precision::F32),
        matmul::nn_scratch(shape(kept, slab), m.threads, m.isa, Precision::F32),
    ];
    let thin = products.into_iter().max().unwrap_or(0);
    (kept + tried) * large + 2 * tried * small + slab * cols + thin
}

/// What the products of a projection need: with the gradient's columns where it has no more of them than rows, else with its rows.
fn thin(request: Request, rank: usize, rows: usize, cols: usize, strip: usize) -> usize {
    let m = request.machine;
    if rows >= cols {
        let shape = Shape { ty: BlockType::F32, rows: rank, cols, n: strip, rank: 0 };
        return matmul::nt_scratch(shape, m.threads, m.isa, Precision::F32);
    }
    matmul::tn_scratch(strip, rank, cols, m.threads, m.isa, Precision::F32)
}
