//! `pocketune plan`: what a run would hold and take, without running it.

use std::thread;

use pocketune::backend::Weights;
use pocketune::families::shape;
use pocketune::graph::{LoraSpec, Turns};
use pocketune::memory::Peak;
use pocketune::model::Model;
use pocketune::plan::{Mode, Plan, Spill, States, picture};
use pocketune::store;
use pocketune::train::{
    Budget, LoraChoice, Method, Optimizer, PolicyChoice, Task, TrainOptions, adapter, check_floats, check_scales,
    rehearse,
};
use pocketune_formats::BlockType;
use serde_json::{Value, json};

use crate::args::PlanArgs;
use crate::memory_bar::{bar, mib};
use crate::{Failure, demo, say, train};

/// Plans in a table.
const MOST: usize = 10;

/// What a tokenizer takes for every token it knows, while it lives: 63 to 127 bytes for those of Qwen2.5, Gemma 3, Llama 3.2 and SmolLM2.
const TOKENIZER_BYTES: usize = 128;

/// Plans and prints.
pub fn run(args: PlanArgs) -> Result<(), Failure> {
    let built_in = args.train.model.is_none() && args.shape.is_none();
    let options = train::options(&args.train, built_in)?;
    if args.train.memory_trace.is_some() {
        return Err(Failure("--memory-trace: a plan runs nothing; --picture draws it".into()));
    }
    if args.train.print_config {
        return Err(Failure("--print-config: train prints what it would run".into()));
    }
    args.picture.as_deref().map_or(Ok(()), store::check_file).map_err(Failure::new)?;
    let training = training(&args, &options)?;
    let budget = options.budget.bytes().map_err(Failure::new)?;
    let (frontier, smallest, chosen) = training
        .with(|setting, _| {
            let search = setting.search();
            let smallest = search.smallest();
            let chosen = match budget {
                Some(budget) => search.fastest(budget),
                None => Some(search.small(smallest.clone())),
            };
            (search.frontier(MOST), smallest, chosen)
        })
        .map_err(Failure::new)?;
    let limit = budget.unwrap_or(chosen.as_ref().map_or(smallest.peak(), Plan::peak));
    // All of these are searches of their own.
    let (methods, longest, widest) = thread::scope(|scope| {
        let longest = scope.spawn(|| training.longest(limit).map_err(Failure::new));
        let widest = scope.spawn(|| training.widest(limit).map_err(Failure::new));
        let own = options.policy == PolicyChoice::Auto;
        let own = own.then(|| (smallest.peak(), chosen.as_ref().map(Plan::seconds)));
        (methods(&training, &options, limit, own), joined(longest), joined(widest))
    });
    let report = Report {
        budget: limit,
        origin: options.budget.origin(),
        longest: longest?,
        widest: widest?,
        methods: methods?,
        chosen,
        frontier,
        smallest,
        training,
    };
    if let Some(path) = &args.picture {
        let drawing = picture(report.chosen.as_ref().unwrap_or(&report.smallest), budget, None);
        store::write_file(path, drawing.as_bytes()).map_err(Failure::new)?;
    }
    say(&if args.json { format!("{:#}\n", report.json()) } else { report.text() });
    Ok(())
}

fn training(args: &PlanArgs, options: &TrainOptions) -> Result<Task, Failure> {
    let model = match &args.shape {
        Some(_) => None,
        None => Some(Model::open(&options.model).map_err(Failure::new)?),
    };
    let config = match (&args.shape, &model) {
        (_, Some(model)) => model.config.clone(),
        (name, None) => shape(name.as_deref().unwrap_or_default()).map_err(Failure::new)?,
    };
    let lora = match &options.lora {
        LoraChoice::New(spec) => options.adapted(spec.clone(), &config),
        LoraChoice::From(folder) => {
            let saved = adapter::open(folder).map_err(Failure::new)?;
            options.adapt(adapter::spec(folder, &saved).map_err(Failure::new)?, true)
        }
    };
    let lora = lora.map_err(Failure::new)?;
    options.check().map_err(Failure::new)?;
    // What a run holds when it has prepared its data is held here too before the plan is made.
    let mut peak = Peak::default();
    let mut so_far = 0;
    let stored = match model {
        None => {
            rehearse(&Model::open(&demo::MODEL).map_err(Failure::new)?);
            so_far += TOKENIZER_BYTES * config.vocab;
            let weights = config.graph(None).map_err(Failure::new)?.weights.len();
            let ty = if lora.whole && !lora.scales { options.store } else { BlockType::Q4_0 };
            vec![ty.into(); weights]
        }
        Some(model) => {
            rehearse(&model);
            if lora.scales {
                check_scales(&model, options.method).map_err(Failure::new)?;
            } else if lora.whole {
                check_floats(&model, options.method).map_err(Failure::new)?;
            }
            let graph = model.config.graph(Some(&lora)).map_err(Failure::new)?;
            let weights = Weights::bind(model.files, &model.config, &graph).map_err(Failure::new)?;
            let stored = weights.stored();
            if lora.whole && !lora.scales { vec![options.store.into(); stored.len()] } else { stored }
        }
    };
    so_far += peak.look().total;
    let length = config.longest(options.max_seq_length);
    let task = Task::training(options, &config, stored, lora, length, so_far).map_err(Failure::new)?;
    // There may be a validation set; it is measured in the same memory.
    let task = Task { validates: true, ..task.stated() };
    // Some plans of the table use the disk, whatever the budget.
    task.with_disk(options.spill_folder(), Budget::Smallest).map_err(Failure::new)
}

