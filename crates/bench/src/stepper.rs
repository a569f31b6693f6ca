//! A model set up as `pocketune train` sets it up, to run steps of one record of random tokens: what `steps`, `breakdown` and `ratios`
//! measure. It reads no data file and saves nothing.

use std::path::Path;
use std::time::{Duration, Instant};

use pocketune::backend::{Alone, Batch, Cpu, NO_LABEL, Noise, Outcome, Rule, Weights};
use pocketune::graph::{Graph, LoraSpec};
use pocketune::model::{Model, Source};
use pocketune::plan::{Flops, Instr, Mode, Plan, PolicyName, States};
use pocketune::train::{Budget, PrecisionChoice, RunOptions, Task, adapter};
use pocketune_kernels::attention::Segment;
use pocketune_kernels::philox::Philox;
use pocketune_kernels::update::AdamW;

use crate::failure::{Failure, Result};

/// Tokens are drawn from the first of the vocabulary, which every model has.
const TOKENS: u64 = 250;

/// One record whose every token but the first is a target.
pub struct Record {
    ids: Vec<u32>,
    positions: Vec<u32>,
    labels: Vec<u32>,
    segments: [Segment; 1],
}

impl Record {
    /// A record of `seq` tokens.
    pub fn random(seq: usize) -> Self {
        let random = Philox::new(0, 0);
        let ids: Vec<u32> = (0..seq as u64).map(|at| random.below(at, TOKENS) as u32).collect();
        Self {
            positions: (0..seq as u32).collect(),
            labels: ids.iter().skip(1).copied().chain([NO_LABEL]).collect(),
            segments: [Segment { q_start: 0, q_len: seq, k_start: 0, k_len: seq }],
            ids,
        }
    }

    /// As the backend reads it.
    pub fn batch(&self) -> Batch<'_> {
        let Self { ids, positions, labels, segments } = self;
        Batch {
            ids,
            positions,
            labels,
            choices: &[],
            segments,
            targets: ids.len() - 1,
            noise: Noise::default(),
            groups: &[],
        }
    }
}

/// What is set up.
#[derive(Clone, Copy)]
pub struct Setup<'a> {
    /// A GGUF file.
    pub model: &'a Path,
    /// Tokens of the record.
    pub seq: usize,
    /// Rank of the adapters, on all seven linears.
    pub rank: usize,
    /// Threads; all where `None`.
    pub threads: Option<usize>,
    /// What matrix inputs are rounded to.
    pub precision: PrecisionChoice,
    /// What is kept; the engine's choice where `None`.
    pub policy: Option<PolicyName>,
    /// The whole process, at most.
    pub budget: Budget,
    /// Whether steps go forward only, up to the loss.
    pub forward_only: bool,
}

/// A model that runs steps.
pub struct Stepper {
    /// Its operations.
    pub graph: Graph,
    /// What runs.
    pub plan: Plan,
    /// What it was planned for.
    pub task: Task,
    /// The processor with the model.
    pub cpu: Cpu,
    record: Record,
    step: u64,
}

impl Stepper {
    /// Opens the model, plans, and initialises adapters.
    ///
    /// # Errors
    /// When the file or an option is at fault or nothing fits.
    pub fn new(setup: Setup) -> Result<Self> {
        if setup.seq < 2 {
            return Err(Failure::new(format!("--seq {}: a record has at least 2 tokens", setup.seq)));
        }
        let rank = setup.rank;
        let lora = LoraSpec { rank, alpha: 2.0 * rank as f32, ..LoraSpec::default() };
        let model = Model::open(&Source::Path(setup.model.into()))?;
        let graph = model.config.graph(Some(&lora))?;
        let weights = Weights::bind(model.files, &model.config, &graph)?;
        let run = RunOptions { threads: setup.threads, precision: setup.precision, rates: None };
        let mode = if setup.forward_only { Mode::Evaluate } else { Mode::TrainAndUpdate };
        let task = Task::forward(run, &model.config, weights.stored(), Some(lora), mode, (1, setup.seq))?;
        let states = if setup.forward_only { States::None } else { States::F32 };
        let task = Task { states, named: setup.policy, ..task };
        let plan = task.choose(setup.budget)?;
        let folder = setup.model.parent().unwrap_or(Path::new("."));
        let mut cpu = Cpu::new(task.machine, weights, &graph, plan.layout.clone(), &[&plan.program], folder)?;
        adapter::initialise(&mut cpu, &graph, 0)?;
        Ok(Self { graph, plan, task, cpu, record: Record::random(setup.seq), step: 0 })
    }

    /// One step: forward, backward and AdamW, or forward alone. Its mean loss.
    ///
    /// # Errors
    /// When the disk fails or the loss is not finite.
    pub fn step(&mut self) -> Result<f64> {
        self.step_watched(&mut |_| {})
    }

    /// As [`Stepper::step`], calling `done` after every instruction.
    ///
    /// # Errors
    /// As [`Stepper::step`].
    pub fn step_watched(&mut self, done: &mut dyn FnMut(&Instr)) -> Result<f64> {
        self.step += 1;
        let (rule, batch) = (rule(self.step), self.record.batch());
        let found = self.cpu.run_watched(&self.plan.program, batch, 0, Some(rule), done)?;
        let Outcome { loss, targets, .. } = found;
        let mean = loss / targets.max(1) as f64;
        if mean.is_finite() { Ok(mean) } else { Err(Failure::new(format!("the loss of step {} is {mean}", self.step))) }
    }

    /// Operations of a step's products.
    pub fn flops(&self) -> f64 {
        let batch = self.record.batch();
        Flops::of(&self.plan.program, &self.graph).run(batch.segments.iter().map(|record| record.q_len), batch.targets)
    }

    /// What the step's largest product reaches alone.
    ///
    /// # Errors
    /// When the model has none.
    pub fn alone(&mut self, least: Duration) -> Result<Alone> {
        let start = Instant::now();
        let alone = self.cpu.product_alone(&self.plan.program, least, &mut || start.elapsed());
        alone.ok_or_else(|| Failure::new("a model without linears"))
    }

    /// Numbers of the frozen model.
    pub fn frozen(&self) -> usize {
        let matrices: usize = self.graph.weights.iter().map(|weight| weight.rows * weight.cols).sum();
        matrices + self.graph.vectors.iter().map(|vector| vector.len).sum::<usize>()
    }
}

/// AdamW with PyTorch's defaults, at update `step`.
pub fn rule(step: u64) -> Rule {
    Rule::AdamW(AdamW { lr: 1e-4, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step })
}
