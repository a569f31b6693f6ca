//! `pocketune-bench trade`: what memory costs in time. Steps of one model under plans that keep less and less are run in turn in one
//! process, all with the same numbers, and their CPU time is set beside the bytes that wait for the backward pass. Every plan runs
//! between two steps of the one that keeps everything and is compared with their mean, and the median of these ratios counts: a processor that slows down
//! for a minute slows all three. The shortest steps of all rounds are compared too, which others on the machine disturbed least. One forward pass runs along, as what a block's recomputation may cost. Nothing is spilled here, and weights stay resident: the curve
//! is of keeping against computing again.

mod drawing;

use std::path::PathBuf;

use clap::Args;
use pocketune::backend::{Cpu, Weights};
use pocketune::families::{Config, shape};
use pocketune::graph::LoraSpec;
use pocketune::model::{Model, Source};
use pocketune::plan::{Keep, Kind, Mode, Plan, Policy, PolicyName, Spill, States};
use pocketune::store;
use pocketune::train::{Budget, PrecisionChoice, RunOptions, Task, adapter};

use crate::failure::Result;
use crate::process::cpu_time;
use crate::stepper::{Record, rule};
use crate::weights::WeightType;
use crate::write_model;
use drawing::Point;

/// What `trade` was asked for.
#[derive(Args)]
pub struct Options {
    /// The shape.
    #[arg(long, default_value = "qwen2.5-0.5b")]
    shape: String,
    /// Tokens of the one record of a step.
    #[arg(long, default_value_t = 512)]
    seq: usize,
    /// Rounds after the first; each runs every plan once.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The folder that models are kept in.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    models: PathBuf,
    /// Draw the curve.
    #[arg(long, value_name = "FILE.svg")]
    picture: Option<PathBuf>,
}

/// Shares of what eager autograd keeps that the curve is read at.
const SHARES: [f64; 4] = [0.5, 0.375, 0.25, 0.125];

