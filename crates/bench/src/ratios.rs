//! `pocketune-bench ratios`: what a step should cost, against what it does. An exact step beside two forward passes, as zeroth-order
//! methods make them; the time of a token as records grow, beside the operations that it takes; and one thread beside two. Programs of a
//! length run in turn in one process, and the least time of each counts.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use pocketune::families::shape;
use pocketune::train::{Budget, PrecisionChoice};

use crate::failure::{Failure, Result};
use crate::process::{cpu_time, processor};
use crate::stepper::{Setup, Stepper};
use crate::weights::WeightType;
use crate::{say, write_model};

/// What `ratios` was asked for.
#[derive(Args)]
pub struct Options {
    /// The shape.
    #[arg(long, default_value = "smollm2-135m")]
    shape: String,
    /// Lengths of the record.
    #[arg(long, value_delimiter = ',', default_values_t = [256, 512, 1024])]
    seqs: Vec<usize>,
    /// Rank of the adapters, on all seven linears.
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// Rounds after the first; each runs everything once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The folder that models are kept in.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    models: PathBuf,
}

/// An exact step costs at most this many times two forward passes; two threads give at least this many times the speed of one.
const MOST_AGAINST_FORWARD: f64 = 1.6;
const LEAST_SCALING: f64 = 1.8;

/// What one length came to: least seconds.
struct Length {
    exact: f64,
    forward: f64,
    /// Wall seconds of an exact step with one thread, and with two where there are as many cores.
    wall: [Option<f64>; 2],
    flops: f64,
}

/// Measures and prints.
///
/// # Errors
/// When a file can't be written, a run fails, or a ratio is worse than it must be.
pub fn run(options: &Options) -> Result<()> {
    let config = shape(&options.shape)?;
    let path = options.models.join(format!("{}-q4_0.gguf", options.shape));
    if !path.exists() {
        write_model::write(&config, &options.shape, WeightType::Q4_0, &path)?;
    }
    say(&format!(
        "{} in Q4_0, rank {}, batch 1, plans by the engine's choice; least of {} rounds; {}\n\n\
         | seq | exact, CPU s | forward, CPU s | exact / two forwards | a token's time against the first length | by operations | 1 -> 2 threads |\n\
         |--:|--:|--:|--:|--:|--:|--:|\n",
        options.shape,
        options.rank,
        options.rounds,
        processor()
    ));
    let (mut first, mut faults): (Option<(f64, f64)>, Vec<String>) = (None, Vec::new());
    for &seq in &options.seqs {
        let length = measure(options, &path, seq)?;
        let token = (length.exact / seq as f64, length.flops / seq as f64);
        let (time, operations) = *first.get_or_insert(token);
        let against = length.exact / (2.0 * length.forward);
        let scaling = length.wall[0].zip(length.wall[1]).map(|(one, two)| one / two);
        say(&format!(
            "| {seq} | {:.3} | {:.3} | {against:.2} | {:.2} | {:.2} | {} |\n",
            length.exact,
            length.forward,
            token.0 / time,
            token.1 / operations,
            scaling.map_or("one core".into(), |scaling| format!("{scaling:.2}"))
        ));
        if against > MOST_AGAINST_FORWARD {
            faults.push(format!("at {seq} tokens an exact step is {against:.2} times two forward passes"));
        }
        if scaling.is_some_and(|scaling| scaling < LEAST_SCALING) {
            faults.push(format!("at {seq} tokens two threads are {:.2} times one", scaling.unwrap_or(0.0)));
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(faults.join("; "))),
    }
}

fn measure(options: &Options, path: &std::path::Path, seq: usize) -> Result<Length> {
    let setup = Setup {
        model: path,
        seq,
        rank: options.rank,
        threads: Some(1),
        precision: PrecisionChoice::Auto,
        policy: None,
        budget: Budget::Available,
        forward_only: false,
    };
    let cores = pocketune::threads::default();
    let mut exact = Stepper::new(setup)?;
    let mut forward = Stepper::new(Setup { forward_only: true, ..setup })?;
    let mut two = (cores > 1).then(|| Stepper::new(Setup { threads: Some(2), ..setup })).transpose()?;
    let mut length = Length { exact: f64::INFINITY, forward: f64::INFINITY, wall: [None; 2], flops: exact.flops() };
    for round in 0..=options.rounds {
        let (exact_cpu, one) = timed(&mut exact)?;
        let (forward_cpu, _) = timed(&mut forward)?;
        let two = two.as_mut().map(timed).transpose()?.map(|(_, wall)| wall);
        // The first round brings pages in.
        if round > 0 {
            length.exact = length.exact.min(exact_cpu);
            length.forward = length.forward.min(forward_cpu);
            for (least, wall) in length.wall.iter_mut().zip([Some(one), two]) {
                *least = wall.map(|wall| least.unwrap_or(f64::INFINITY).min(wall));
            }
        }
    }
    Ok(length)
}

/// CPU seconds and wall seconds of a step.
fn timed(stepper: &mut Stepper) -> Result<(f64, f64)> {
    let me = std::process::id();
    let (before, start) = (cpu_time(me)?, Instant::now());
    stepper.step()?;
    let wall = start.elapsed().as_secs_f64();
    Ok((cpu_time(me)?.saturating_sub(before).as_secs_f64(), wall))
}
