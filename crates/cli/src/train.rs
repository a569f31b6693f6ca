//! `pocketune train`: from what was typed to what it means, and what came of it.

use std::time::Duration;

use clap::{ArgMatches, CommandFactory, ValueEnum};
use pocketune::graph::Derivatives;
use pocketune::model::{Model, Source};
use pocketune::plan::{Machine, Plan, PolicyName};
use pocketune::store::{MODEL_FOLDER, hidden_folder, trained_model};
use pocketune::train::{
    Budget, DataOptions, DataSource, Decay, Ending, Method, Optimizer, PolicyChoice, Sampling, Schedule, Summary,
    TrainOptions, train,
};

use pocketune_formats::BlockType;

use crate::args::{CheckpointArg, Cli, FineTuneArg, LogArg, OptimizerArg, OrderArg, SchedulerArg, StoreArg, TrainArgs};
use crate::conditions::Watch;
use crate::memory_bar::{bar, mib};
use crate::progress::Printer;
use crate::trace::Trace;
use crate::{Failure, config, demo, generate, note, say, signals};

/// How a run ended that did not fail.
pub enum End {
    Done,
    Stopped,
}

/// Trains; without a model, the built-in one, with a sample before and after.
pub fn run(args: Box<TrainArgs>, typed: &ArgMatches) -> Result<End, Failure> {
    let built_in = match (&args.model, &args.data) {
        (None, None) => true,
        (Some(_), Some(_)) => false,
        (Some(_), None) => {
            return Err(Failure("--data is missing: a .jsonl file, or a folder with train.jsonl".into()));
        }
        (None, Some(_)) => return Err(Failure("--model is missing: a GGUF file or a Hugging Face folder".into())),
    };
    let log = args.log_format;
    let mut options = options(&args, built_in)?;
    let kept = config::effective(&Cli::command(), typed, &options);
    if args.print_config {
        options.check().map_err(Failure::new)?;
        say(&kept);
        return Ok(End::Done);
    }
    options.kept = Some(kept);
    let trace = args.memory_trace.as_deref().map(Trace::start).transpose()?;
    let prompt = args.sample.as_deref().or(built_in.then_some(demo::PROMPT));
    let before = prompt.map(|prompt| sample(&options, prompt, false)).transpose()?;
    let watch = Watch::new(&args.conditions)?;
    let mut printer = Printer::new(log, args.quiet, trace, watch);
    let summary = match train(&options, &mut printer, &signals::heeded()).map_err(Failure::of_run)? {
        Ending::Done(summary) => summary,
        Ending::Stopped { iter, iters } => {
            printer.clear();
            note(&how_to_go_on(&options, iter, iters));
            return Ok(End::Stopped);
        }
    };
    if let Some(path) = printer.finish(&summary)? {
        note(&format!("Drew one step as planned and as measured to {}", path.display()));
    }
    if log == LogArg::Text && !args.quiet {
        say(&closing(&summary, printer.elapsed()));
        if let (Some(prompt), Some(before)) = (prompt, before) {
            let after = sample(&options, prompt, true)?;
            say(&format!("\n{prompt}\n  before:{before}\n  after: {after}\n"));
        }
        say(&next(&args));
    }
    Ok(End::Done)
}

fn how_to_go_on(options: &TrainOptions, iter: usize, iters: usize) -> String {
    match iter {
        0 => "Stopped before the first update; nothing was kept.".into(),
        _ => format!(
            "Stopped after update {iter} of {iters}; the same command with --resume auto goes on ({}).",
            hidden_folder(&options.adapter_path).display()
        ),
    }
}