struct Report {
    budget: usize,
    origin: &'static str,
    training: Task,
    frontier: Vec<Plan>,
    smallest: Plan,
    chosen: Option<Plan>,
    longest: usize,
    widest: usize,
    methods: Vec<Fits>,
}

/// Where methods fit whose plans are alike.
struct Fits {
    methods: Vec<Method>,
    /// The smallest peak.
    smallest: usize,
    /// Seconds of a step inside the budget.
    seconds: Option<f64>,
}

/// Methods that agree in these have the same plans: groups of directions, DoRA, VeRA, frozen `A`, optimizer states, turns of blocks.
type Alike = (usize, bool, bool, bool, States, Option<Turns>);

/// What every method needs with the same adapters, and how long its steps take. `own` is that of the method that was asked for, where it is known.
fn methods(
    training: &Task,
    options: &TrainOptions,
    budget: usize,
    own: Option<(usize, Option<f64>)>,
) -> Result<Vec<Fits>, Failure> {
    let mut asked: Vec<(Alike, Vec<Method>, Task)> = Vec::new();
    // What is trained stays the same: adapters, or the model itself.
    let scales = |method: Method| method == Method::Qzo;
    let alike = |method: &Method| match options.all {
        _ if scales(*method) || scales(options.method) => *method == options.method,
        true => method.zeroth().is_some(),
        false => method.trains_all() == options.method.trains_all(),
    };
    for method in Method::ALL.into_iter().filter(alike) {
        let optimizer = match options.method.optimizer() {
            Some(_) => method.optimizer().unwrap_or(Optimizer::AdamW),
            None => method.optimizer().unwrap_or(options.optimizer),
        };
        let other = TrainOptions { method, optimizer, zo_eps: None, policy: PolicyChoice::Auto, ..options.clone() };
        let plain = training.lora.clone().map(|lora| LoraSpec { dora: false, vera: false, frozen_a: false, ..lora });
        let Some(lora) = plain.and_then(|lora| other.adapt(lora, false).ok()) else { continue };
        let key = (other.groups(), lora.dora, lora.vera, lora.frozen_a, other.states(), lora.turns);
        if let Some((_, methods, _)) = asked.iter_mut().find(|(other, ..)| *other == key) {
            methods.push(method);
            continue;
        }
        let (mode, states, groups, log) = (other.mode(), other.states(), other.groups(), other.log());
        let task = Task { mode, states, groups, log, named: None, lora: Some(lora), ..training.clone() };
        asked.push((key, vec![method], task));
    }
    let answer = |methods: &[Method], task: &Task| {
        if let Some(own) = own.filter(|_| methods.contains(&options.method) && task.lora == training.lora) {
            return Ok(own);
        }
        task.with(|setting, _| {
            let search = setting.search();
            (search.smallest().peak(), search.fastest(budget).map(|plan| plan.seconds()))
        })
        .map_err(Failure::new)
    };
    thread::scope(|scope| {
        let running: Vec<_> =
            asked.iter().map(|(_, methods, task)| scope.spawn(move || answer(methods, task))).collect();
        let answers = running.into_iter().map(joined).zip(&asked).map(|(answer, (_, methods, _))| {
            answer.map(|(smallest, seconds)| Fits { methods: methods.clone(), smallest, seconds })
        });
        answers.collect()
    })
}

