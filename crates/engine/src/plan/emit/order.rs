//! The order of blocks: forward with checkpoints, and backward over spans of blocks between two checkpoints.

use std::ops::Range;

use super::Emitter;
use crate::graph::{Op, Role, Stage, ValueId};
use crate::plan::policy::Spill;
use crate::plan::{Instr, Kind, Passage, Region};

const STAGES: [Stage; 3] = [Stage::Before, Stage::Attention, Stage::After];

impl Emitter<'_> {
    pub(super) fn forward(&mut self) {
        let graph = self.request.graph;
        let outside = |this: &mut Self, tail: bool| {
            for at in 0..graph.nodes.len() {
                let node = &graph.nodes[at];
                if node.block.is_none() && matches!(node.op, Op::Embed { .. }) != tail {
                    this.forward_node(at);
                }
            }
        };
        outside(self, false);
        for block in 0..graph.blocks {
            self.forward_block(block);
            self.settle(block);
        }
        self.finish_writing();
        outside(self, true);
    }

    pub(super) fn forward_block(&mut self, block: usize) {
        for stage in STAGES {
            self.open(block, stage);
            for at in self.stage(block, stage) {
                self.forward_node(at);
            }
            self.close();
        }
    }

    /// After a block's forward pass: what is kept stays or begins its way to disk, the rest is gone. The block's output is left for
    /// the next block.
    fn settle(&mut self, block: usize) {
        self.finish_writing();
        let output = self.inputs.get(block + 1).copied();
        for at in self.made(block).chain([self.inputs[block].0]) {
            let value = ValueId(at);
            let stays = Some(value) == output || self.is_last(value);
            let Some(buf) = self.live[at].filter(|_| !stays) else { continue };
            if !self.kept(value) {
                self.live[at] = None;
            } else if self.spills() {
                self.instrs.push(Instr::Spill { from: buf, at: self.spill });
                self.spilled[at] = Some(self.spill);
                self.spill += self.buffers[buf.0].len.next_multiple_of(1024);
                self.live[at] = None;
                self.writing.push(buf);
            }
        }
        if self.request.policy.spill == Spill::Tight {
            self.finish_writing();
        }
    }

    /// The last block's output is read outside of blocks.
    fn is_last(&self, value: ValueId) -> bool {
        self.request.graph.values[value.0].role == Role::BlockInput && !self.inputs.contains(&value)
    }

    fn finish_writing(&mut self) {
        for from in std::mem::take(&mut self.writing) {
            self.instrs.push(Instr::Spilled { from });
        }
    }

    pub(super) fn backward(&mut self) {
        let graph = self.request.graph;
        let outside = |at: &usize| graph.nodes[*at].block.is_none();
        let is_embed = |at: &usize| matches!(graph.nodes[*at].op, Op::Embed { .. });
        self.learn_head();
        for at in (0..graph.nodes.len()).rev().filter(|at| outside(at) && !is_embed(at)) {
            self.differentiate(at);
        }
        self.backward_all();
        for at in (0..graph.nodes.len()).filter(is_embed) {
            self.differentiate(at);
        }
    }

    fn backward_all(&mut self) {
        let graph = self.request.graph;
        let every = self.request.policy.every;
        let (first, blocks) = (self.first, graph.blocks);
        if every[0] <= 1 {
            self.backward_blocks(first, blocks);
            return;
        }
        let starts: Vec<usize> = (first..blocks).step_by(every[0]).collect();
        for start in starts.into_iter().rev() {
            let end = (start + every[0]).min(blocks);
            self.bring(self.inputs[start]);
            self.wait_for(self.inputs[start]);
            self.span(start, end, every[1]);
        }
    }

    /// The backward pass of blocks `start..end` from the input of the first: it is run forward again, keeping every `step`-th
    /// block's input, and each part is handled likewise with a step of one.
    fn span(&mut self, start: usize, end: usize, step: usize) {
        let step = step.max(1);
        let marks: Vec<usize> = (start..end).step_by(step).collect();
        for block in start..*marks.last().unwrap_or(&start) {
            self.replay(block, marks.contains(&block));
        }
        for &mark in marks.iter().rev() {
            let part_end = (mark + step).min(end);
            if step == 1 {
                self.backward_block(mark);
            } else {
                self.span(mark, part_end, 1);
            }
        }
    }

    /// Runs a block forward again for its output alone; its input stays when `keep`.
    fn replay(&mut self, block: usize, keep: bool) {
        let input = self.live[self.inputs[block].0];
        self.forward_block(block);
        let output = self.inputs.get(block + 1).copied();
        for at in self.made(block).filter(|&at| Some(ValueId(at)) != output) {
            self.live[at] = None;
        }
        self.live[self.inputs[block].0] = if keep { input } else { None };
        if let (true, Some(buf)) = (keep, input) {
            self.buffers[buf.0].kind = Kind::Checkpoint;
        }
    }

    /// Blocks from the last to `first`, each with its own kept values; what waits on disk is read one block ahead.
    fn backward_blocks(&mut self, first: usize, end: usize) {
        let ahead = self.request.policy.spill == Spill::Ahead;
        for block in (first..end).rev() {
            self.bring_block(block);
            if ahead && block > first {
                // Begun before this block's work and awaited at its turn.
                self.fetch_block(block - 1);
            }
            self.backward_block(block);
        }
    }

    /// Values of `block` that wait on disk, its input included.
    fn waiting(&self, block: usize) -> Vec<ValueId> {
        let of_block =
            |at: usize| self.request.graph.values[at].block == Some(block) && !self.inputs.contains(&ValueId(at));
        (0..self.spilled.len())
            .filter(|&at| self.spilled[at].is_some() && (of_block(at) || ValueId(at) == self.inputs[block]))
            .map(ValueId)
            .collect()
    }

    fn fetch_block(&mut self, block: usize) {
        for value in self.waiting(block) {
            self.bring(value);
        }
    }

    fn bring_block(&mut self, block: usize) {
        for value in self.waiting(block) {
            self.bring(value);
            self.wait_for(value);
        }
    }

    /// Begins to read a value back, where it waits on disk and isn't on its way.
    fn bring(&mut self, value: ValueId) {
        if let (Some(at), None) = (self.spilled[value.0], self.live[value.0]) {
            let to = self.value_buffer(value, Kind::Checkpoint);
            self.instrs.push(Instr::Fetch { to, at });
            self.live[value.0] = Some(to);
        }
    }

    fn wait_for(&mut self, value: ValueId) {
        if let (Some(_), Some(to)) = (self.spilled[value.0].take(), self.live[value.0]) {
            self.instrs.push(Instr::Fetched { to });
        }
    }

    /// The backward pass of one block, stage by stage.
    fn backward_block(&mut self, block: usize) {
        let start = self.instrs.len();
        let output = self.inputs.get(block + 1).copied().or_else(|| self.last_output());
        let from = output.and_then(|output| self.grads[output.0]);
        for stage in STAGES.into_iter().rev() {
            let nodes = self.stage(block, stage);
            self.provide(block, stage, nodes.clone());
            self.open(block, stage);
            for at in nodes.rev() {
                self.differentiate(at);
            }
            self.close();
        }
        if let Some(from) = from {
            let (instrs, to) = (Region { start, end: self.instrs.len() }, self.grads[self.inputs[block].0]);
            self.passages.push(Passage { block, instrs, from, to });
        }
        for at in self.made(block) {
            self.live[at] = None;
        }
        self.live[self.inputs[block].0] = None;
    }

    /// What the last block makes for what comes after all blocks.
    fn last_output(&self) -> Option<ValueId> {
        (0..self.request.graph.values.len()).map(ValueId).find(|&value| self.is_last(value))
    }

    /// Computes what the stage's derivatives need from other stages and isn't there.
    fn provide(&mut self, block: usize, stage: Stage, nodes: Range<usize>) {
        let mut missing = Vec::new();
        for at in nodes {
            let node = self.node(at);
            if node.outputs.iter().any(|output| self.needs[output.0]) {
                for value in node.derivative_reads(self.request.graph, &self.needs) {
                    self.find_missing(value, &mut missing);
                }
            }
        }
        missing.sort_unstable();
        missing.dedup();
        for of in STAGES {
            let part: Vec<usize> = missing.iter().copied().filter(|&at| self.node(at).stage == of).collect();
            if part.is_empty() || of == stage {
                continue;
            }
            self.open(block, of);
            part.into_iter().for_each(|at| self.forward_node(at));
            self.close();
        }
    }

    /// The nodes that must run so that `value` is there.
    fn find_missing(&self, value: ValueId, missing: &mut Vec<usize>) {
        if self.live[value.0].is_some() {
            return;
        }
        let at = self.producers[value.0];
        if !missing.contains(&at) {
            missing.push(at);
            for &input in &self.node(at).inputs {
                self.find_missing(input, missing);
            }
        }
    }
}
