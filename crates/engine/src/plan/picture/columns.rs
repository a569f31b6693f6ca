//! One step cut into columns of equal time, each with what is held there by what it is for. A column shows its highest moment whole,
//! so that its parts add up to something that is really held at once; nothing is averaged and no peak is lost.

use crate::plan::{Buffer, Kind, Plan};

/// Most columns of a picture.
const MOST: usize = 600;

/// What a band of the picture stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Band {
    /// The process before the arena, and the stacks of its threads.
    Process,
    /// Norm weights, biases, rotation tables, the rows of a batch.
    Tables,
    /// The adapter.
    Adapter,
    /// The optimizer's state in memory.
    Optimizer,
    /// Gradient sums.
    Sums,
    /// Mapped weights.
    Weights,
    /// Buffers of the program.
    Alive(Kind),
    /// What the arena holds beside them: it was used before or will be later in the step.
    Free,
}

impl Band {
    const COUNT: usize = 12;

    /// From the bottom up: what never changes first, so that the rest is not shaken by it; streamed weights come and go, so they are
    /// on top.
    pub fn order(streamed: bool) -> [Band; Self::COUNT] {
        use Band::{Adapter, Alive, Free, Optimizer, Process, Sums, Tables, Weights};
        let alive = [Kind::Checkpoint, Kind::Work, Kind::Loss, Kind::Gradient, Kind::Scratch].map(Alive);
        let [a, b, c, d, e] = alive;
        match streamed {
            true => [Process, Tables, Adapter, Optimizer, Sums, a, b, c, d, e, Free, Weights],
            false => [Process, Weights, Tables, Adapter, Optimizer, Sums, a, b, c, d, e, Free],
        }
    }

    /// The word for it and its colour.
    pub const fn look(self) -> (&'static str, &'static str) {
        match self {
            Band::Process => ("process", "#b8bcc4"),
            Band::Tables => ("tables", "#8d99ae"),
            Band::Adapter => ("adapter", "#7b5ea7"),
            Band::Optimizer => ("optimizer", "#b39ddb"),
            Band::Sums => ("gradient sums", "#d81b60"),
            Band::Weights => ("weights, mapped", "#c9b79c"),
            Band::Alive(Kind::Checkpoint) => ("checkpoints", "#2f6fb5"),
            Band::Alive(Kind::Work) => ("block work", "#f0a04b"),
            Band::Alive(Kind::Loss) => ("loss", "#d1495b"),
            Band::Alive(Kind::Gradient) => ("gradients", "#3a9d6e"),
            Band::Alive(Kind::Scratch) => ("scratch", "#e6cf4f"),
            Band::Free => ("arena, free now", "#edf1f5"),
        }
    }
}

/// What is held while one instruction runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The instruction.
    pub at: usize,
    /// Bytes of mapped weights.
    pub weights: usize,
    /// Bytes alive in the program's part of the arena, by kind.
    pub alive: [usize; 5],
}

impl Held {
    /// Bytes alive in the program's part of the arena.
    pub fn used(&self) -> usize {
        self.alive.iter().sum()
    }

    /// Bytes of a band.
    pub fn band(&self, band: Band, plan: &Plan) -> usize {
        let memory = &plan.memory;
        match band {
            Band::Process => memory.process + memory.stacks,
            Band::Tables => memory.tables,
            Band::Adapter => memory.adapter,
            Band::Optimizer => memory.optimizer,
            Band::Sums => memory.gradients,
            Band::Weights => self.weights,
            Band::Alive(kind) => self.alive[kind as usize],
            Band::Free => memory.program.saturating_sub(self.used()),
        }
    }

    /// Bytes of all bands: what the process is planned to hold.
    pub fn total(&self, plan: &Plan) -> usize {
        Band::order(false).iter().map(|&band| self.band(band, plan)).sum()
    }

    /// By what is planned to be resident, then by what of it is in use.
    fn height(&self) -> (usize, usize) {
        (self.weights, self.used())
    }
}

/// A part of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// The word for it.
    pub name: &'static str,
    /// Seconds at which it starts and ends.
    pub span: [f64; 2],
}

/// A step over time.
pub struct Step {
    /// The columns, of equal time.
    pub columns: Vec<Held>,
    /// Seconds of the step.
    pub seconds: f64,
    /// Seconds at which every instruction starts, and the end.
    pub starts: Vec<f64>,
    /// Forward, loss, backward, and the update where it is apart.
    pub phases: Vec<Phase>,
    /// The moment of the planned peak: the most weights mapped, then the most alive.
    pub peak: Held,
    /// The moment at which the arena is fullest.
    pub fullest: Held,
}