pub fn options(args: &TrainArgs, built_in: bool) -> Result<TrainOptions, Failure> {
    let decay = match args.lr_scheduler {
        SchedulerArg::Constant => Decay::Constant,
        SchedulerArg::Linear => Decay::Linear,
        SchedulerArg::Cosine => Decay::Cosine,
    };
    let iters = if built_in { demo::ITERS } else { 1000 };
    let zeroth = args.method.zeroth().is_some();
    let full = args.lora.fine_tune_type == Some(FineTuneArg::Full);
    let all = zeroth && (full || args.method == Method::Qzo);
    let own = args.method.optimizer();
    if (zeroth || own.is_some()) && args.optimizer.is_some() {
        let name = args.method.name();
        if args.method.trains_all() {
            return Err(Failure(format!("--optimizer: {name} has an update of its own; --method full takes one")));
        }
        return Err(Failure(format!("--optimizer: {name} has an update of its own; --method backprop takes one")));
    }
    if args.store.is_some() && !(all || args.method.trains_all()) {
        let name = args.method.name();
        return Err(Failure(format!("--store: {name} leaves the model as it is; --method full trains it")));
    }
    if args.store.is_some() && args.method == Method::Qzo {
        return Err(Failure("--store: qzo keeps the model's own blocks; leave it out".into()));
    }
    let rate = if built_in && !zeroth && !args.method.trains_all() {
        demo::LEARNING_RATE
    } else if all {
        args.method.rate_of_all()
    } else {
        args.method.defaults().rate
    };
    let iters = args.iters.unwrap_or(iters);
    let warmup = match args.warmup_ratio {
        None => args.warmup_steps,
        Some(share) if (0.0..=1.0).contains(&share) => (share * iters as f64).ceil() as usize,
        Some(share) => return Err(Failure(format!("--warmup-ratio {share}: a share lies between 0 and 1"))),
    };
    Ok(TrainOptions {
        model: args.model.clone().map_or(demo::MODEL, |path| args.run.source(path)),
        data: DataOptions {
            val_split: args.val_split,
            seed: args.seed,
            test: args.test,
            adapter: args.lora.init_adapter.clone(),
            ..args.records.options(args.data.clone().map_or(demo::DATA, DataSource::Path))
        },
        adapter_path: args.adapter_path.clone(),
        method: args.method,
        all,
        drop_backward: args.drop_backward.unwrap_or(0.0),
        derivatives: Derivatives { approx_act: args.approx_act, ms_norm: args.ms_norm, ce_skip: args.ce_skip },
        zo_eps: args.zo_eps,
        switch_every: args.switch_every,
        block_order: args.block_order.map(OrderArg::order),
        store: if args.store == Some(StoreArg::F32) { BlockType::F32 } else { BlockType::BF16 },
        lora: args.lora.choice(args.method)?,
        lora_plus: args.lora.lora_plus,
        iters,
        epochs: args.epochs,
        batch_size: args.batch_size,
        accumulation: args.grad_accumulation_steps,
        max_seq_length: args.records.max_seq_length,
        pack: args.pack,
        optimizer: match args.optimizer {
            None if let Some(own) = own => own,
            None | Some(OptimizerArg::Adamw) => Optimizer::AdamW,
            Some(OptimizerArg::Adamw8bit) => Optimizer::AdamW8bit,
            Some(OptimizerArg::Sgd) => Optimizer::Sgd,
        },
        weight_decay: args.weight_decay,
        schedule: Schedule { peak: args.learning_rate.unwrap_or(rate), decay, floor: args.lr_min, warmup },
        policy: match args.grad_checkpoint {
            CheckpointArg::None => PolicyChoice::Named(PolicyName::None),
            CheckpointArg::Block => PolicyChoice::Named(PolicyName::Block),
            CheckpointArg::Selective => PolicyChoice::Named(PolicyName::Selective),
            CheckpointArg::Auto => PolicyChoice::Auto,
        },
        shuffle: !args.no_shuffle,
        seed: args.seed,
        steps_per_report: args.steps_per_report,
        steps_per_eval: args.steps_per_eval,
        val_batches: match args.val_batches {
            -1 => None,
            batches => Some(
                usize::try_from(batches)
                    .map_err(|_| Failure(format!("--val-batches {batches}: a number of batches, or -1 for all")))?,
            ),
        },
        save_best: args.save_best,
        early_stopping: args.early_stopping,
        budget: args.run.budget()?,
        spill_folder: args.spill_dir.clone(),
        max_grad_norm: args.max_grad_norm,
        max_loss_z: args.max_loss_z,
        keeping: args.keeping.options()?,
        run: args.run.options(),
        kept: None,
    })
}

