//! The search for the fastest plan that fits: all combinations of what to keep, pieces, and residency, ordered by predicted time and
//! measured exactly, by laying the program out, until one fits.

use super::emit;
use super::flops::head_products;
use super::memory::{LARGE, MemoryPlan, Surroundings, weight_bytes};
use super::place::{self, Peaks};
use super::policy::{Keep, Policy, PolicyName, Roles, Spill};
use super::time::{Moment, Rates, Time, loss_seconds, moments, predict};
use super::{Instr, Layout, Machine, Mode, Program, Request, States};
use crate::backend::{DISK_STACK_BYTES, Stored};
use crate::graph::{Graph, Role, WeightId};

/// What a plan is for.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    /// The model with its adapters.
    pub graph: &'a Graph,
    /// How its weights are stored.
    pub stored: &'a [Stored],
    /// Most tokens of a record.
    pub length: usize,
    /// Most records of a batch.
    pub batch: usize,
    /// How often a step looks at every record: once, or once for each perturbed loss.
    pub groups: usize,
    /// How often a step goes over its batch.
    pub looks: usize,
    /// Floats of the log that a run keeps of its updates.
    pub log: usize,
    /// What the kernels run with.
    pub machine: Machine,
    /// What the program is for.
    pub mode: Mode,
    /// Whether a validation set is measured with the same memory.
    pub validates: bool,
    /// What the optimizer remembers.
    pub states: States,
    /// A policy that the user insists on; the rest is still searched.
    pub named: Option<PolicyName>,
    /// Whether values and states may go to disk.
    pub may_spill: bool,
    /// The process around the arena.
    pub around: Surroundings,
    /// How fast this machine is.
    pub rates: Rates,
    /// Floats of keys, and of values, that a block's cache holds a token, where text is generated.
    pub kv_width: usize,
}

/// A complete plan.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The choice.
    pub policy: Policy,
    /// The program.
    pub program: Program,
    /// The program for validation.
    pub validation: Option<Program>,
    /// The persistent part of the arena.
    pub layout: Layout,
    /// What it holds.
    pub memory: MemoryPlan,
    /// How long a step will take.
    pub time: Time,
    /// The step, instruction by instruction.
    pub moments: Vec<Moment>,
}

impl Plan {
    /// The peak of the process.
    pub fn peak(&self) -> usize {
        self.memory.peak()
    }

    /// Seconds of a step.
    pub fn seconds(&self) -> f64 {
        self.time.seconds(&self.policy)
    }

    /// Bytes that a step writes to disk.
    pub fn spilled(&self) -> usize {
        self.program.spill * 4
    }
}

/// Sets of kept roles from roomy to tight.
const LADDER: [Roles; 5] = [
    Roles::ALL,
    // What is cheap is computed again: norms and the gated product.
    Roles::of(&[
        Role::BlockInput,
        Role::Middle,
        Role::Projected,
        Role::Attended,
        Role::AttentionOut,
        Role::LogSumExp,
        Role::Ffn,
        Role::LowRank,
    ]),
    PolicyName::Selective.keeps(),
    // The feed-forward is computed again.
    Roles::of(&[Role::BlockInput, Role::Middle, Role::Attended, Role::AttentionOut, Role::LogSumExp, Role::LowRank]),
    PolicyName::Block.keeps(),
];

/// Rows of a piece; multiples of 32, so that sums over tokens are cut where the widest kernels cut them anyway.
const ROWS: [usize; 6] = [1024, 512, 256, 128, 64, 32];

/// Rows of head and loss at a time.
const LOSS_ROWS: [usize; 6] = [Policy::LOSS_ROWS, 256, 128, 64, 32, 16];

/// Peaks of up to this many hundredths of the smallest are about as small.
const NEAR: usize = 103;

/// A candidate with an estimate that never exceeds its exact peak.
struct Candidate {
    policy: Policy,
    least: usize,
    seconds: f64,
}

impl<'a> Setting<'a> {
    /// Records that a step goes through, each as often as it looks at it.
    fn records(&self) -> usize {
        self.batch * self.groups
    }

    /// Tokens of a pass.
    fn tokens(&self, policy: Policy) -> usize {
        self.length * self.records().min(policy.at_once)
    }

