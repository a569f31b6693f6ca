//! `pocketune-bench steps`: ours as `bench/peers` measures it. It sets a model up, says so in a line of JSON, and answers each line it
//! reads: a number of steps with the last loss, `alone` with what its largest product reaches by itself. It times no step: whoever asks
//! measures from outside, ours and others alike.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use pocketune::plan::PolicyName;
use pocketune::train::{Budget, PrecisionChoice};
use serde_json::{Value, json};

use crate::failure::{Failure, Result};
use crate::stepper::{Setup, Stepper};

/// How long the largest product is run alone, in each direction.
const ALONE: Duration = Duration::from_millis(300);

/// What is stepped: all of what `steps` was asked for.
#[derive(Args)]
pub struct Options {
    /// A GGUF file.
    #[arg(long)]
    pub model: PathBuf,
    /// Tokens of the one record of a step.
    #[arg(long, default_value_t = 256)]
    pub seq: usize,
    /// Rank of the adapters, on all seven linears.
    #[arg(long, default_value_t = 16)]
    pub rank: usize,
    /// Threads [default: all].
    #[arg(long)]
    threads: Option<usize>,
    /// What is kept for the backward pass.
    #[arg(long, value_enum)]
    grad_checkpoint: Option<Checkpoint>,
    /// The whole process, at most, as `pocketune train` takes it [default: what is available].
    #[arg(long, value_parser = |text: &str| Budget::parse(text).map_err(|error| error.to_string()))]
    memory_budget: Option<Budget>,
}

impl Options {
    /// Ready to step.
    ///
    /// # Errors
    /// When the set-up fails.
    pub fn stepper(&self) -> Result<Stepper> {
        Stepper::new(Setup {
            model: &self.model,
            seq: self.seq,
            rank: self.rank,
            threads: self.threads,
            precision: PrecisionChoice::Auto,
            policy: self.grad_checkpoint.map(Into::into),
            budget: self.memory_budget.unwrap_or(Budget::Available),
            forward_only: false,
        })
    }
}

/// Policies by name.
#[derive(Clone, Copy, ValueEnum)]
pub enum Checkpoint {
    /// Everything.
    None,
    /// The input of each block.
    Block,
    /// What is dear.
    Selective,
}

impl From<Checkpoint> for PolicyName {
    fn from(name: Checkpoint) -> Self {
        match name {
            Checkpoint::None => PolicyName::None,
            Checkpoint::Block => PolicyName::Block,
            Checkpoint::Selective => PolicyName::Selective,
        }
    }
}

/// Runs steps until nobody asks any more.
///
/// # Errors
/// When the set-up or a step fails, or a request is no number.
pub fn run(options: &Options) -> Result<()> {
    let mut stepper = options.stepper()?;
    let machine = stepper.task.machine;
    answer(&json!({
        "trainable": stepper.graph.trainable(),
        "frozen": stepper.frozen(),
        "flops": stepper.flops(),
        "about": format!("pocketune {}, {} in {:?}", env!("CARGO_PKG_VERSION"), machine.isa.name(), machine.precision),
    }))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::io("standard input", error))?;
        if line == "alone" {
            answer(&json!({ "alone": stepper.alone(ALONE)?.rate() }))?;
            continue;
        }
        let count: usize = line.trim().parse().map_err(|_| Failure::new(format!("'{line}' is no number of steps")))?;
        let mut loss = None;
        for _ in 0..count {
            loss = Some(stepper.step()?);
        }
        answer(&json!({ "loss": loss }))?;
    }
    Ok(())
}

fn answer(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}").and_then(|()| out.flush()).map_err(|error| Failure::io("standard output", error))
}
