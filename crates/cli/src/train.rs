//! `pocketune train`: from what was typed to what it means, and the run in words or in JSON lines.

use std::time::{Duration, Instant};

use pocketune::backend::{Alone, Outcome};
use pocketune::graph::{Layers, LoraSpec, Target};
use pocketune::plan::{Machine, Plan, PolicyName};
use pocketune::train::{
    Advice, Budget, DataSource, Decay, Event, Host, LoraChoice, Optimizer, PolicyChoice, Report, Sampling, Schedule,
    Summary, TrainOptions, train,
};
use serde_json::json;

use crate::args::{CheckpointArg, LogArg, OptimizerArg, SchedulerArg, TrainArgs};
use crate::conditions::Watch;
use crate::memory_bar::{bar, mib};
use crate::trace::Trace;
use crate::{Failure, demo, generate, note, say};

/// Trains; without a model, the built-in one, with a sample before and after.
pub fn run(args: Box<TrainArgs>) -> Result<(), Failure> {
    let built_in = match (&args.model, &args.data) {
        (None, None) => true,
        (Some(_), Some(_)) => false,
        (Some(_), None) => {
            return Err(Failure("--data is missing: a .jsonl file, or a folder with train.jsonl".into()));
        }
        (None, Some(_)) => return Err(Failure("--model is missing: a GGUF file or a Hugging Face folder".into())),
    };
    let log = args.log_format;
    let options = options(&args, built_in)?;
    let trace = args.memory_trace.as_deref().map(Trace::start).transpose()?;
    let before = if built_in { Some(sample(&options, false)?) } else { None };
    for folder in [Some(&options.adapter_path), options.spill_folder.as_ref()].into_iter().flatten() {
        pocketune::store::clear_leftovers(folder).map_err(Failure::new)?;
    }
    let watch = Watch::new(&args.conditions, options.budget.bytes().unwrap_or(None))?;
    let mut printer = Printer { start: Instant::now(), log, trace, budget: None, watch };
    let summary = train(&options, &mut printer).map_err(Failure::new)?;
    if let Some(trace) = printer.trace.take() {
        let path = trace.finish(&summary.plan, printer.budget)?;
        note(&format!("Drew one step as planned and as measured to {}", path.display()));
    }
    if log == LogArg::Text {
        say(&closing(&options, &summary, printer.start.elapsed()));
        if let Some(before) = before {
            let after = sample(&options, true)?;
            say(&format!("\n{}\n  before:{before}\n  after: {after}\n", demo::PROMPT));
        }
    }
    Ok(())
}

pub fn options(args: &TrainArgs, built_in: bool) -> Result<TrainOptions, Failure> {
    let lora = match &args.init_adapter {
        Some(folder) => LoraChoice::From(folder.clone()),
        None => {
            let rank = args.lora_rank.unwrap_or(8);
            let layers = match args.num_layers.unwrap_or(-1) {
                -1 => Layers::All,
                last => Layers::Last(
                    usize::try_from(last)
                        .map_err(|_| Failure(format!("--num-layers {last}: a number of layers, or -1 for all")))?,
                ),
            };
            let targets =
                Target::parse_list(args.lora_targets.as_deref().unwrap_or("all-linear")).map_err(Failure::new)?;
            LoraChoice::New(LoraSpec { rank, alpha: args.lora_alpha.unwrap_or(2.0 * rank as f32), targets, layers })
        }
    };
    let decay = match args.lr_scheduler {
        SchedulerArg::Constant => Decay::Constant,
        SchedulerArg::Linear => Decay::Linear,
        SchedulerArg::Cosine => Decay::Cosine,
    };
    let (iters, rate) = if built_in { (demo::ITERS, demo::LEARNING_RATE) } else { (1000, 1e-4) };
    Ok(TrainOptions {
        model: args.model.clone().map_or(demo::MODEL, |path| args.run.source(path)),
        data: args.data.clone().map_or(demo::DATA, DataSource::Path),
        adapter_path: args.adapter_path.clone(),
        lora,
        iters: args.iters.unwrap_or(iters),
        batch_size: args.batch_size,
        accumulation: args.grad_accumulation_steps,
        max_seq_length: args.max_seq_length,
        optimizer: match args.optimizer {
            OptimizerArg::Adamw => Optimizer::AdamW,
            OptimizerArg::Adamw8bit => Optimizer::AdamW8bit,
            OptimizerArg::Sgd => Optimizer::Sgd,
        },
        weight_decay: args.weight_decay,
        schedule: Schedule { peak: args.learning_rate.unwrap_or(rate), decay, warmup: args.warmup_steps },
        policy: match args.grad_checkpoint {
            CheckpointArg::None => PolicyChoice::Named(PolicyName::None),
            CheckpointArg::Block => PolicyChoice::Named(PolicyName::Block),
            CheckpointArg::Selective => PolicyChoice::Named(PolicyName::Selective),
            CheckpointArg::Auto => PolicyChoice::Auto,
        },
        shuffle: !args.no_shuffle,
        seed: args.seed,
        steps_per_report: args.steps_per_report,
        budget: args.run.budget()?,
        spill_folder: args.spill_dir.clone(),
        max_grad_norm: args.max_grad_norm,
        run: args.run.options(),
    })
}

/// What the built-in model answers, with or without the adapter.
fn sample(options: &TrainOptions, adapted: bool) -> Result<String, Failure> {
    let mut text = String::new();
    let request = generate::Request {
        model: options.model.clone(),
        adapter: adapted.then(|| options.adapter_path.clone()),
        prompt: demo::PROMPT.into(),
        chat: false,
        max_tokens: 24,
        sampling: Sampling { temperature: 0.0, top_p: 1.0, seed: 0 },
        budget: options.budget,
        run: options.run,
    };
    request.stream(&mut |piece| text.push_str(piece))?;
    Ok(text.split('\n').next().unwrap_or_default().into())
}