    /// Passes of a step.
    fn passes(&self, policy: Policy) -> f64 {
        (self.looks * self.records().div_ceil(policy.at_once)) as f64
    }

    fn request(&self, policy: Policy, mode: Mode) -> Request<'a> {
        // A validation looks at every record once.
        let tokens = if mode == self.mode { self.tokens(policy) } else { self.length * self.batch.min(policy.at_once) };
        Request {
            graph: self.graph,
            stored: self.stored,
            tokens,
            machine: self.machine,
            policy,
            mode,
            states: self.states,
        }
    }

    fn layout(&self, policy: Policy) -> Layout {
        let positions = if let Mode::Generate { context } = self.mode { context } else { self.length };
        Layout::new(self.graph, self.states, policy.page_optimizer, positions, self.mode, self.kv_width)
            .with_log(self.log)
    }

    /// The exact plan of a policy.
    pub fn plan(&self, policy: Policy) -> Plan {
        let program = super::compile(self.request(policy, self.mode));
        let validation = self.validates.then(|| super::compile(self.request(policy, Mode::Evaluate)));
        let layout = self.layout(policy);
        let programs: Vec<&Program> = [&program].into_iter().chain(&validation).collect();
        let memory = MemoryPlan::new(self.graph, self.stored, &layout, &programs, self.machine.threads, self.around);
        let time = self.time(&program, policy);
        let moments = moments(&program, &policy, self.graph, self.stored, self.rates, self.length);
        Plan { policy, program, validation, layout, memory, time, moments }
    }

    /// The time of a step, in as many passes as it has.
    fn time(&self, program: &Program, policy: Policy) -> Time {
        let pass = predict(program, self.graph, self.stored, self.rates, self.length);
        pass.times(self.passes(policy), program, self.graph, self.rates)
    }

    /// The plan that keeps everything in memory: no search finds a faster one.
    pub fn roomiest(&self) -> Plan {
        let keep = self.but_the_last(self.named.unwrap_or(PolicyName::None));
        self.plan(Policy { keep, ..Policy::named(PolicyName::None) })
    }

    /// The fastest plan of at most `budget` bytes.
    pub fn fastest(&self, budget: usize) -> Option<Plan> {
        self.search().fastest(budget)
    }

    /// The plan with the smallest peak.
    pub fn smallest(&self) -> Plan {
        self.search().smallest()
    }

    /// All candidates, for several questions.
    pub fn search(&self) -> Search<'_> {
        Search { setting: self, candidates: self.candidates() }
    }

    /// Every policy that the search considers.
    pub fn policies(&self) -> Vec<Policy> {
        self.candidates().into_iter().map(|candidate| candidate.policy).collect()
    }

    /// The smallest plan, or one close to it, found at once: everything waits on disk or is computed again, in the smallest pieces.
    pub fn tightest(&self) -> Plan {
        let keep = Keep::all(self.named.unwrap_or(PolicyName::Block).keeps());
        let page_optimizer = self.may_spill && self.states.any();
        let at_once = if self.mode == Mode::Perturb { 1 } else { usize::MAX };
        let rows = if self.graph.whole { usize::MAX } else { ROWS[ROWS.len() - 1] };
        let loss_rows = LOSS_ROWS[LOSS_ROWS.len() - 1];
        let root = if self.named.is_some() { 1 } else { (self.graph.blocks as f64).sqrt().round() as usize };
        let (spill, every) = if self.may_spill { (Spill::Tight, 1) } else { (Spill::No, root) };
        // What is mapped around a part that is read can be more than all weights.
        let weights = (0..self.graph.weights.len()).map(WeightId);
        let stream = weights.map(|id| weight_bytes(self.graph, self.stored, id, usize::MAX)).sum::<usize>() > LARGE;
        self.plan(Policy { keep, spill, every: [every, 1], at_once, rows, loss_rows, stream, page_optimizer })
    }

    /// Whether there is a plan of at most `budget` bytes. The search is asked only where it may find one and the tightest is too large: a
    /// small model's values take less than the thread that brings them to the disk, and the order of buffers can leave gaps.
    pub fn fits(&self, budget: usize) -> bool {
        let tightest = self.tightest().peak();
        tightest <= budget || (tightest <= budget + DISK_STACK_BYTES + (1 << 20) && self.smallest().peak() <= budget)
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        for (keep, spill, every) in self.keeps() {
            for at_once in self.at_once() {
                let whole = Policy { keep, spill, every, at_once, ..Policy::named(PolicyName::None) };
                for rows in self.rows(whole) {
                    // Pieces are for when memory is tight: then a block keeps the same everywhere.
                    if rows == usize::MAX || keep.split == 0 {
                        self.variants(Policy { rows, ..whole }, &mut candidates);
                    }
                }
            }
        }
        candidates
    }

    /// What a named policy keeps, of all blocks but the last: the derivative of that one comes next, so what was dropped of it would be computed again at once.
    fn but_the_last(&self, name: PolicyName) -> Keep {
        Keep { first: name.keeps(), rest: Roles::ALL, split: self.graph.blocks.saturating_sub(1) }
    }

    /// Records of groups in a pass: all, and halves down to one, where nothing is kept from pass to pass.
    fn at_once(&self) -> Vec<usize> {
        let mut at_once = vec![usize::MAX];
        if self.mode == Mode::Perturb {
            at_once
                .extend(std::iter::successors(Some(self.records().div_ceil(2)), |&n| (n > 1).then(|| n.div_ceil(2))));
            at_once.retain(|&n| n == usize::MAX || n < self.records());
        }
        at_once
    }

    /// What to keep, where, and at which blocks.
    fn keeps(&self) -> Vec<(Keep, Spill, [usize; 2])> {
        let blocks = self.graph.blocks;
        if let Some(name) = self.named {
            let spills: &[Spill] = if self.may_spill { &[Spill::No, Spill::Ahead, Spill::Tight] } else { &[Spill::No] };
            let same = spills.iter().map(|&spill| (Keep::all(name.keeps()), spill, [1, 1]));
            return same.chain([(self.but_the_last(name), Spill::No, [1, 1])]).collect();
        }
        if matches!(self.mode, Mode::Evaluate | Mode::Perturb | Mode::Generate { .. }) {
            return vec![(Keep::all(PolicyName::Block.keeps()), Spill::No, [1, 1])];
        }
        let mut keeps: Vec<(Keep, Spill, [usize; 2])> = Vec::new();
        for (at, &roles) in LADDER.iter().enumerate() {
            keeps.push((Keep::all(roles), Spill::No, [1, 1]));
            if let Some(&tighter) = LADDER.get(at + 1) {
                // The first blocks wait longest, so they keep least.
                for eighths in 1..8 {
                    let keep = Keep { first: tighter, rest: roles, split: blocks * eighths / 8 };
                    keeps.push((keep, Spill::No, [1, 1]));
                }
            }
        }
        keeps.push((self.but_the_last(PolicyName::Block), Spill::No, [1, 1]));
        let block = Keep::all(PolicyName::Block.keeps());
        let root = (blocks as f64).sqrt().round() as usize;
        let mut spans =
            vec![[2, 1], [3, 1], [4, 1], [root, 1], [2 * root, 1], [2 * root, root], [blocks, root], [blocks, 1]];
        spans.retain(|span| span[0] > 1 && span[0] <= blocks && span[1] < span[0]);
        spans.sort_unstable();
        spans.dedup();
        keeps.extend(spans.into_iter().map(|span| (block, Spill::No, span)));
        if self.may_spill {
            keeps.push((block, Spill::Ahead, [1, 1]));
            keeps.push((block, Spill::Tight, [1, 1]));
            keeps.push((Keep::all(PolicyName::Selective.keeps()), Spill::Ahead, [1, 1]));
        }
        keeps
    }

    /// Rows of a piece.
    fn rows(&self, policy: Policy) -> Vec<usize> {
        let mut rows = vec![usize::MAX];
        // The gradient of one of the model's matrices is made of all rows at once; and where it is moved, every piece draws its numbers again.
        if self.graph.whole {
            return rows;
        }
        rows.extend(ROWS.into_iter().filter(|&rows| rows < self.tokens(policy)));
        rows
    }

    /// Rows of head and loss at a time.
    fn loss_rows(&self, policy: Policy) -> impl Iterator<Item = usize> + use<> {
        let tokens = self.tokens(policy);
        LOSS_ROWS.into_iter().filter(move |&rows| rows == Policy::LOSS_ROWS || rows < tokens)
    }

    /// Adds the candidates that differ from `policy` in the loss and in residency. One emission serves all of them: the loss's work
    /// is alive at one instruction, residency adds up, and so do their times.
    fn variants(&self, policy: Policy, candidates: &mut Vec<Candidate>) {
        let mut program = emit::emit(self.request(policy, self.mode));
        let Peaks { elsewhere, beside_loss } = place::peaks(&mut program);
        let (tokens, passes) = (self.tokens(policy) as f64, self.passes(policy));
        let time = self.time(&program, policy);
        let head = program.instrs.iter().find_map(|instr| match instr {
            Instr::CrossEntropy { weight, .. } => Some((*weight, head_products(instr))),
            _ => None,
        });
        for page_optimizer in [false, true].into_iter().filter(|page| !page || (self.states.any() && self.may_spill)) {
            let layout = self.layout(Policy { page_optimizer, ..policy });
            for stream in [false, true] {
                program.stream = stream;
                program.len = 0;
                let mut memory =
                    MemoryPlan::new(self.graph, self.stored, &layout, &[&program], self.machine.threads, self.around);
                for loss_rows in self.loss_rows(policy) {
                    let policy = Policy { loss_rows, stream, page_optimizer, ..policy };
                    let work = emit::loss_work(self.request(policy, self.mode));
                    memory.program = 4 * elsewhere.max(beside_loss + work);
                    let loss_time = head.map_or(0.0, |(weight, products)| {
                        passes * loss_seconds(self.graph, weight, loss_rows, tokens, products, self.rates)
                    });
                    let seconds = Time { loss: loss_time, ..time }.seconds(&policy);
                    candidates.push(Candidate { policy, least: memory.peak(), seconds });
                }
            }
        }
    }
}

