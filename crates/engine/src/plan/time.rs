//! How long a program will take, from the rates that this machine's kernels and disk reach.

use serde::{Deserialize, Serialize};

use super::flops::{Work, head_products, work};
use super::memory::{mapped, weight_bytes};
use super::{Instr, Mode, Policy, Program, Spill, States};
use crate::backend::Stored;
use crate::graph::{Graph, ParamId, WeightId};

/// Rates of this machine, for all threads together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Flops a second of a large product with a frozen matrix.
    pub product: f64,
    /// Flops a second of an adapter's thin products.
    pub thin: f64,
    /// Frozen numbers a second that are dequantised for another pass over the same weight.
    pub dequantise: f64,
    /// Flops a second of attention.
    pub attention: f64,
    /// Bytes a second of a pass over values.
    pub pass: f64,
    /// Bytes a second to the spill file.
    pub write: f64,
    /// Bytes a second from it.
    pub read: f64,
}

impl Rates {
    /// What a plain laptop core reaches; for plans where nothing was measured.
    pub const TYPICAL: Rates =
        Rates { product: 1e11, thin: 4e10, dequantise: 2e9, attention: 3e10, pass: 5e9, write: 4e8, read: 8e8 };
}

impl Rates {
    /// Whether all of them are numbers above zero.
    pub fn plausible(&self) -> bool {
        let Rates { product, thin, dequantise, attention, pass, write, read } = *self;
        [product, thin, dequantise, attention, pass, write, read].iter().all(|rate| *rate > 0.0 && rate.is_finite())
    }
}

/// How much longer attention takes in a plan that works on pieces of rows: it has no room to keep what it makes of keys. Measured on AMX (1.13 forward, 1.25 backward);
/// elsewhere nothing is kept, and a plan with room for whole rows is no slower either.
const ATTENTION_BY_PIECES: f64 = 1.2;

/// The predicted time of a step, by what can be chosen apart from each other; in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time {
    /// Computing, but for the loss.
    pub compute: f64,
    /// Head and loss.
    pub loss: f64,
    /// Mapping weights in again after they were released.
    pub stream: f64,
    /// The optimizer's state from and to disk.
    pub page: f64,
    /// Values to and from disk.
    pub disk: f64,
    /// Flops of all products, with as many targets as tokens.
    pub flops: f64,
}

impl Time {
    /// That of so many passes of `program`, each of which dequantises all weights anew.
    pub fn times(self, passes: f64, program: &Program, graph: &Graph, rates: Rates) -> Self {
        let Time { compute, loss, stream, page, disk, flops } = self;
        let numbers = |weight: WeightId| graph.weights[weight.0].rows as f64 * graph.weights[weight.0].cols as f64;
        let read =
            program.instrs.iter().filter(|instr| !matches!(instr, Instr::Embed { .. })).filter_map(Instr::weight);
        let again = (passes - 1.0) * read.map(numbers).sum::<f64>() / rates.dequantise;
        let [compute, loss, stream, page, disk, flops] = [compute, loss, stream, page, disk, flops].map(|x| x * passes);
        Time { compute: compute + again, loss, stream, page, disk, flops }
    }

    /// The same without a share of `other`.
    fn take_away(&mut self, other: Time, share: f64) {
        let Time { compute, loss, stream, page, disk, flops } = self;
        let parts = [compute, loss, stream, page, disk, flops];
        let others = [other.compute, other.loss, other.stream, other.page, other.disk, other.flops];
        parts.into_iter().zip(others).for_each(|(part, other)| *part -= share * other);
    }

    /// Seconds of a step under `policy`.
    pub fn seconds(&self, policy: &Policy) -> f64 {
        let stream = if policy.stream { self.stream } else { 0.0 };
        let page = if policy.page_optimizer { self.page } else { 0.0 };
        let compute = self.compute + self.loss + stream + page;
        match policy.spill {
            // What the disk does while the processor computes is not free: it takes memory bandwidth.
            Spill::Ahead => compute.max(self.disk) + 0.1 * compute.min(self.disk),
            Spill::No | Spill::Tight => compute + self.disk,
        }
    }
}

/// Predicts a run of `program` on all the tokens it can take, in records of `length`.
pub fn predict(program: &Program, graph: &Graph, stored: &[Stored], rates: Rates, length: usize) -> Time {
    let mut time = Time::default();
    let clock = Clock { program, graph, stored, rates, length };
    clock.walk(|at, times| clock.add(&program.instrs[at], times, &mut time));
    clock.add_applying(&mut time);
    clock.take_away_rests(&mut time);
    time
}

