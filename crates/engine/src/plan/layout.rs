//! Where the things that outlive a program lie: at the start of the arena, in floats.

use std::ops::Range;

use pocketune_kernels::update::{BOTH, Galore, state_len_8bit};

use super::Mode;
use crate::graph::{Graph, Of, Param, ParamId};

/// What an optimizer remembers of every trainable matrix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// Nothing.
    #[default]
    None,
    /// Two moments in f32, one after the other.
    F32,
    /// Two moments in 8 bits, with their blocks' maxima.
    Bits8,
    /// Means of squares, by row and by column of a matrix, by number of a vector.
    Factored,
    /// Two moments of a projection to so many rows or columns, and the size of the last step; two moments of a vector.
    Projected(usize),
    /// Factors of two moments, of four columns and four rows each; two moments of a vector.
    Compressed,
    /// So many vectors that a matrix is projected onto, and two moments of the projection; two moments of a vector.
    Subspace(usize),
}

impl States {
    /// Floats of state for `len` numbers of an adapter or a vector, or for a row of one of the model's matrices, where each row has its own.
    pub const fn floats(self, len: usize) -> usize {
        match self {
            States::None => 0,
            States::F32 | States::Projected(_) | States::Compressed | States::Subspace(_) => 2 * len,
            States::Bits8 => state_len_8bit(len),
            States::Factored => len,
        }
    }

    /// Floats of state that a trainable matrix has room of its own for.
    pub const fn of(self, param: &Param) -> usize {
        if param.remembered { self.in_use(param) } else { 0 }
    }

    /// Floats of state of a trainable matrix while it learns.
    pub const fn in_use(self, param: &Param) -> usize {
        match (self, param.of) {
            _ if !param.trained => 0,
            (States::Factored, Of::Matrix(_)) => param.rank + param.cols,
            (States::Projected(rank), Of::Matrix(_)) => 2 * rank * larger(param.rank, param.cols) + 1,
            (States::Compressed, Of::Matrix(_)) => BOTH * (param.rank + param.cols),
            (States::Subspace(rank), Of::Matrix(_)) => {
                let (small, large) = (smaller(param.rank, param.cols), larger(param.rank, param.cols));
                Galore::kept(rank, small) * (small + 2 * large)
            }
            (_, Of::Matrix(_)) => param.rank * self.floats(param.cols),
            _ => self.floats(param.len()),
        }
    }

    /// How often the gradient of one of the model's matrices is looked at to apply it.
    pub const fn looks(self) -> usize {
        match self {
            // Some more times where a subspace is found, which is seldom.
            States::None | States::F32 | States::Bits8 | States::Subspace(_) => 1,
            States::Factored => 3,
            States::Projected(_) | States::Compressed => 2,
        }
    }

    /// Whether there is anything to remember.
    pub const fn any(self) -> bool {
        !matches!(self, States::None)
    }
}

const fn larger(a: usize, b: usize) -> usize {
    if a > b { a } else { b }
}

const fn smaller(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

/// A stretch of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First float.
    pub start: usize,
    /// Number of floats.
    pub len: usize,
}

impl Span {
    /// As a range.
    pub const fn range(self) -> Range<usize> {
        self.start..self.start + self.len
    }
}

/// The persistent part of the arena.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// The adapters' matrices; of a model's own tensors that are trained, vectors are where [`Layout::vectors`] says, and matrices are not here.
    pub params: Vec<Span>,
    /// Their optimizer states, where there are any in memory.
    pub states: Vec<Span>,
    /// Where on disk the optimizer states wait that are not in memory: floats from the end of the program's part of the spill file.
    pub paged: Vec<usize>,
    /// Floats of optimizer state on disk.
    pub paged_len: usize,
    /// Their gradient sums, where a step accumulates.
    pub grads: Vec<Span>,
    /// Norm weights and biases.
    pub vectors: Vec<Span>,
    /// The lengths of the rows of every module's matrix, where it has magnitudes.
    pub lengths: Vec<Span>,
    /// Cosines and sines by position.
    pub ropes: Vec<Span>,
    /// Keys and values of every block, where text is generated.
    pub caches: Vec<[Span; 2]>,
    /// What every update of a run was, where that is kept.
    pub log: Option<Span>,
    /// Floats in all.
    pub len: usize,
}

impl Layout {
    /// The layout for `graph` with these optimizer states (on disk when `page`), records of up to `positions` tokens, and a cache of
    /// `kv_width` floats a token and block when generating.
    pub fn new(graph: &Graph, states: States, page: bool, positions: usize, mode: Mode, kv_width: usize) -> Self {
        let mut layout = Self::default();
        layout.vectors = graph.vectors.iter().map(|vector| layout.take(vector.len)).collect();
        let place = |layout: &mut Self, param: &Param| match param.of {
            Of::Module(_) | Of::Shared | Of::Saved(_) => layout.take(param.len()),
            Of::Matrix(_) => Span { start: 0, len: 0 },
            Of::Vector(id) => layout.vectors[id.0],
        };
        layout.params = graph.params.iter().map(|param| place(&mut layout, param)).collect();
        if page && states.any() {
            for param in &graph.params {
                layout.paged.push(layout.paged_len);
                layout.paged_len += states.of(param);
            }
        } else if states.any() {
            layout.states = graph.params.iter().map(|param| layout.take(states.of(param))).collect();
        }
        if mode == Mode::Accumulate {
            layout.grads = graph.params.iter().map(|param| layout.take(param.trained_len())).collect();
        }
        let rows = graph.modules.iter().map(|module| if module.magnitude.is_some() { module.rows } else { 0 });
        layout.lengths = rows.map(|rows| layout.take(rows)).collect();
        layout.ropes = graph.ropes.iter().map(|rope| layout.take(positions * 2 * rope.frequencies.len())).collect();
        if let Mode::Generate { context } = mode {
            layout.caches = (0..graph.blocks).map(|_| [(); 2].map(|()| layout.take(context * kv_width))).collect();
        }
        layout
    }

    /// The same with room for a log of `len` floats.
    pub fn with_log(mut self, len: usize) -> Self {
        self.log = (len > 0).then(|| self.take(len));
        self
    }

    fn take(&mut self, len: usize) -> Span {
        let span = Span { start: self.len, len };
        self.len += len.next_multiple_of(16);
        span
    }

    /// The stretch of a trainable matrix.
    pub fn param(&self, param: ParamId) -> Span {
        self.params[param.0]
    }
}
