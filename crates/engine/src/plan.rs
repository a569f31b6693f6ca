//! Turns a graph into a flat program over one arena: what is kept and what is recomputed, in which order, and at which offset
//! everything lies. The same program is walked by the simulator, by the reports and by the backend. No data is touched here.

mod emit;
mod flops;
mod instr;
mod layout;
mod learning;
mod memory;
mod moving;
mod picture;
mod place;
mod policy;
mod program;
mod search;
mod time;

pub use flops::Flops;
pub(crate) use flops::{ATTENTION, ATTENTION_BACKWARD};
pub use instr::{Access, By, Embedded, Grad, HeadBehind, Instr, LoraAdd, LoraUp};
pub use layout::{Layout, Span, States};
pub use learning::Learning;
pub(crate) use memory::LARGE;
pub use memory::{MemoryPlan, Surroundings};
pub(crate) use moving::{strip_rows, strips};
pub use picture::{Canvas, Sample, picture, ticks};
pub use policy::{Keep, Policy, PolicyName, Roles, Spill};
pub use program::{Buf, Buffer, Kind, Passage, Program, Region};
pub use search::{Plan, Setting};
pub use time::{Moment, Rates, Time};

use pocketune_kernels::Isa;
use pocketune_kernels::matmul::Precision;

use crate::backend::Stored;
use crate::graph::Graph;

/// What the kernels run with; it decides how much scratch memory they need.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Threads that share a step.
    pub threads: usize,
    /// The instruction set.
    pub isa: Isa,
    /// What matrix inputs are rounded to.
    pub precision: Precision,
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Forward and backward; every gradient is applied when it is complete and its memory reused at once.
    TrainAndUpdate,
    /// Forward and backward; gradients add up in memory of their own until they are applied.
    Accumulate,
    /// Forward up to the loss.
    Evaluate,
    /// The same, with what is trained moved, for every group of rows along its own direction.
    Perturb,
    /// Forward over a cache of keys and values, up to the logits of the last token.
    Generate {
        /// Most tokens that the cache holds.
        context: usize,
    },
}

/// Everything a program depends on.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The model.
    pub graph: &'a Graph,
    /// How each of the graph's weights is stored.
    pub stored: &'a [Stored],
    /// Most tokens a run of the program handles.
    pub tokens: usize,
    /// What the kernels run with.
    pub machine: Machine,
    /// What is kept for the backward pass.
    pub policy: Policy,
    /// What the program is for.
    pub mode: Mode,
    /// What the optimizer remembers.
    pub states: States,
}

/// Compiles the program for `request`.
pub fn compile(request: Request) -> Program {
    let mut program = emit::emit(request);
    place::place(&mut program);
    program.len = program.len.max(states_passing_through(request)).max(moving::step(request));
    program.check();
    program
}

/// Floats that paged states need at the start of the program's part when gradient sums are applied, between two runs.
fn states_passing_through(request: Request) -> usize {
    if request.mode != Mode::Accumulate || !request.policy.page_optimizer {
        return 0;
    }
    request.graph.params.iter().map(|param| request.states.of(param)).max().unwrap_or(0)
}
