//! A run from its options to its adapter: prepare, plan, take an earlier state up, step, save.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use super::control::State;
use super::keeper::Keeper;
use super::planning::Task;
use super::progress::Progress;
use super::steps::Steps;
use super::terms::{Terms, model_sum};
use super::{
    Batches, Budget, Control, Ending, Event, Host, LoraChoice, Method, Passes, Prepared, Rows, Summary, TrainOptions,
    adapter, passes, prepare, replay, whole,
};
use crate::backend::{Cpu, Outcome, Still, Weights};
use crate::error::{Error, Result};
use crate::graph::{Graph, LoraSpec};
use crate::memory::{self, Peak, Resident};
use crate::model::Model;
use crate::plan::{Flops, Mode, Plan, Program};
use crate::store;

/// How long the largest product is run alone, in each direction.
const ALONE: Duration = Duration::from_millis(30);

/// Trains an adapter, and heeds `control` meanwhile.
///
/// # Errors
/// Whatever is wrong with options, files, data, the system or the numbers. No adapter is written then, but for the best so far where that
/// is to be kept; what was on disk already of a run that had begun stays there and can be gone on with.
pub fn train(options: &TrainOptions, host: &mut dyn Host, control: &Control) -> Result<Ending> {
    control.enter(State::Preparing);
    let ending = from_files_to_adapter(options, host, control);
    control.enter(State::Ended);
    ending
}

fn from_files_to_adapter(options: &TrainOptions, host: &mut dyn Host, control: &Control) -> Result<Ending> {
    let start = host.now();
    options.check()?;
    store::check_writable(&options.adapter_path)?;
    store::clear_leftovers(&options.adapter_path)?;
    store::clear_leftovers(options.spill_folder())?;
    let mut peak = Peak::default();
    let mut keeper = Keeper::open(options)?;
    let model = Model::open(&options.model)?;
    model.check_reading(&options.data.reading)?;
    if let LoraChoice::New(spec) = &options.lora {
        // What can't be adapted so is said before gigabytes are read.
        model.config.graph(Some(&options.adapted(spec.clone(), &model.config)?))?;
    }
    let own_blocks = options.method == Method::Qzo;
    match options.trains_all() {
        true if own_blocks => whole::check_scales(&model, options.method)?,
        true => whole::check_floats(&model, options.method)?,
        false => {}
    }
    let data = prepare(&model, &options.data, options.max_seq_length, options.spill_folder())?;
    host.event(Event::Prepared(&data));
    let sums = (model_sum(&model.files), data.sum());
    let (model, store) = match options.trains_all() {
        true => whole::open(model, (!own_blocks).then_some(options.store), options.spill_folder(), options.budget)
            .map(|(model, store)| (model, Some(store)))?,
        false => (model, None),
    };
    let mut run = Run::new(options, (model, store, sums.0), data, keeper.resumes(), peak.look())?;
    let (passes, filled) = run.passes.first_epoch(&run.data.train.tokens, run.task.batch * run.task.length);
    host.event(Event::Laid { packed: options.pack, passes, filled });
    let options = &options.with_epochs_of(passes);
    let terms = Terms::of(options, &run.lora, run.task.machine, sums.0, sums.1);
    let (progress, from) = keeper.begin(terms, options, &mut run.cpu, &run.graph, host.now())?;
    if let Some(from) = &from {
        host.event(Event::Resumed { iter: progress.iter, from });
    }
    let machine = run.task.machine;
    let trainable = if run.lora.scales { run.cpu.count_scales() } else { run.graph.trainable() };
    host.event(Event::Planned { plan: &run.plan, budget: options.budget, bytes: run.budget, machine, trainable });
    let alone = run.cpu.product_alone(&run.plan.program, ALONE, &mut || host.now());
    if let Some(alone) = alone {
        host.event(Event::Measured(alone));
    }
    run.cpu.heed(control.flag());
    control.enter(State::Running);
    let mut steps = Steps::new(options, host, control, &mut run, &mut keeper, &mut peak, progress);
    // A step that leaves something out has no operations to count.
    let rate =
        alone.filter(|_| options.drop_backward == 0.0 && options.method.turns().is_none()).map(|alone| alone.rate());
    (steps.alone, steps.start) = (rate, start);
    let Some((last, progress)) = steps.all()? else {
        return Ok(Ending::Stopped { iter: keeper.last_iter(), iters: options.iters });
    };
    // What was taken for another checkpoint is more than the adapter needs.
    keeper.give_back()?;
    match progress.kept {
        None => run.save(options, progress.iter)?,
        Some(_) if progress.best.iter() == Some(progress.iter) => {}
        // What is measured from here on is what was kept.
        Some(_) if run.graph.whole => whole::load(&mut run.cpu, &run.graph, &options.adapter_path)?,
        Some(_) => {
            let saved = adapter::open(&options.adapter_path)?;
            adapter::load(&mut run.cpu, &run.graph, &run.task.config, &options.adapter_path, &saved)?;
        }
    }
    let (test, Run { graph, plan, .. }) = (run.test()?, run);
    // What was trained in has gone, and leaves room to write.
    let folder = &options.adapter_path;
    let model = graph.whole.then(|| whole::save_folder(&options.model, folder, options.budget)).transpose()?;
    keeper.finish()?;
    match &model {
        Some(model) => {
            whole::clear(model, folder)?;
            host.event(Event::SavedModel(model));
        }
        None => host.event(Event::Saved(folder)),
    }
    let Progress { iter, first_loss, last_loss, valid_before, kept, best, .. } = progress;
    let summary = Summary {
        iters: iter,
        first_loss,
        last_loss,
        valid: valid_before.map(Into::into).zip(kept.map(Into::into).or(last)),
        best: kept.and(best.iter()),
        test,
        peak: peak.look(),
        plan,
        skipped: progress.skipped + progress.undone,
    };
    Ok(Ending::Done(Box::new(summary)))
}

