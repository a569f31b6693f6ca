//! A flat program: instructions over buffers of one arena. A buffer has a lifetime and an offset; nothing else is ever allocated.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use pocketune_kernels::activation::Act;
use pocketune_kernels::attention::Heads;
use pocketune_kernels::rope::Pairs;

use super::{Loss, Mode, States};
use crate::graph::{Added, Norm, ParamId, RopeId, VectorId, WeightId};

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
    /// Floats a token, where it is a value: a run of fewer tokens uses that much less of it.
    pub cols: Option<usize>,
    /// Whether it holds the rows of one piece at a time, inside a region.
    pub local: bool,
    /// First instruction that writes it.
    pub first: usize,
    /// Last instruction that reads or writes it.
    pub last: usize,
    /// Where it starts in the transient part of the arena, in floats.
    pub offset: usize,
}

/// How an instruction uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, whatever was there.
    Write,
    /// Reads and writes it.
    Update,
}

/// Where the gradient of a trainable matrix goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grad {
    /// Into a buffer that lives until the update.
    Once(Buf),
    /// Added to what the step has summed so far.
    Sum(ParamId),
}

/// One call of a kernel. `gx` pairs a buffer with whether the result is added to what it holds.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Instr {
    Embed {
        weight: WeightId,
        scale: f32,
        added: Option<Added>,
        out: Buf,
    },
    Norm {
        norm: Norm,
        x: Buf,
        out: Buf,
    },
    NormBackward {
        norm: Norm,
        x: Buf,
        g: Buf,
        gx: (Buf, bool),
    },
    LoraDown {
        a: ParamId,
        scale: f32,
        x: Buf,
        h: Buf,
        scratch: Buf,
    },
    LoraDownBackward {
        a: ParamId,
        x: Buf,
        gh: Buf,
        ga: Grad,
        scratch: Buf,
    },
    Linear {
        weight: WeightId,
        bias: Option<VectorId>,
        lora: Option<LoraAdd>,
        x: Buf,
        out: Buf,
        scratch: Buf,
    },
    LinearBackward {
        weight: WeightId,
        g: Buf,
        gx: Option<(Buf, bool)>,
        lora: Option<LoraUp>,
        scratch: Buf,
    },
    Rope {
        table: RopeId,
        d: usize,
        pairs: Pairs,
        x: Buf,
        inverse: bool,
    },
    Attention {
        heads: Heads,
        q: Buf,
        k: Buf,
        v: Buf,
        out: Buf,
        lse: Buf,
        scratch: Buf,
    },
    /// Attention over the block's cache, to which k and v are appended first.
    CachedAttention {
        block: usize,
        heads: Heads,
        q: Buf,
        k: Buf,
        v: Buf,
        out: Buf,
        lse: Buf,
        scratch: Buf,
    },
    AttentionBackward {
        heads: Heads,
        read: [Buf; 6],
        write: [Buf; 3],
        scratch: Buf,
    },
    Gated {
        act: Act,
        gate: Buf,
        up: Buf,
        out: Buf,
    },
    /// The gradients take the place of gate and up.
    GatedBackward {
        act: Act,
        gate: Buf,
        up: Buf,
        g: Buf,
    },
    /// In place where there is no `out`.
    Activation {
        act: Act,
        x: Buf,
        out: Option<Buf>,
    },
    /// The gradient takes the place of `x`.
    ActivationBackward {
        act: Act,
        x: Buf,
        g: Buf,
    },
    /// `to += from`.
    Add {
        from: Buf,
        to: Buf,
    },
    Copy {
        from: Buf,
        to: Buf,
    },
    CrossEntropy {
        weight: WeightId,
        bias: Option<VectorId>,
        loss: Loss,
        x: Buf,
        gx: Option<Buf>,
        work: Buf,
    },
    /// Logits of the last token.
    Logits {
        weight: WeightId,
        bias: Option<VectorId>,
        x: Buf,
        out: Buf,
        scratch: Buf,
    },
    /// Applies a gradient; `state` is room for an optimizer state that waits on disk.
    Update {
        param: ParamId,
        grad: Buf,
        state: Option<Buf>,
    },
    /// Begins to write a value to the spill file, at a float offset.
    Spill {
        from: Buf,
        at: usize,
    },
    /// Waits until the value is written; its buffer ends here.
    Spilled {
        from: Buf,
    },
    /// Begins to read a value back.
    Fetch {
        to: Buf,
        at: usize,
    },
    /// Waits until the value is there.
    Fetched {
        to: Buf,
    },
}

/// What an adapter adds to a linear: `h B`. Where `down` names A and a scale, `h` is made on the way: `scale x Aᵀ`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LoraAdd {
    pub b: ParamId,
    pub h: Buf,
    pub down: Option<(ParamId, f32)>,
}