/// One instruction of a step as the memory picture shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// Seconds it takes; what the disk does meanwhile is left out.
    pub seconds: f64,
    /// Bytes of weights that are mapped while it runs.
    pub weights: usize,
}

/// The moments of a step, one an instruction, and a last one where gradient sums are applied at the end.
pub fn moments(
    program: &Program,
    policy: &Policy,
    graph: &Graph,
    stored: &[Stored],
    rates: Rates,
    length: usize,
) -> Vec<Moment> {
    let clock = Clock { program, graph, stored, rates, length };
    let always = mapped(graph, stored, program, None);
    let mut moments = Vec::with_capacity(program.instrs.len() + 1);
    clock.walk(|at, times| {
        let instr = &program.instrs[at];
        moments.push(Moment {
            seconds: clock.seconds_of(instr, times, policy),
            weights: if program.stream { mapped(graph, stored, program, Some(instr)) } else { always },
        });
    });
    if program.mode == Mode::Accumulate {
        let mut time = Time::default();
        clock.add_applying(&mut time);
        moments.push(Moment { seconds: time.seconds(policy), weights: always });
    }
    moments
}

/// What the time of an instruction depends on.
struct Clock<'a> {
    program: &'a Program,
    graph: &'a Graph,
    stored: &'a [Stored],
    rates: Rates,
    length: usize,
}

impl Clock<'_> {
    /// Calls `see` with every instruction's number and how many times it runs.
    fn walk(&self, mut see: impl FnMut(usize, f64)) {
        let Program { regions, instrs, tokens, rows, .. } = self.program;
        let passes = if regions.is_empty() { 1.0 } else { (*tokens as f64 / *rows as f64).ceil() };
        let mut regions = regions.iter().peekable();
        for at in 0..instrs.len() {
            while regions.next_if(|region| region.end <= at).is_some() {}
            see(at, if regions.peek().is_some_and(|region| region.start <= at) { passes } else { 1.0 });
        }
    }

    /// Seconds of one instruction that runs `times` times. A spill file that is written ahead is waited for by nobody.
    fn seconds_of(&self, instr: &Instr, times: f64, policy: &Policy) -> f64 {
        let mut time = Time::default();
        self.add(instr, times, &mut time);
        if policy.spill == Spill::Ahead {
            time.disk = 0.0;
        }
        time.seconds(policy)
    }

    /// Adds one instruction that runs `times` times.
    fn add(&self, instr: &Instr, times: f64, time: &mut Time) {
        let Clock { program, graph, stored, rates, length } = *self;
        let n = program.tokens as f64;
        let Work { frozen, added, thin, attention, window, head } = work(instr, graph);
        // Flops at each rate, numbers dequantised once more, and bytes passed over.
        let passes = times * (n / times / ROWS_AT_ONCE).ceil();
        let (attended, again) = (attention * n * window.mean(length as f64), (passes - 1.0).max(0.0) * frozen / 2.0);
        let attended_as = if program.regions.is_empty() { attended } else { ATTENTION_BY_PIECES * attended };
        let mut bytes = 0.0;
        match *instr {
            Instr::Linear { weight, .. } | Instr::LinearBackward { weight, .. } => {
                let decl = &graph.weights[weight.0];
                let width = 4.0 * (decl.rows + decl.cols) as f64;
                if width * n / times > NEAR {
                    bytes = width * n;
                }
            }
            Instr::LoraDown { .. } | Instr::LoraDownBackward { .. } => {}
            Instr::VeraDown { .. } | Instr::VeraDownBackward { .. } => {}
            // Once a step, in whatever pieces: after the first the lengths are known.
            Instr::Lengths { weight, a, .. } => {
                let (decl, rank) = (&graph.weights[weight.0], graph.params[a.0].rank as f64);
                let elements = decl.rows as f64 * decl.cols as f64;
                time.compute += elements * (1.0 / rates.dequantise + rank / rates.pass);
            }
            Instr::Attention { .. } | Instr::CachedAttention { .. } | Instr::AttentionBackward { .. } => {}
            Instr::CrossEntropy { weight, rows, .. } => {
                time.loss += loss_seconds(graph, weight, rows, n, head_products(instr), rates);
            }
            Instr::Update { param: id, .. } => {
                bytes = update_bytes(program.states, graph.params[id.0].len());
                time.page += self.paging(program.states.in_use(&graph.params[id.0]));
            }
            Instr::Learn { weight, param, .. } => {
                bytes = update_bytes(program.states, graph.params[param.0].len());
                self.add_storing(weight, param, time);
            }
            Instr::LearnTable { weight, param, ref how, head, .. } => {
                let products = if head.is_some() { 2.0 * how.times as f64 } else { 0.0 };
                time.compute += loss_seconds(graph, weight, how.logit_rows.max(1), n, products, rates);
                bytes = update_bytes(program.states, graph.params[param.0].len());
                self.add_storing(weight, param, time);
            }
            Instr::Spill { from, .. } => time.disk += 4.0 * program.buffers[from.0].len as f64 / rates.write,
            Instr::Fetch { to, .. } => time.disk += 4.0 * program.buffers[to.0].len as f64 / rates.read,
            Instr::Spilled { .. } | Instr::Fetched { .. } => {}
            ref other => {
                other.buffers(&mut |buf, _| bytes += 4.0 * n * program.buffers[buf.0].floats(2) as f64 / 2.0);
            }
        }
        time.flops += n * (frozen + added + thin + head) + attended;
        time.compute += n * (frozen + added) / rates.product + n * thin / rates.thin + attended_as / rates.attention;
        time.compute += again / rates.dequantise + bytes / rates.pass;
        if let Some(weight) = instr.weight() {
            time.stream += times * weight_bytes(graph, stored, weight, usize::MAX) as f64 / MAPPING;
        }
    }

    /// Adds writing a matrix of the model, and its state both ways where that waits on disk.
    fn add_storing(&self, weight: WeightId, param: ParamId, time: &mut Time) {
        time.compute += weight_bytes(self.graph, self.stored, weight, usize::MAX) as f64 / self.rates.write;
        time.page += self.paging(self.program.states.in_use(&self.graph.params[param.0]));
    }

    /// Seconds to read and write so many floats of state.
    fn paging(&self, floats: usize) -> f64 {
        4.0 * floats as f64 * (1.0 / self.rates.read + 1.0 / self.rates.write)
    }

    /// Where blocks take turns, takes away what a step leaves out on average: learning in those that rest, and the backward pass below the first that learns.
    fn take_away_rests(&self, time: &mut Time) {
        let Some(turns) = self.graph.turns else { return };
        let blocks = self.graph.blocks;
        for passage in &self.program.passages {
            let (learns, reached) = (turns.chance(blocks), turns.reach(passage.block, blocks));
            for instr in &self.program.instrs[passage.instrs.start..passage.instrs.end] {
                let mut one = Time::default();
                self.add(instr, 1.0, &mut one);
                time.take_away(one, 1.0 - if instr.teaches() { learns } else { reached });
            }
        }
    }

    /// Adds applying the gradient sums, where a step has them.
    fn add_applying(&self, time: &mut Time) {
        if self.program.mode == Mode::Accumulate {
            let trainable = self.graph.trainable();
            time.compute += update_bytes(self.program.states, trainable) / self.rates.pass;
            time.page += self.paging(self.program.states.floats(trainable));
        }
    }
}