/// A run that is set up.
pub(super) struct Run {
    pub task: Task,
    pub graph: Graph,
    pub lora: LoraSpec,
    pub cpu: Cpu,
    pub data: Prepared,
    pub passes: Passes,
    pub rows: Rows,
    pub plan: Plan,
    pub flops: Flops,
    /// What the run may take at most; `None` for as little as possible.
    pub budget: Option<usize>,
    /// What the plan was made for, which is less while less can be had.
    pub bytes: Option<usize>,
    folder: PathBuf,
    batch_size: usize,
    /// Most records of a pass, each as often as a step looks at it.
    records: usize,
    /// The model's sum.
    model: [u8; 32],
}

impl Run {
    fn new(
        options: &TrainOptions,
        (model, store, sum): (Model, Option<File>, [u8; 32]),
        data: Prepared,
        resumes: bool,
        so_far: Resident,
    ) -> Result<Self> {
        let folder = options.spill_folder().to_path_buf();
        let (lora, saved) = match &options.lora {
            LoraChoice::New(spec) => (options.adapted(spec.clone(), &model.config)?, None),
            LoraChoice::From(folder) => {
                let saved = adapter::open(folder)?;
                (options.adapt(adapter::spec(folder, &saved)?, true)?, Some((folder, saved)))
            }
        };
        let graph = model.config.graph(Some(&lora))?;
        let weights = Weights::bind(model.files, &model.config, &graph)?;
        let weights = match store {
            Some(store) => weights.writable(store),
            None => weights,
        };
        if data.valid.is_none() && options.keeps_best() {
            let option = if options.save_best { "save-best" } else { "early-stopping" };
            let value = options.early_stopping.map_or(String::new(), |patience| patience.to_string());
            let fault = "there is no validation set to judge by; --val-split 0.1 would keep one".into();
            return Err(Error::Option { option, value, fault });
        }
        let longest = data.longest();
        // The most tokens of a row: of the longest record, or all that packing may put there.
        let length = match options.pack {
            true => options.max_seq_length.min(data.train.tokens.tokens() as usize).max(longest),
            false => longest,
        };
        let batches = Batches::new(data.train.tokens.len(), options.shuffle, options.seed);
        let room = options.batch_size * length;
        // Its memory is taken before the plan is made, which counts it.
        let mut passes = match options.pack {
            true => Passes::packed(batches, &data.train.tokens, room, options.seed),
            false => Passes::plain(batches, options.batch_size),
        };
        let mut task = Task::training(options, &model.config, weights.stored(), lora.clone(), length, so_far.total)?;
        task.validates = data.valid.is_some() || data.test.is_some();
        task.log = options.with_epochs_of(passes.first_epoch(&data.train.tokens, room).0).log();
        // What is available is looked at once, since a plan takes of it.
        let bytes = options.budget.bytes()?;
        let budget = bytes.map_or(Budget::Smallest, Budget::Bytes);
        let task = task.with_disk(&folder, budget)?;
        let plan = task.choose(budget)?;
        let (task, plan) = in_time(task, plan, bytes, options.keeping.within)?;
        memory::trim();
        let records = if options.pack { passes::WINDOW } else { options.batch_size };
        let records = records.max(options.batch_size) * task.groups;
        let rows = Rows::with_capacity(records, plan.program.tokens, longest).with_cloze(data.cloze.clone());
        let mut cpu = Cpu::new(task.machine, weights, &graph, plan.layout.clone(), &programs(&plan), &folder)?;
        cpu.quicken(&graph, options.lora_plus);
        match saved {
            // All of it comes from the earlier run.
            _ if resumes => {}
            Some((folder, saved)) => adapter::load(&mut cpu, &graph, &model.config, folder, &saved)?,
            None => adapter::initialise(&mut cpu, &graph, options.seed)?,
        }
        // Of the model as it is before the first update, also where a run goes on.
        if let Some(Still::Large(share)) = options.method.zeroth().map(|zeroth| zeroth.still).filter(|_| graph.whole) {
            cpu.measure_limits(share);
        }
        let flops = Flops::of(&plan.program, &graph);
        let batch_size = options.batch_size;
        Ok(Self {
            task,
            graph,
            lora,
            cpu,
            data,
            passes,
            rows,
            plan,
            flops,
            budget: bytes,
            bytes,
            folder,
            batch_size,
            records,
            model: sum,
        })
    }

