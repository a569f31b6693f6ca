//! The training loop: prepare, plan, step, report, save.

use std::path::Path;
use std::time::Duration;

use pocketune_formats::peft::Adapter;
use pocketune_kernels::update::{AdamW, Sgd};

use super::planning::Task;
use super::{Advice, Batches, Budget, LoraChoice, Optimizer, Prepared, Rows, TrainOptions, adapter, prepare};
use crate::backend::{Alone, Cpu, Outcome, Rule, Weights};
use crate::error::{Error, Result};
use crate::graph::{Graph, LoraSpec, ParamId};
use crate::memory::{self, Peak, Resident};
use crate::model::Model;
use crate::plan::{Flops, Machine, Mode, Plan, Program};
use crate::store;

/// How long the largest product is run alone, in each direction.
const ALONE: Duration = Duration::from_millis(30);

/// What a run is handed by its surroundings.
pub trait Host {
    /// Time since some fixed moment.
    fn now(&mut self) -> Duration;
    /// Something happened that a person or an app may want to know.
    fn event(&mut self, event: Event);
    /// What the surroundings advise, asked for between steps.
    fn advice(&mut self) -> Advice {
        Advice::GO
    }
}

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The data is ready: records, tokens, records cut, records left out.
    Prepared {
        /// Records to train on.
        records: usize,
        /// Their tokens.
        tokens: u64,
        /// Tokens of the longest.
        longest: usize,
        /// Records that were cut to the limit.
        cut: usize,
        /// Records too short to train on.
        skipped: usize,
    },
    /// The plan stands; the first step comes next.
    Planned {
        /// What the run will hold and how.
        plan: &'a Plan,
        /// What it was made for.
        budget: Budget,
        /// What it runs with.
        machine: Machine,
        /// Trainable numbers.
        trainable: usize,
    },
    /// The largest product of the step was run alone; what the step reaches is compared with it.
    Measured(Alone),
    /// The validation set was measured, before the first or after the last update.
    Validated {
        /// Updates done.
        iter: usize,
        /// What was found.
        outcome: Outcome,
    },
    /// An update begins.
    Step {
        /// Its number, from 1.
        iter: usize,
    },
    /// Time for a report.
    Report(Report),
    /// The adapter is on disk.
    Saved(&'a Path),
}

/// The state of a run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Updates done.
    pub iter: usize,
    /// Updates to do in all.
    pub iters: usize,
    /// Mean loss of the updates since the last report, each before its update.
    pub loss: f64,
    /// The learning rate of the last update.
    pub lr: f32,
    /// Updates a second since the last report.
    pub iters_per_second: f64,
    /// Tokens a second since the last report.
    pub tokens_per_second: f64,
    /// Operations a second of the step's products, as a share of what the largest of them reaches alone, where that could be
    /// measured in the memory of the step.
    pub mfu: Option<f64>,
    /// Tokens of all updates so far.
    pub trained_tokens: u64,
    /// Peaks of the process so far.
    pub peak: Resident,
    /// The peak that was planned.
    pub planned_peak: usize,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The first report's loss.
    pub first_loss: f64,
    /// The last report's loss.
    pub last_loss: f64,
    /// Validation before and after, where there is a validation set.
    pub valid: Option<(Outcome, Outcome)>,
    /// Peaks of the process.
    pub peak: Resident,
    /// What was planned.
    pub plan: Plan,
}

/// Trains an adapter.
///
/// # Errors
/// Whatever is wrong with options, files, data, the system or the numbers; nothing is written then.
pub fn train(options: &TrainOptions, host: &mut dyn Host) -> Result<Summary> {
    options.check()?;
    store::check_writable(&options.adapter_path)?;
    let mut peak = Peak::default();
    let model = Model::open(&options.model)?;
    model.check_next_token()?;
    let folder = options.spill_folder();
    let data = prepare(&model, &options.data, options.max_seq_length, folder)?;
    host.event(Event::Prepared {
        records: data.train.tokens.len(),
        tokens: data.train.tokens.tokens(),
        longest: data.train.tokens.longest(),
        cut: data.train.cut,
        skipped: data.train.skipped,
    });
    let mut run = Run::new(options, model, data, folder, peak.look())?;
    let machine = run.machine;
    host.event(Event::Planned { plan: &run.plan, budget: options.budget, machine, trainable: run.graph.trainable() });
    let alone = run.cpu.product_alone(&run.plan.program, ALONE, &mut || host.now());
    if let Some(alone) = alone {
        host.event(Event::Measured(alone));
    }
    let before = run.validate(0, host)?;
    let (first_loss, last_loss) = run.steps(options, alone.map(|alone| alone.rate()), host, &mut peak)?;
    let after = run.validate(options.iters, host)?;
    adapter::save(&run.cpu, &run.graph, &run.lora, &options.model.name(), &options.adapter_path)?;
    host.event(Event::Saved(&options.adapter_path));
    Ok(Summary { first_loss, last_loss, valid: before.zip(after), peak: peak.look(), plan: run.plan })
}

