//! A flat program: instructions over buffers of one arena. A buffer has a lifetime and an offset; nothing else is ever allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use super::{Access, Instr, Mode, States};

/// A buffer of a program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Buf(pub usize);

/// What a buffer holds, for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A value that waits for the backward pass.
    Checkpoint,
    /// A value or gradient in use.
    Work,
    /// Logits and what belongs to them.
    Loss,
    /// The gradient of a trainable matrix.
    Gradient,
    /// A kernel's scratch memory.
    Scratch,
}

/// A stretch of the arena for part of a program.
#[derive(Clone, Debug)]
pub struct Buffer {
    /// What it is, for reports.
    pub name: &'static str,
    /// The block it belongs to.
    pub block: Option<usize>,
    /// What it holds.
    pub kind: Kind,
    /// Length in floats, for as many tokens as the program handles at most.
    pub len: usize,
    /// Elements a token, where it is a value: a run of fewer tokens uses that much less of it.
    pub cols: Option<usize>,
    /// Whether these are bf16, two in the place of a float.
    pub half: bool,
    /// Whether it holds the rows of one piece at a time, inside a region.
    pub local: bool,
    /// First instruction that writes it.
    pub first: usize,
    /// Last instruction that reads or writes it.
    pub last: usize,
    /// Where it starts in the transient part of the arena, in floats.
    pub offset: usize,
}

impl Buffer {
    /// Floats that `rows` of a value take.
    pub fn floats(&self, rows: usize) -> usize {
        let elements = self.cols.unwrap_or(0) * rows;
        if self.half { elements.div_ceil(2) } else { elements }
    }
}

/// Instructions that are run for one piece of rows after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First instruction.
    pub start: usize,
    /// One past the last.
    pub end: usize,
}

/// The backward pass of one block: what may be left out, so that the gradient passes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The block.
    pub block: usize,
    /// Its instructions.
    pub instrs: Region,
    /// The gradient of its output.
    pub from: Buf,
    /// The gradient of its input, where one is asked for.
    pub to: Option<Buf>,
}

/// Instructions, buffers and the size of the arena's transient part.
#[derive(Clone, Debug)]
pub struct Program {
    /// What it is for.
    pub mode: Mode,
    /// What the optimizer remembers.
    pub states: States,
    /// Most tokens a run handles.
    pub tokens: usize,
    /// Rows of a piece inside regions.
    pub rows: usize,
    /// Whether weights are released after use.
    pub stream: bool,
    /// The calls, in order.
    pub instrs: Vec<Instr>,
    /// Which of them loop over pieces, in order, apart from each other.
    pub regions: Vec<Region>,
    /// The backward passes of blocks, in order.
    pub passages: Vec<Passage>,
    /// Floats of the spill file.
    pub spill: usize,
    /// The stretches of the arena they use.
    pub buffers: Vec<Buffer>,
    /// The buffer that holds the logits at the end, for [`Mode::Generate`].
    pub logits: Option<Buf>,
    /// Floats of the arena's transient part.
    pub len: usize,
}

impl Program {
    /// Blocks that its buffers belong to.
    pub fn blocks(&self) -> usize {
        self.buffers.iter().filter_map(|buffer| buffer.block).max().map_or(0, |last| last + 1)
    }

    /// Floats alive while instruction `at` runs.
    pub fn live(&self, at: usize) -> usize {
        self.buffers.iter().filter(|buffer| buffer.first <= at && at <= buffer.last).map(|buffer| buffer.len).sum()
    }

    /// Goes through time with the set of buffers alive, ordered by offset: a newcomer may touch neither neighbour.
    fn check_overlaps(&self) {
        let mut by_first: Vec<&Buffer> = self.buffers.iter().collect();
        by_first.sort_by_key(|buffer| buffer.first);
        let mut alive: BTreeMap<usize, &Buffer> = BTreeMap::new();
        let mut ends: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        for new in by_first {
            assert!(new.first <= new.last && new.offset + new.len <= self.len, "buffer {} lies outside", new.name);
            while ends.peek().is_some_and(|Reverse((last, _))| *last < new.first) {
                if let Some(Reverse((_, offset))) = ends.pop() {
                    alive.remove(&offset);
                }
            }
            let below = alive.range(..=new.offset).next_back();
            assert!(below.is_none_or(|(_, b)| b.offset + b.len <= new.offset), "{} overlaps what lies below", new.name);
            let above = alive.range(new.offset..).next();
            assert!(
                above.is_none_or(|(_, b)| new.offset + new.len <= b.offset),
                "{} overlaps what lies above",
                new.name
            );
            alive.insert(new.offset, new);
            ends.push(Reverse((new.last, new.offset)));
        }
    }

    /// Verifies what the backend's memory safety rests on: buffers alive together do not overlap, lie inside the arena, and are
    /// written before they are read; no instruction uses one buffer twice if it writes it.
    ///
    /// # Panics
    /// When the planner made a mistake.
    pub fn check(&self) {
        self.check_overlaps();
        let mut written = vec![false; self.buffers.len()];
        let mut regions = self.regions.iter().peekable();
        let mut seen: Vec<(Buf, Access)> = Vec::new();
        for (at, instr) in self.instrs.iter().enumerate() {
            while regions.next_if(|region| region.end <= at).is_some() {}
            let inside = regions.peek().is_some_and(|region| region.start <= at);
            seen.clear();
            instr.buffers(&mut |buf, access| {
                assert!(access == Access::Write || written[buf.0], "instruction {at} reads an unwritten buffer");
                assert!(inside || !self.buffers[buf.0].local, "instruction {at} uses a piece outside its region");
                let clash =
                    seen.iter().any(|&(other, a)| other == buf && (a != Access::Read || access != Access::Read));
                assert!(!clash, "instruction {at} {instr:?} uses a buffer twice");
                seen.push((buf, access));
            });
            for &(buf, access) in &seen {
                written[buf.0] |= access != Access::Read;
            }
        }
    }
}