struct Printer {
    start: Instant,
    log: LogArg,
    trace: Option<Trace>,
    /// What the plan was made for.
    budget: Option<usize>,
    /// What the machine advises.
    watch: Watch,
}

impl Host for Printer {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn advice(&mut self) -> Advice {
        self.watch.advice(self.start.elapsed())
    }

    fn event(&mut self, event: Event) {
        if let Some(trace) = &self.trace {
            match event {
                Event::Step { iter } => trace.step(iter),
                Event::Report(report) if report.iter == report.iters => trace.end(),
                _ => {}
            }
        }
        match (event, self.log) {
            (Event::Step { .. }, _) => {}
            (Event::Report(report), LogArg::Jsonl) => say(&json_line(&report)),
            (Event::Report(report), LogArg::Text) => say(&text_line(&report)),
            (Event::Prepared { records, tokens, longest, cut, skipped }, _) => {
                note(&format!("Data: {records} records, {tokens} tokens, the longest {longest}"));
                if cut > 0 {
                    let limit = "--max-seq-length, or the model's positions";
                    note(&format!("Data: {cut} records were longer than {longest} tokens and were cut ({limit})"));
                }
                if skipped > 0 {
                    note(&format!("Data: {skipped} records of fewer than two tokens were left out"));
                }
            }
            (Event::Planned { plan, budget, machine, trainable }, _) => {
                self.budget = budget.bytes().unwrap_or(None);
                note(&planned(plan, budget, machine, trainable));
            }
            (Event::Measured(alone), _) => note(&products_alone(alone)),
            (Event::Validated { iter, outcome }, _) => {
                note(&format!("Iter {iter}: Val loss {:.3}", mean_loss(outcome)));
            }
            (Event::Saved(folder), _) => note(&format!("Saved the adapter to {}", folder.display())),
        }
    }
}

fn mean_loss(outcome: Outcome) -> f64 {
    outcome.loss / outcome.targets.max(1) as f64
}

fn json_line(report: &Report) -> String {
    let line = json!({
        "iter": report.iter,
        "loss": report.loss,
        // As short as a person would write it: an f32 widened to f64 shows digits that it never had.
        "lr": report.lr.to_string().parse::<f64>().unwrap_or_default(),
        "iters_per_second": report.iters_per_second,
        "tokens_per_second": report.tokens_per_second,
        "mfu": report.mfu,
        "trained_tokens": report.trained_tokens,
        "peak_rss_bytes": report.peak.total,
        "peak_anon_bytes": report.peak.anon,
        "planned_peak_bytes": report.planned_peak,
    });
    format!("{line}\n")
}

fn text_line(report: &Report) -> String {
    format!(
        "Iter {}: Train loss {:.3}, Learning Rate {:.3e}, It/sec {:.3}, Tokens/sec {:.1}, MFU {}, Trained Tokens {}, Peak mem {:.3} GB\n",
        report.iter,
        report.loss,
        report.lr,
        report.iters_per_second,
        report.tokens_per_second,
        report.mfu.map_or("unknown".into(), |mfu| format!("{:.1} %", 100.0 * mfu)),
        report.trained_tokens,
        report.peak.total as f64 / 1e9
    )
}

/// What MFU is a share of.
fn products_alone(alone: Alone) -> String {
    format!(
        "Products: {}x{} in {} with {} rows reach {:.1} GFLOP/s alone forward, {:.1} backward; MFU is of the faster",
        alone.rows,
        alone.cols,
        alone.ty.name(),
        alone.n,
        alone.forward / 1e9,
        alone.backward / 1e9
    )
}

/// The plan as a table of bars.
fn planned(plan: &Plan, budget: Budget, machine: Machine, trainable: usize) -> String {
    let memory = plan.memory;
    let parts = [
        ("weights, mapped", memory.weights),
        ("process", memory.process),
        ("step", memory.program),
        ("optimizer", memory.optimizer),
        ("adapter", memory.adapter),
        ("gradients", memory.gradients),
        ("tables", memory.tables),
        ("stacks", memory.stacks),
    ];
    let of = match budget.bytes() {
        Ok(Some(bytes)) => format!(" of {} ({})", mib(bytes), budget.origin()),
        _ => format!(" ({})", budget.origin()),
    };
    let mut text = format!(
        "Plan: {trainable} trainable numbers, {} threads, {} in {:?}; peak {}{of}\nPlan: {}",
        machine.threads,
        machine.isa.name(),
        machine.precision,
        mib(plan.peak()),
        crate::plan::how(plan)
    );
    for (name, bytes) in parts.into_iter().filter(|&(_, bytes)| bytes > 0) {
        text.push_str(&format!("\n  {name:<16} {:>12} {}", mib(bytes), bar(bytes, plan.peak(), 30)));
    }
    text
}

fn closing(options: &TrainOptions, summary: &Summary, took: Duration) -> String {
    let mut text = format!(
        "\nTrained {} updates in {:.1} s.\n  memory  planned {}, measured {} ({} of its own)\n          {}\n",
        options.iters,
        took.as_secs_f64(),
        mib(summary.plan.peak()),
        mib(summary.peak.total),
        mib(summary.peak.anon),
        bar(summary.peak.total, summary.plan.peak(), 40)
    );
    match summary.valid {
        Some((before, after)) => {
            text.push_str(&format!(
                "  loss    {:.3} before, {:.3} after (validation)\n",
                mean_loss(before),
                mean_loss(after)
            ));
        }
        None => text.push_str(&format!("  loss    {:.3} first, {:.3} last\n", summary.first_loss, summary.last_loss)),
    }
    text
}