/// A run that is set up.
struct Run {
    machine: Machine,
    graph: Graph,
    lora: LoraSpec,
    cpu: Cpu,
    data: Prepared,
    rows: Rows,
    plan: Plan,
    flops: Flops,
    batch_size: usize,
}

/// What an update worked on.
#[derive(Default)]
struct Work {
    tokens: u64,
    /// Operations of its products.
    flops: f64,
}

impl Run {
    fn new(options: &TrainOptions, model: Model, data: Prepared, folder: &Path, so_far: Resident) -> Result<Self> {
        let saved = match &options.lora {
            LoraChoice::New(_) => None,
            LoraChoice::From(folder) => Some((folder, Adapter::open(folder)?)),
        };
        let lora = match (&options.lora, &saved) {
            (LoraChoice::New(spec), _) => spec.clone(),
            (LoraChoice::From(_), Some((folder, saved))) => adapter::spec(folder, saved)?,
            (LoraChoice::From(_), None) => unreachable!("opened above"),
        };
        let graph = model.config.graph(Some(&lora))?;
        let weights = Weights::bind(model.files, &model.config, &graph)?;
        let longest = data.train.tokens.longest().max(data.valid.as_ref().map_or(0, |valid| valid.tokens.longest()));
        let mut task = Task::training(options, &model.config, weights.types(), lora.clone(), longest, so_far.total)?;
        task.validates = data.valid.is_some();
        let task = task.with_disk(folder, options.budget)?;
        let plan = task.choose(options.budget)?;
        memory::trim();
        let machine = task.machine;
        let rows = Rows::with_capacity(options.batch_size, longest);
        let programs: Vec<&Program> = [&plan.program].into_iter().chain(&plan.validation).collect();
        let mut cpu = Cpu::new(machine, weights, &graph, plan.layout.clone(), &programs, folder)?;
        match saved {
            Some((folder, saved)) => adapter::load(&mut cpu, &graph, folder, &saved)?,
            None => adapter::initialise(&mut cpu, &graph, options.seed),
        }
        let flops = Flops::of(&plan.program, &graph);
        Ok(Self { machine, graph, lora, cpu, data, rows, plan, flops, batch_size: options.batch_size })
    }

    fn validate(&mut self, iter: usize, host: &mut dyn Host) -> Result<Option<Outcome>> {
        let (Some(program), Some(valid)) = (&self.plan.validation, &self.data.valid) else { return Ok(None) };
        let outcome = super::evaluate::run(&mut self.cpu, program, &valid.tokens, &mut self.rows, self.batch_size)?;
        self.check_loss(outcome, "the validation set")?;
        host.event(Event::Validated { iter, outcome });
        Ok(Some(outcome))
    }

    /// All updates; the first and the last report's loss. Products reach `alone` operations a second by
    /// themselves, where that could be measured.
    fn steps(
        &mut self,
        options: &TrainOptions,
        alone: Option<f64>,
        host: &mut dyn Host,
        peak: &mut Peak,
    ) -> Result<(f64, f64)> {
        let mut batches = Batches::new(self.data.train.tokens.len(), options.shuffle, options.seed);
        let (mut position, mut trained) = (0_u64, 0_u64);
        let (mut since, mut losses, mut tokens, mut flops, mut count) = (host.now(), 0.0, 0_u64, 0.0, 0_usize);
        let (mut first_loss, mut last_loss) = (f64::NAN, f64::NAN);
        for iter in 1..=options.iters {
            host.event(Event::Step { iter });
            let lr = options.schedule.rate(iter, options.iters);
            if iter == 1 {
                self.cpu.watch();
            }
            let (outcome, work) = self.update(options, &mut batches, &mut position, iter, lr)?;
            self.check_loss(outcome, &format!("update {iter}"))?;
            if iter == 1 {
                self.check_gradients()?;
            }
            losses += outcome.loss / outcome.targets.max(1) as f64;
            tokens += work.tokens;
            trained += work.tokens;
            flops += work.flops;
            count += 1;
            if iter % options.steps_per_report == 0 || iter == options.iters {
                let seconds = host.now().saturating_sub(since).as_secs_f64().max(1e-9);
                last_loss = losses / count as f64;
                if first_loss.is_nan() {
                    first_loss = last_loss;
                }
                host.event(Event::Report(Report {
                    iter,
                    iters: options.iters,
                    loss: last_loss,
                    lr,
                    iters_per_second: count as f64 / seconds,
                    tokens_per_second: tokens as f64 / seconds,
                    mfu: alone.map(|alone| flops / seconds / alone),
                    trained_tokens: trained,
                    peak: peak.look(),
                    planned_peak: self.plan.peak(),
                }));
                (since, losses, tokens, flops, count) = (host.now(), 0.0, 0, 0.0, 0);
            }
        }
        Ok((first_loss, last_loss))
    }