impl Step {
    /// The step of `plan`.
    pub fn new(plan: &Plan) -> Self {
        let held = held(plan);
        let starts = starts(plan);
        let seconds = starts.last().copied().unwrap_or(0.0).max(1e-9);
        let mut columns: Vec<Option<Held>> = vec![None; held.len().clamp(1, MOST)];
        let last = columns.len() - 1;
        let column = |time: f64| ((time / seconds * (last + 1) as f64) as usize).min(last);
        for (held, times) in held.iter().zip(starts.windows(2)) {
            // One that ends where a column begins is not in it.
            let end = column(times[1] - seconds * 1e-9).max(column(times[0]));
            for column in &mut columns[column(times[0])..=end] {
                if column.is_none_or(|other| held.height() > other.height()) {
                    *column = Some(*held);
                }
            }
        }
        // Of equal ones the last is found, so they are looked through from the end.
        let peak = held.iter().rev().copied().max_by_key(Held::height).unwrap_or_default();
        let fullest = held.iter().rev().copied().max_by_key(Held::used).unwrap_or_default();
        let columns = columns.into_iter().map(Option::unwrap_or_default).collect();
        let phases = phases(plan, &starts);
        Self { columns, seconds, starts, phases, peak, fullest }
    }

    /// Seconds at the middle of the instruction of `held`.
    pub fn time(&self, held: &Held) -> f64 {
        let end = self.starts.get(held.at + 1).copied().unwrap_or(self.seconds);
        (self.starts.get(held.at).copied().unwrap_or(0.0) + end) / 2.0
    }
}

/// What is held at every moment.
fn held(plan: &Plan) -> Vec<Held> {
    let mut change = vec![[0_isize; 5]; plan.moments.len() + 1];
    for buffer in plan.program.buffers.iter().filter(|buffer| buffer.first <= buffer.last) {
        change[buffer.first][buffer.kind as usize] += 4 * buffer.len as isize;
        change[buffer.last + 1][buffer.kind as usize] -= 4 * buffer.len as isize;
    }
    let mut alive = [0_isize; 5];
    let moments = plan.moments.iter().zip(change).enumerate();
    moments
        .map(|(at, (moment, change))| {
            alive.iter_mut().zip(change).for_each(|(alive, change)| *alive += change);
            Held { at, weights: moment.weights, alive: alive.map(isize::unsigned_abs) }
        })
        .collect()
}

/// When every instruction starts; all together take as long as the plan says.
fn starts(plan: &Plan) -> Vec<f64> {
    let sum: f64 = plan.moments.iter().map(|moment| moment.seconds).sum();
    let scale = if sum > 0.0 { plan.seconds() / sum } else { 0.0 };
    let mut now = 0.0;
    let ends = plan.moments.iter().map(|moment| {
        now += moment.seconds * scale;
        now
    });
    [0.0].into_iter().chain(ends).collect()
}

fn phases(plan: &Plan, starts: &[f64]) -> Vec<Phase> {
    let instrs = &plan.program.instrs;
    let loss = instrs.iter().position(|instr| instr.loss().is_some()).unwrap_or(instrs.len());
    let bounds = [("forward", 0), ("loss", loss), ("backward", loss + 1), ("update", instrs.len())];
    let ends = [loss, loss + 1, instrs.len(), plan.moments.len()];
    let phase = |((name, start), end): ((&'static str, usize), usize)| {
        (start < end && end < starts.len()).then(|| Phase { name, span: [starts[start], starts[end]] })
    };
    bounds.into_iter().zip(ends).filter_map(phase).collect()
}

/// Buffers of one name and kind that are alive together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Their name.
    pub name: &'static str,
    /// What they hold.
    pub kind: Kind,
    /// How many there are.
    pub count: usize,
    /// The first and the last block they belong to, where they belong to any.
    pub blocks: Option<[usize; 2]>,
    /// Their bytes together.
    pub bytes: usize,
}

/// What is alive at an instruction, largest first.
pub fn alive(plan: &Plan, at: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let is_alive = |buffer: &&Buffer| buffer.first <= at && at <= buffer.last;
    for buffer in plan.program.buffers.iter().filter(is_alive) {
        let same = |group: &&mut Group| group.name == buffer.name && group.kind == buffer.kind;
        let block = buffer.block.map(|block| [block; 2]);
        match groups.iter_mut().find(same) {
            Some(group) => {
                group.count += 1;
                group.bytes += 4 * buffer.len;
                group.blocks = match (group.blocks, block) {
                    (Some(a), Some(b)) => Some([a[0].min(b[0]), a[1].max(b[1])]),
                    (a, b) => a.or(b),
                };
            }
            None => groups.push(Group {
                name: buffer.name,
                kind: buffer.kind,
                count: 1,
                blocks: block,
                bytes: 4 * buffer.len,
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    groups
}