/// Measures and prints the curve.
///
/// # Errors
/// When a file can't be written or a run fails.
pub fn run(options: &Options) -> Result<()> {
    options.picture.as_deref().map_or(Ok(()), store::check_file)?;
    let config = shape(&options.shape)?;
    let path = options.models.join(format!("{}-q4_0.gguf", options.shape));
    if !path.exists() {
        write_model::write(&config, &options.shape, WeightType::Q4_0, &path)?;
    }
    let lora = LoraSpec::default();
    let model = Model::open(&Source::Path(path.clone()))?;
    let graph = model.config.graph(Some(&lora))?;
    let stored = Weights::bind(model.files, &model.config, &graph)?.stored();
    let run = RunOptions { threads: Some(1), precision: PrecisionChoice::Auto, rates: None };
    let mode = Mode::TrainAndUpdate;
    let task = Task::forward(run, &model.config, stored, Some(lora), mode, (1, options.seq))?;
    let task = Task { states: States::F32, ..task };
    let mut plans = plans(&task, eager(&config, options.seq))?;
    let forward = Task { mode: Mode::Evaluate, states: States::None, ..task };
    plans.push(forward.choose(Budget::Available)?);
    let mut cpus = Vec::new();
    for plan in &plans {
        let weights = Weights::bind(Model::open(&Source::Path(path.clone()))?.files, &model.config, &graph)?;
        let mut cpu = Cpu::new(task.machine, weights, &graph, plan.layout.clone(), &[&plan.program], &options.models)?;
        adapter::initialise(&mut cpu, &graph, 0)?;
        cpus.push(cpu);
    }
    let record = Record::random(options.seq);
    let mut step = |at: usize, step: u64| -> Result<f64> {
        let before = cpu_time(std::process::id())?;
        cpus[at].run(&plans[at].program, record.batch(), 0, Some(rule(step)))?;
        Ok(cpu_time(std::process::id())?.saturating_sub(before).as_secs_f64())
    };
    // The time of each, and how it compares with the steps of the first around it.
    let mut times = vec![(Vec::new(), Vec::new()); plans.len()];
    for round in 0..=u64::from(options.rounds) {
        let mut before = step(0, round + 1)?;
        for (at, (seconds, ratios)) in times.iter_mut().enumerate() {
            let took = step(at, round + 1)?;
            let after = if at == 0 { took } else { step(0, round + 1)? };
            // The first round brings pages in.
            if round > 0 {
                seconds.push(took);
                ratios.push(if at == 0 { 1.0 } else { 2.0 * took / (before + after) });
            }
            before = after;
        }
    }
    let shortest = least(&times[0].0);
    let mut points: Vec<Point> = plans
        .iter()
        .zip(times)
        .map(|(plan, (seconds, ratios))| point(plan, least(&seconds), [median(ratios), least(&seconds) / shortest]))
        .collect();
    let forward = points.pop().map_or([0.0; 2], |point| [point.ratio, point.least]);
    let title =
        format!("{} at {} tokens, batch 1, rank 8, 1 thread, {}", options.shape, options.seq, task.machine.isa.name());
    print(&title, eager(&config, options.seq), &points);
    let [ratio, least] = forward.map(|part| 100.0 * part);
    println!("\none forward pass: {ratio:.1} % of the first row, shortest {least:.1} %; {} rounds", options.rounds);
    if let Some(path) = &options.picture {
        store::write_file(path, drawing::draw(&title, eager(&config, options.seq), &points).as_bytes())?;
    }
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

fn least(numbers: &[f64]) -> f64 {
    numbers.iter().copied().fold(f64::INFINITY, f64::min)
}

fn point(plan: &Plan, seconds: f64, [ratio, least]: [f64; 2]) -> Point {
    let keep = plan.policy.keep;
    let names = [PolicyName::None, PolicyName::Selective, PolicyName::Block];
    let name = names.into_iter().find(|name| keep == Keep::all(name.keeps())).map(PolicyName::word);
    Point { kept: kept(plan), seconds, ratio, least, words: keep.words(plan.program.blocks()), name }
}

/// The ladder of what to keep, and at each share the fastest plan that keeps no more.
fn plans(task: &Task, eager: usize) -> Result<Vec<Plan>> {
    let plain = |policy: &Policy| {
        policy.rows == usize::MAX
            && policy.every == [1, 1]
            && policy.spill == Spill::No
            && policy.loss_rows == Policy::LOSS_ROWS
            && !policy.stream
            && !policy.page_optimizer
    };
    let all: Vec<Plan> = task
        .with(|setting, _| setting.policies().into_iter().filter(plain).map(|policy| setting.plan(policy)).collect())?;
    let mut picked: Vec<Plan> = all.iter().filter(|plan| plan.policy.keep.split == 0).cloned().collect();
    for share in SHARES {
        let fits = all.iter().filter(|plan| kept(plan) as f64 <= share * eager as f64);
        picked.extend(fits.min_by(|a, b| a.seconds().total_cmp(&b.seconds())).cloned());
    }
    picked.sort_by_key(|plan| std::cmp::Reverse(kept(plan)));
    picked.dedup_by_key(|plan| plan.policy);
    Ok(picked)
}

/// Bytes that wait for the backward pass while the loss is computed.
fn kept(plan: &Plan) -> usize {
    let loss = plan.program.instrs.iter().position(|instr| instr.loss().is_some()).unwrap_or(0);
    let waits = plan.program.buffers.iter().filter(|b| b.kind == Kind::Checkpoint && b.first < loss && loss < b.last);
    waits.map(|buffer| buffer.len * 4).sum()
}

/// Bytes that eager autograd keeps in f32: attention's probabilities, q, k, v and its output; gate, up and their product; the inputs
/// and outputs of both norms.
fn eager(config: &Config, seq: usize) -> usize {
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let a_token = config.heads * seq + 2 * q + 2 * kv + 3 * config.ffn + 4 * config.hidden;
    4 * a_token * seq * config.layers
}

fn print(title: &str, eager: usize, points: &[Point]) {
    println!(
        "{title}; eager autograd keeps {:.1} MB\n\n| kept MB | of eager | shortest step, CPU s | against none | shortest against shortest | what is kept |\n|--:|--:|--:|--:|--:|---|",
        eager as f64 / 1e6
    );
    for point in points {
        println!(
            "| {:.1} | {:.1} % | {:.3} | {:+.1} % | {:+.1} % | {} |",
            point.kept as f64 / 1e6,
            100.0 * point.kept as f64 / eager as f64,
            point.seconds,
            100.0 * (point.ratio - 1.0),
            100.0 * (point.least - 1.0),
            point.words
        );
    }
}