    /// Goes over to the best plan for `bytes`; all that was learnt has to come back from disk after it. Whether there was another one.
    pub fn move_to(&mut self, bytes: usize) -> Result<bool> {
        let plan = self.task.squeezed(bytes)?;
        self.bytes = Some(bytes);
        if plan.policy == self.plan.policy {
            return Ok(false);
        }
        memory::trim();
        self.cpu.lay_out(&self.graph, plan.layout.clone(), &programs(&plan), &self.folder)?;
        self.flops = Flops::of(&plan.program, &self.graph);
        if plan.program.tokens != self.plan.program.tokens {
            let rows = Rows::with_capacity(self.records, plan.program.tokens, self.data.longest());
            self.rows = rows.with_cloze(self.data.cloze.clone());
        }
        self.plan = plan;
        Ok(true)
    }

    /// Measures the validation set, where there is one; no more than the first `most` batches of it.
    pub fn validate(&mut self, most: Option<usize>) -> Result<Option<Outcome>> {
        let (Some(program), Some(valid)) = (&self.plan.validation, &self.data.valid) else { return Ok(None) };
        super::evaluate::run(&mut self.cpu, program, &valid.tokens, &mut self.rows, self.batch_size, most).map(Some)
    }

    /// Measures the test set, where there is one.
    fn test(&mut self) -> Result<Option<Outcome>> {
        let (Some(program), Some(test)) = (&self.plan.validation, &self.data.test) else { return Ok(None) };
        let outcome =
            super::evaluate::run(&mut self.cpu, program, &test.tokens, &mut self.rows, self.batch_size, None)?;
        if outcome.loss.is_finite() {
            return Ok(Some(outcome));
        }
        Err(Error::Numbers(format!("the loss of the test set is {}", outcome.loss)))
    }

    /// Puts the adapter in its place, and beside it what its `iter` updates were where that is kept.
    pub fn save(&self, options: &TrainOptions, iter: usize) -> Result<()> {
        let (graph, beside, kept) = (&self.graph, &self.data.beside, options.kept.as_deref());
        let config = (!graph.whole).then(|| adapter::config(graph, &self.lora, &options.model.name()));
        let words = options.method.zeroth().map(|zeroth| zeroth.words());
        let header =
            words.map(|_| replay::header(options, self.model, config.as_ref(), self.lora.classes)).transpose()?;
        let numbers = &self.cpu.log()[..iter * words.unwrap_or(0)];
        let updates = header.as_ref().map(|header| (&header[..], numbers));
        match config {
            None => whole::save(&self.cpu, graph, kept, updates, &options.adapter_path),
            Some(config) => adapter::save(&self.cpu, graph, &config, kept, updates, beside, &options.adapter_path),
        }
    }
}

fn programs(plan: &Plan) -> Vec<&Program> {
    [&plan.program].into_iter().chain(&plan.validation).collect()
}

/// How many times longer than predicted a step may take on a machine that does other things too.
const BUSY: f64 = 4.0;

/// Where gradients are applied as they come, a step that has begun to do so has to be finished. One whose rest may take longer than
/// `within` waits with all of them instead, where the budget has room for that.
fn in_time(task: Task, plan: Plan, bytes: Option<usize>, within: Duration) -> Result<(Task, Plan)> {
    // The forward pass is a third of a step.
    let rest = plan.seconds() * 2.0 / 3.0 * BUSY;
    match bytes {
        Some(bytes) if task.mode == Mode::TrainAndUpdate && rest > within.as_secs_f64() => {
            Ok(task.waiting(&plan, bytes)?.unwrap_or((task, plan)))
        }
        _ => Ok((task, plan)),
    }
}
