//! What a run will hold, in bytes, before its first step.

use pocketune_kernels::pool::STACK_BYTES;

use crate::memory;
use crate::plan::{Layout, Program, Span};

/// The bytes of a run by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The adapter.
    pub adapter: usize,
    /// The optimizer's state.
    pub optimizer: usize,
    /// Gradient sums, where a step accumulates.
    pub gradients: usize,
    /// Norm weights, biases, rotation tables and caches.
    pub tables: usize,
    /// Values, gradients, logits and scratch: the program's part of the arena.
    pub program: usize,
    /// Mapped weights, all of them resident.
    pub weights: usize,
    /// Stacks of the worker threads.
    pub stacks: usize,
    /// The process before the arena exists, with the pages of the binary that are still to come.
    pub process: usize,
    /// The highest the process stood while it prepared the data.
    pub preparation: usize,
}

impl MemoryPlan {
    /// The plan for `layout` and the largest of `programs`, over `weights` bytes of mapped tensors, with `threads` threads.
    pub fn new(layout: &Layout, programs: &[&Program], weights: usize, threads: usize, preparation: usize) -> Self {
        let bytes = |spans: &mut dyn Iterator<Item = &Span>| spans.map(|span| span.len * 4).sum::<usize>();
        let adapter = bytes(&mut layout.params.iter());
        let optimizer = bytes(&mut layout.states.iter().flatten());
        let gradients = bytes(&mut layout.grads.iter());
        Self {
            adapter,
            optimizer,
            gradients,
            tables: layout.len * 4 - adapter - optimizer - gradients,
            program: programs.iter().map(|program| program.len * 4).max().unwrap_or(0),
            weights,
            stacks: (threads - 1) * STACK_BYTES,
            process: memory::now().total + memory::binary_to_come(),
            preparation,
        }
    }

    /// The peak of the whole process.
    pub fn peak(&self) -> usize {
        (self.process + self.anonymous() + self.weights).max(self.preparation)
    }

    /// What the run takes beside what the process has and what is mapped.
    pub fn anonymous(&self) -> usize {
        self.adapter + self.optimizer + self.gradients + self.tables + self.program + self.stacks
    }
}