/// How the model continues a prompt, up to a line's end, with or without the adapter; through the run's chat template where it has one.
fn sample(options: &TrainOptions, prompt: &str, adapted: bool) -> Result<String, Failure> {
    let model = Model::open(&options.model).map_err(Failure::new)?;
    let template = &options.data.template;
    let adapter = options.data.adapter.as_deref();
    let chat = template.find(&model, adapter).map_err(Failure::new)?.map(|_| template.clone());
    drop(model);
    let mut text = String::new();
    let whole = adapted && options.trains_all();
    let request = generate::Request {
        model: if whole { Source::Path(trained_model(&options.adapter_path)) } else { options.model.clone() },
        adapter: (adapted && !whole).then(|| options.adapter_path.clone()),
        prompt: prompt.into(),
        chat,
        max_tokens: 24,
        sampling: Sampling { temperature: 0.0, top_p: 1.0, seed: 0 },
        budget: options.budget,
        run: options.run,
    };
    request.stream(&mut |piece| text.push_str(piece))?;
    let line = text.trim_start_matches('\n').split('\n').next().unwrap_or_default();
    Ok(if line.starts_with(' ') { line.into() } else { format!(" {line}") })
}

/// Where the files are, and what to type next.
fn next(args: &TrainArgs) -> String {
    let quoted = |path: &std::path::Path| {
        let text = path.display().to_string();
        if text.contains([' ', '\'', '"']) { format!("{text:?}") } else { text }
    };
    let adapter = quoted(&args.adapter_path);
    let task = args.records.task.and_then(|task| task.to_possible_value());
    let task = task.map_or(String::new(), |task| task.get_name().to_owned());
    if args.method.trains_all() || args.lora.fine_tune_type == Some(FineTuneArg::Full) {
        let (model, folder) = (trained_model(&args.adapter_path), args.adapter_path.join(MODEL_FOLDER));
        let again = match model != folder && folder.join("config.json").exists() {
            true => format!("          {}: the same as a Hugging Face folder\n", quoted(&folder)),
            false => String::new(),
        };
        let model = quoted(&model);
        let next = match &args.data {
            Some(data) if !task.is_empty() => format!("eval --task {task} --model {model} --data {}", quoted(data)),
            _ => format!("generate --model {model} --prompt \"…\""),
        };
        return format!(
            "\n  files   {model}: the model, and pocketune.yaml, which says how it was made\n{again}  next    pocketune {next}\n"
        );
    }
    let next = match (&args.model, &args.data) {
        (Some(model), Some(data)) if !task.is_empty() => {
            format!(
                "pocketune eval --task {task} --model {} --adapter {adapter} --data {}",
                quoted(model),
                quoted(data)
            )
        }
        (Some(model), _) if args.adapter_path.join(pocketune::store::TEMPLATE).exists() => {
            format!("pocketune chat --model {} --adapter {adapter}", quoted(model))
        }
        (Some(model), _) => format!("pocketune generate --model {} --adapter {adapter} --prompt \"…\"", quoted(model)),
        _ => "pocketune pull smollm2-135m, then pocketune train --model … --data … for data of your own".into(),
    };
    format!(
        "\n  files   {adapter}: the adapter in PEFT's format, and pocketune.yaml, which says how it was made\n  next    {next}\n"
    )
}

/// The plan as a table of bars.
pub fn planned(plan: &Plan, (budget, bytes): (Budget, Option<usize>), machine: Machine, trainable: usize) -> String {
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
    let of = match bytes {
        Some(bytes) => format!(" of {} ({})", mib(bytes), budget.origin()),
        None => format!(" ({})", budget.origin()),
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

fn closing(summary: &Summary, took: Duration) -> String {
    let mut text = format!(
        "\nTrained {} updates in {:.1} s.\n  memory  planned {}, measured {} ({} of its own)\n          {}\n",
        summary.iters,
        took.as_secs_f64(),
        mib(summary.plan.peak()),
        mib(summary.peak.total),
        mib(summary.peak.anon),
        bar(summary.peak.total, summary.plan.peak(), 40)
    );
    if summary.skipped > 0 {
        text.push_str(&format!("  skipped {} updates whose numbers were bad\n", summary.skipped));
    }
    match summary.valid {
        Some((before, after)) => {
            text.push_str(&format!(
                "  loss    {:.3} before, {:.3} after (validation)\n",
                before.mean_loss(),
                after.mean_loss()
            ));
        }
        None => text.push_str(&format!("  loss    {:.3} first, {:.3} last\n", summary.first_loss, summary.last_loss)),
    }
    if let Some(iter) = summary.best {
        text.push_str(&format!("  kept    what there was after update {iter}, of the lowest validation loss\n"));
    }
    if let Some(test) = summary.test {
        let loss = test.mean_loss();
        let accuracy = 100.0 * test.accuracy();
        text.push_str(&format!("  test    loss {loss:.3}, perplexity {:.3}, accuracy {accuracy:.1} %\n", loss.exp()));
    }
    text
}