/// The update of `len` numbers as bytes of a pass: the gradient once, the matrix and the state both ways. Rounding to 8 bits computes so much
/// that it takes four times as long as the update in f32.
fn update_bytes(states: States, len: usize) -> f64 {
    let bytes = match states {
        States::None => 12,
        States::F32 => 28,
        States::Bits8 => 4 * 28,
        // The gradient three times, and the matrix twice to read and once to write.
        States::Factored => 24,
        States::Projected(_) => 20,
        // Both moments are rebuilt three times from factors that are near: 20 updates of SmolLM2-135M took no longer than APOLLO's.
        States::Compressed => 28,
        // A thin product each way.
        States::Subspace(_) => 2 * 28,
    };
    (bytes * len) as f64
}

/// Rows that a product handles with one dequantisation of its weight.
const ROWS_AT_ONCE: f64 = 512.0;

/// Bytes of values that are still near (in a second-level cache) when the next instruction reads them. Where a product has more, another pass
/// over them is counted: 1,024 rows of SmolLM2 took a seventh longer at once than in four pieces.
const NEAR: f64 = 3e6;

/// Bytes a second at which released pages are mapped in again from the system's cache.
const MAPPING: f64 = 2e10;

/// Seconds of head and loss with so many `products`: the head is dequantised for every piece of rows, and each product's logits are passed
/// over once while they are near.
pub fn loss_seconds(graph: &Graph, weight: WeightId, rows: usize, n: f64, products: f64, rates: Rates) -> f64 {
    let decl = &graph.weights[weight.0];
    let numbers = decl.rows as f64 * decl.cols as f64;
    let pieces = (n / (rows as f64).min(n)).ceil();
    products * (2.0 * n * numbers / rates.product + (pieces - 1.0) * numbers / rates.dequantise)
        + products * 4.0 * n * decl.rows as f64 / rates.pass
}