/// The candidates of a setting and their estimates, to be asked for the best of them.
pub struct Search<'a> {
    setting: &'a Setting<'a>,
    candidates: Vec<Candidate>,
}

impl Search<'_> {
    /// The fastest plan of at most `budget` bytes.
    pub fn fastest(&self, budget: usize) -> Option<Plan> {
        let fit = self.by_time().into_iter().filter(|candidate| candidate.least <= budget);
        fit.map(|candidate| self.setting.plan(candidate.policy)).find(|plan| plan.peak() <= budget)
    }

    /// The plan with the smallest peak.
    pub fn smallest(&self) -> Plan {
        let mut candidates: Vec<&Candidate> = self.candidates.iter().collect();
        candidates.sort_by_key(|candidate| candidate.least);
        let mut best: Option<Plan> = None;
        for candidate in candidates {
            if best.as_ref().is_some_and(|best| best.peak() <= candidate.least) {
                break;
            }
            let plan = self.setting.plan(candidate.policy);
            if best.as_ref().is_none_or(|best| plan.peak() < best.peak()) {
                best = Some(plan);
            }
        }
        best.expect("there are always candidates")
    }

    /// The fastest plan among those that are about as small as `smallest`: the last hundredths of memory can cost a sixth of the time.
    pub fn small(&self, smallest: Plan) -> Plan {
        self.fastest(smallest.peak() * NEAR / 100).unwrap_or(smallest)
    }

    /// Plans from the fastest to the smallest, each faster than all that are smaller; at most `most` of them.
    pub fn frontier(&self, most: usize) -> Vec<Plan> {
        let mut kept: Vec<&Candidate> = Vec::new();
        for candidate in self.by_time() {
            if kept.last().is_none_or(|last| candidate.least < last.least * 49 / 50) {
                kept.push(candidate);
            }
        }
        let step = kept.len().div_ceil(most.max(1)).max(1);
        let last = kept.len().saturating_sub(1);
        let picked = kept.iter().enumerate().filter(|(at, _)| at % step == 0 || *at == last);
        picked.map(|(_, candidate)| self.setting.plan(candidate.policy)).collect()
    }

    fn by_time(&self) -> Vec<&Candidate> {
        let mut candidates: Vec<&Candidate> = self.candidates.iter().collect();
        candidates.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.least.cmp(&b.least)));
        candidates
    }
}