/// The adapter's part of a linear's backward pass: `gB = hᵀ g`, `gh = scale g B`, and `gh A` is added to the input's gradient.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LoraUp {
    pub a: ParamId,
    pub b: ParamId,
    pub scale: f32,
    pub h: Buf,
    pub gh: Buf,
    pub gb: Grad,
}

impl Instr {
    /// The frozen matrix it reads.
    pub const fn weight(&self) -> Option<WeightId> {
        match self {
            Instr::Embed { weight, .. }
            | Instr::Linear { weight, .. }
            | Instr::LinearBackward { weight, gx: Some(_), .. }
            | Instr::CrossEntropy { weight, .. }
            | Instr::Logits { weight, .. } => Some(*weight),
            _ => None,
        }
    }

    /// Calls `see` for every buffer the instruction uses.
    pub fn buffers(&self, see: &mut dyn FnMut(Buf, Access)) {
        use Access::{Read, Update, Write};
        let target =
            |see: &mut dyn FnMut(Buf, Access), (buf, add): (Buf, bool)| see(buf, if add { Update } else { Write });
        let grad = |see: &mut dyn FnMut(Buf, Access), grad: Grad| {
            if let Grad::Once(buf) = grad {
                see(buf, Write);
            }
        };
        match *self {
            Instr::Embed { out, .. } => see(out, Write),
            Instr::Norm { x, out, .. } => {
                see(x, Read);
                see(out, Write);
            }
            Instr::NormBackward { x, g, gx, .. } => {
                see(x, Read);
                see(g, Read);
                target(see, gx);
            }
            Instr::LoraDown { x, h, scratch, .. } => {
                see(x, Read);
                see(h, Write);
                see(scratch, Write);
            }
            Instr::LoraDownBackward { x, gh, ga, scratch, .. } => {
                see(x, Read);
                see(gh, Read);
                grad(see, ga);
                see(scratch, Write);
            }
            Instr::Linear { lora, x, out, scratch, .. } => {
                see(x, Read);
                if let Some(LoraAdd { h, down, .. }) = lora {
                    see(h, if down.is_some() { Write } else { Read });
                }
                see(out, Write);
                see(scratch, Write);
            }
            Instr::LinearBackward { g, gx, lora, scratch, .. } => {
                see(g, Read);
                if let Some(gx) = gx {
                    target(see, gx);
                }
                if let Some(lora) = lora {
                    see(lora.h, Read);
                    see(lora.gh, Write);
                    grad(see, lora.gb);
                }
                see(scratch, Write);
            }
            Instr::Rope { x, .. } => see(x, Update),
            Instr::Attention { q, k, v, out, lse, scratch, .. }
            | Instr::CachedAttention { q, k, v, out, lse, scratch, .. } => {
                [q, k, v].into_iter().for_each(|buf| see(buf, Read));
                [out, lse, scratch].into_iter().for_each(|buf| see(buf, Write));
            }
            Instr::AttentionBackward { read, write, scratch, .. } => {
                read.into_iter().for_each(|buf| see(buf, Read));
                write.into_iter().chain([scratch]).for_each(|buf| see(buf, Write));
            }
            Instr::Gated { gate, up, out, .. } => {
                see(gate, Read);
                see(up, Read);
                see(out, Write);
            }
            Instr::GatedBackward { gate, up, g, .. } => {
                see(gate, Update);
                see(up, Update);
                see(g, Read);
            }
            Instr::Activation { x, out, .. } => {
                see(x, if out.is_some() { Read } else { Update });
                if let Some(out) = out {
                    see(out, Write);
                }
            }
            Instr::ActivationBackward { x, g, .. } => {
                see(x, Update);
                see(g, Read);
            }
            Instr::Add { from, to } => {
                see(from, Read);
                see(to, Update);
            }
            Instr::Copy { from, to } => {
                see(from, Read);
                see(to, Write);
            }
            Instr::CrossEntropy { x, gx, work, .. } => {
                see(x, Read);
                if let Some(gx) = gx {
                    see(gx, Write);
                }
                see(work, Write);
            }
            Instr::Logits { x, out, scratch, .. } => {
                see(x, Read);
                see(out, Write);
                see(scratch, Write);
            }
            Instr::Update { grad, state, .. } => {
                see(grad, Read);
                if let Some(state) = state {
                    see(state, Write);
                }
            }
            Instr::Spill { from, .. } | Instr::Spilled { from } => see(from, Read),
            Instr::Fetch { to, .. } => see(to, Write),
            Instr::Fetched { to } => see(to, Update),
        }
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
