//! What a run will hold, in bytes, before its first step.

use pocketune_kernels::cross_entropy::STRIP;
use pocketune_kernels::pool::STACK_BYTES;

use super::{Instr, Layout, Program, Span};
use crate::backend::{DISK_STACK_BYTES, LOGITS_PIECE, Stored};
use crate::graph::{Graph, WeightId};

/// The bytes of a run by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The adapter.
    pub adapter: usize,
    /// The optimizer's state in memory.
    pub optimizer: usize,
    /// Gradient sums, where a step accumulates.
    pub gradients: usize,
    /// Norm weights, biases, rotation tables, caches, and the rows of a batch.
    pub tables: usize,
    /// Values, gradients, logits and scratch: the program's part of the arena.
    pub program: usize,
    /// Mapped weights: all of them, or the most that is mapped at once when they are streamed.
    pub weights: usize,
    /// Stacks of the threads beside the first.
    pub stacks: usize,
    /// The process before the arena exists, with what it will still load of itself.
    pub process: usize,
    /// The highest the process stood while it prepared the data.
    pub preparation: usize,
}

/// The process around the arena.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings {
    /// What it holds before the arena exists, with what it will still load of itself.
    pub process: usize,
    /// The highest it stood so far.
    pub preparation: usize,
}

/// How much more the same process may hold in another run: which pages of its files are mapped is the system's choice.
const SPREAD: usize = 1 << 20;

impl Surroundings {
    /// Those to state a budget with, so that a run inside it is not refused.
    #[must_use]
    pub fn stated(self) -> Self {
        Self { process: self.process + SPREAD, preparation: self.preparation + SPREAD }
    }
}

impl MemoryPlan {
    /// The plan for `layout` and `programs` over the weights of `graph`.
    pub fn new(
        graph: &Graph,
        stored: &[Stored],
        layout: &Layout,
        programs: &[&Program],
        threads: usize,
        around: Surroundings,
    ) -> Self {
        let bytes = |spans: &mut dyn Iterator<Item = &Span>| spans.map(|span| span.len * 4).sum::<usize>();
        let adapter = bytes(&mut layout.params.iter());
        let optimizer = bytes(&mut layout.states.iter());
        let gradients = bytes(&mut layout.grads.iter());
        let tokens = programs.iter().map(|program| program.tokens).max().unwrap_or(0);
        let disk = programs.iter().any(|program| program.spill > 0) || layout.paged_len > 0;
        Self {
            adapter,
            optimizer,
            gradients,
            tables: layout.len * 4 - adapter - optimizer - gradients + tokens * 16,
            program: programs.iter().map(|program| program.len * 4).max().unwrap_or(0),
            weights: programs.iter().map(|program| weights(graph, stored, program)).max().unwrap_or(0),
            stacks: (threads - 1) * STACK_BYTES + if disk { DISK_STACK_BYTES } else { 0 },
            process: around.process,
            preparation: around.preparation,
        }
    }

    /// The peak of the whole process.
    pub fn peak(&self) -> usize {
        self.standing().max(self.preparation)
    }

    /// What the process holds while steps run.
    pub fn standing(&self) -> usize {
        self.process + self.anonymous() + self.weights
    }

    /// What the run takes beside what the process has and what is mapped.
    pub fn anonymous(&self) -> usize {
        self.adapter + self.optimizer + self.gradients + self.tables + self.program + self.stacks
    }
}

/// A large page of the page cache: recent kernels map all of it where a byte of it is touched. How a file was written decides how large its pages are.
pub(crate) const LARGE: usize = 2 << 20;

/// What may be mapped beyond the ends of a streamed part, in each place of its file: parts of a page, and what the system maps around a page of the usual size.
const EDGES: usize = 256 << 10;

/// Bytes of a weight's rows.
pub(super) fn weight_bytes(graph: &Graph, stored: &[Stored], id: WeightId, rows: usize) -> usize {
    let decl = &graph.weights[id.0];
    stored[id.0].ty.row_bytes(decl.cols).unwrap_or(0) * rows.min(decl.rows)
}

/// What is mapped of the weights at most: all of them, or the largest part that an instruction reads before it is released.
fn weights(graph: &Graph, stored: &[Stored], program: &Program) -> usize {
    if !program.stream {
        return mapped(graph, stored, program, None);
    }
    program.instrs.iter().map(|instr| mapped(graph, stored, program, Some(instr))).max().unwrap_or(0)
}

/// What is mapped of the weights while `instr` runs: all of them, or what it reads before that is released.
pub(super) fn mapped(graph: &Graph, stored: &[Stored], program: &Program, instr: Option<&Instr>) -> usize {
    let whole = |id: WeightId| weight_bytes(graph, stored, id, usize::MAX);
    if !program.stream {
        return (0..graph.weights.len()).map(|id| whole(WeightId(id))).sum();
    }
    let part = instr.map_or(0, |instr| match instr {
        Instr::CrossEntropy { weight, .. } => weight_bytes(graph, stored, *weight, STRIP),
        // Read and written strip by strip, with large pages at both ends.
        Instr::LearnTable { weight, .. } => weight_bytes(graph, stored, *weight, STRIP) + 2 * LARGE,
        Instr::Logits { weight, .. } => weight_bytes(graph, stored, *weight, LOGITS_PIECE),
        Instr::Embed { weight, added, .. } => {
            let tables = added.iter().flat_map(|added| [Some(added.positions), added.types]).flatten();
            let row = |table: WeightId| weight_bytes(graph, stored, table, 1) + stored[table.0].places * EDGES;
            weight_bytes(graph, stored, *weight, 1) + tables.map(row).sum::<usize>()
        }
        other => other.weight().map_or(0, whole),
    });
    let places = instr.and_then(Instr::weight).map_or(1, |weight| stored[weight.0].places);
    // The ends of a part are mapped first, one after the other, and what lies beyond is let go (`Weights::enter`).
    part.max(part.min(LARGE) + LARGE) + places * EDGES
}