    /// One update over `accumulation` passes; what it found and what it worked on. Gradients are those of the mean over all
    /// targets of the update, however it is cut into passes.
    fn update(
        &mut self,
        options: &TrainOptions,
        batches: &mut Batches,
        position: &mut u64,
        iter: usize,
        lr: f32,
    ) -> Result<(Outcome, Work)> {
        let rule = rule(options, iter, lr);
        let file = &self.data.train.tokens;
        let per_pass = options.batch_size as u64;
        let passes = options.accumulation as u64;
        let sums = self.plan.program.mode == Mode::Accumulate;
        let mut targets = 0;
        if passes > 1 {
            for at in *position..*position + passes * per_pass {
                targets += self.rows.targets_of(file, batches.record(at))?;
            }
        }
        if sums {
            self.cpu.clear_grads();
        }
        let (mut total, mut work) = (Outcome::default(), Work::default());
        for _ in 0..passes {
            let first = *position;
            self.rows.fill(file, (first..first + per_pass).map(|at| batches.record(at)))?;
            *position += per_pass;
            let targets = if passes > 1 { targets } else { self.rows.targets() };
            let batch = self.rows.batch(targets);
            let outcome = self.cpu.run(&self.plan.program, batch, 0, Some(rule))?;
            total.loss += outcome.loss;
            total.hits += outcome.hits;
            total.targets += outcome.targets;
            work.tokens += self.rows.tokens() as u64;
            work.flops += self.flops.run(batch.segments.iter().map(|record| record.q_len), outcome.targets);
        }
        if sums {
            let limit = options.max_grad_norm.map_or(f64::INFINITY, f64::from);
            // PyTorch's rule: the norm is never divided by exactly.
            let scale = (limit / (if limit.is_finite() { self.cpu.grad_norm() } else { 0.0 } + 1e-6)).min(1.0);
            self.cpu.apply_grads(rule, scale as f32)?;
        }
        Ok((total, work))
    }

    /// A loss that is not finite has a cause that can be named.
    fn check_loss(&self, outcome: Outcome, place: &str) -> Result<()> {
        if outcome.loss.is_finite() {
            return Ok(());
        }
        let unknown =
            || Error::Numbers(format!("the loss of {place} is {}; a lower --learning-rate may help", outcome.loss));
        Err(self.cpu.weights().find_not_finite().unwrap_or_else(unknown))
    }

    /// After the first update: every gradient was finite and reached every second factor. Silence would mean that nothing is
    /// trained (first factors get none at first where the second is zero).
    fn check_gradients(&mut self) -> Result<()> {
        let sums = self.cpu.watched().unwrap_or_default();
        for (at, module) in self.graph.modules.iter().enumerate() {
            for (id, factor) in [(2 * at, "lora_A"), (2 * at + 1, "lora_B")] {
                let sum = sums[ParamId(id).0];
                if !sum.is_finite() {
                    return Err(Error::Numbers(format!(
                        "the first gradient of {}.{factor} is not finite",
                        module.path
                    )));
                }
                if factor == "lora_B" && sum == 0.0 {
                    return Err(Error::Numbers(format!(
                        "no gradient reached {}.{factor} in the first update; it would never be trained",
                        module.path
                    )));
                }
            }
        }
        Ok(())
    }
}

fn rule(options: &TrainOptions, iter: usize, lr: f32) -> Rule {
    let weight_decay = options.weight_decay.unwrap_or(options.optimizer.default_decay());
    let adamw = AdamW { lr, weight_decay, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: iter as u64 };
    match options.optimizer {
        Optimizer::AdamW => Rule::AdamW(adamw),
        Optimizer::AdamW8bit => Rule::AdamW8bit(adamw),
        Optimizer::Sgd => Rule::Sgd(Sgd { lr, weight_decay }),
    }
}