/// What a thread found; its panic is ours.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Report {
    fn text(&self) -> String {
        let fastest = self.frontier.first().map_or(0.0, Plan::seconds);
        let mut text = format!(
            "Budget {} ({}); batch {} of up to {} tokens, {} threads, {} in {:?}\n\n     {:>11} {:>9} {:>7}  {}\n",
            mib(self.budget),
            self.origin,
            self.training.batch,
            self.training.length,
            self.training.machine.threads,
            self.training.machine.isa.name(),
            self.training.machine.precision,
            "peak",
            "s/step",
            "extra",
            "how"
        );
        let most = self.frontier.iter().map(Plan::peak).max().unwrap_or(1);
        for plan in self.frontier.iter().chain([&self.smallest]) {
            let mark = if self.chosen.as_ref().is_some_and(|chosen| chosen.policy == plan.policy) { ">" } else { " " };
            let fits = if plan.peak() <= self.budget { " " } else { "x" };
            text.push_str(&row(&format!("{mark}{fits}"), plan, fastest, most));
        }
        text.push('\n');
        match &self.chosen {
            Some(chosen) => text.push_str(&row("chosen: ", chosen, fastest, most)),
            None => text.push_str("chosen: none fits this budget\n"),
        }
        text.push_str(&format!(
            "\nsmallest budget that works   {} ({} bytes)\nlongest record in this budget {} tokens at batch {}\nlargest batch in this budget  {} records of {} tokens\n",
            mib(self.smallest.peak()),
            self.smallest.peak(),
            self.longest,
            self.training.batch,
            self.widest,
            self.training.length
        ));
        let whole = self.training.lora.as_ref().is_some_and(|lora| lora.whole);
        let what = if whole { "that train all parameters" } else { "with the same adapters" };
        text.push_str(&format!("\nmethods, {what}:\n"));
        for Fits { methods, smallest, seconds } in &self.methods {
            let names: Vec<&str> = methods.iter().map(|method| method.name()).collect();
            let step = seconds.map_or("-".into(), |seconds| format!("{seconds:.3} s"));
            text.push_str(&format!("     from {:>11} {step:>11} a step  {}\n", mib(*smallest), names.join(", ")));
        }
        text
    }

    fn json(&self) -> Value {
        json!({
            "budget_bytes": self.budget,
            "smallest_peak_bytes": self.smallest.peak(),
            "longest_sequence": self.longest,
            "largest_batch": self.widest,
            "methods": self.methods.iter().flat_map(|fits| fits.methods.iter().map(move |method| json!({
                "method": method.name(), "smallest_peak_bytes": fits.smallest, "step_seconds": fits.seconds,
            }))).collect::<Vec<_>>(),
            "chosen": self.chosen.as_ref().map(plan_json),
            "plans": self.frontier.iter().chain([&self.smallest]).map(plan_json).collect::<Vec<_>>(),
        })
    }
}

fn row(mark: &str, plan: &Plan, fastest: f64, most: usize) -> String {
    format!(
        "{mark}   {:>11} {:>9.3} {:>6.1}%  {} {}\n",
        mib(plan.peak()),
        plan.seconds(),
        100.0 * (plan.seconds() / fastest.max(1e-12) - 1.0),
        bar(plan.peak(), most, 12),
        how(plan)
    )
}

/// A plan's choices in words.
pub fn how(plan: &Plan) -> String {
    let policy = &plan.policy;
    let mut words = vec![policy.keep.words(plan.program.blocks())];
    if policy.every[0] > 1 {
        words.push(format!("every {} blocks (then {})", policy.every[0], policy.every[1]));
    }
    match policy.spill {
        Spill::No => {}
        Spill::Ahead => words.push(format!("spill {} ahead", mib(plan.spilled()))),
        Spill::Tight => words.push(format!("spill {}", mib(plan.spilled()))),
    }
    if plan.program.mode == Mode::Perturb {
        words[0] = "keep nothing".into();
        if policy.at_once < usize::MAX {
            words.push(format!("{} records at a time", policy.at_once));
        }
    }
    if policy.rows < plan.program.tokens {
        words.push(format!("{} rows at a time", policy.rows));
    }
    if policy.loss_rows < plan.program.tokens {
        words.push(format!("logits of {} rows", policy.loss_rows));
    }
    words.push(if policy.stream { "weights streamed" } else { "weights resident" }.into());
    if policy.page_optimizer {
        words.push("optimizer on disk".into());
    }
    words.join(", ")
}

fn plan_json(plan: &Plan) -> Value {
    let memory = plan.memory;
    json!({
        "peak_bytes": plan.peak(),
        "step_seconds": plan.seconds(),
        "how": how(plan),
        "rows": plan.policy.rows.min(plan.program.tokens),
        "loss_rows": plan.policy.loss_rows.min(plan.program.tokens),
        "weights_resident": !plan.policy.stream,
        "optimizer_on_disk": plan.policy.page_optimizer,
        "spilled_bytes": plan.spilled(),
        "flops": plan.time.flops,
        "memory": {
            "adapter": memory.adapter, "optimizer": memory.optimizer, "gradients": memory.gradients, "tables": memory.tables,
            "step": memory.program, "weights": memory.weights, "stacks": memory.stacks, "process": memory.process,
            "preparation": memory.preparation,
        },
    })
}
