//! `pocketune-bench breakdown`: where the time of a step goes, by kind of instruction as the interpreter runs them, and how much of it is
//! dequantisation. The latter happens inside products, so it is estimated: a product takes `a + b n` for `n` rows, and `a`, what it costs
//! before its first row, is reading and dequantising the weight. It is found from two numbers of rows, for every frozen linear of the step.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use clap::Args;
use pocketune::graph::WeightId;
use pocketune::plan::{Instr, Program};
use pocketune_kernels::matmul::{self, Ctx, Start, Weight, nn, nn_scratch, nt, nt_scratch};
use pocketune_kernels::{BlockType, Pool};

use crate::failure::{Failure, Result};
use crate::process::processor;
use crate::say;
use crate::stepper::Stepper;
use crate::steps;

/// What `breakdown` was asked for.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    stepped: steps::Options,
    /// Steps after the first.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
}

/// Kinds of instructions, in the order of the table.
const KINDS: [&str; 12] = [
    "linears, forward",
    "linears, computed again",
    "linears, backward",
    "adapters' first factors",
    "attention",
    "attention, backward",
    "norms",
    "gated products",
    "rotations, sums, embedding",
    "head and loss",
    "updates",
    "waiting for values on disk",
];

/// Where an instruction belongs; `again` after the loss.
fn kind(instr: &Instr, again: bool) -> usize {
    match instr {
        Instr::Linear { .. } => usize::from(again),
        Instr::LinearBackward { .. } => 2,
        Instr::LoraDown { .. }
        | Instr::LoraDownBackward { .. }
        | Instr::VeraDown { .. }
        | Instr::VeraDownBackward { .. }
        | Instr::VeraUp { .. }
        | Instr::VeraUpBackward { .. } => 3,
        Instr::Dropout { .. } | Instr::DropoutBackward { .. } | Instr::Lengths { .. } => 3,
        Instr::Magnitude { .. } | Instr::MagnitudeBackward { .. } | Instr::EmbedBackward { .. } => 3,
        Instr::Attention { .. } | Instr::CachedAttention { .. } => 4,
        Instr::AttentionBackward { .. } => 5,
        Instr::Norm { .. } | Instr::NormBackward { .. } => 6,
        Instr::Normalise { .. } | Instr::Affine { .. } | Instr::SharedNormBackward { .. } => 6,
        Instr::Gated { .. } | Instr::GatedBackward { .. } => 7,
        Instr::Activation { .. } | Instr::ActivationBackward { .. } | Instr::LevelsBackward { .. } => 7,
        Instr::Rope { .. } | Instr::Add { .. } | Instr::Copy { .. } | Instr::Embed { .. } => 8,
        Instr::CrossEntropy { .. } | Instr::Classify { .. } | Instr::Logits { .. } => 9,
        Instr::Update { .. } => 10,
        Instr::Spill { .. } | Instr::Spilled { .. } | Instr::Fetch { .. } | Instr::Fetched { .. } => 11,
        Instr::NormGradient { .. } | Instr::BiasGradient { .. } => 6,
        Instr::Learn { .. } | Instr::LearnTable { .. } => 2,
    }
}

/// Times steps and prints the table.
///
/// # Errors
/// When the set-up or a step fails.
pub fn run(options: &Options) -> Result<()> {
    let mut stepper = options.stepped.stepper()?;
    stepper.step()?;
    let mut spent = [Duration::ZERO; KINDS.len()];
    // The kind and the shortest time of every instruction of a step.
    let mut shortest: Vec<(usize, Duration)> = Vec::new();
    for _ in 0..options.steps {
        let (mut again, mut last, mut at) = (false, Instant::now(), 0);
        stepper.step_watched(&mut |instr| {
            again |= instr.loss().is_some();
            let (now, kind) = (Instant::now(), kind(instr, again));
            let took = now - last;
            spent[kind] += took;
            match shortest.get_mut(at) {
                Some((_, least)) => *least = took.min(*least),
                None => shortest.push((kind, took)),
            }
            (at, last) = (at + 1, now);
        })?;
    }
    let mut least = [Duration::ZERO; KINDS.len()];
    shortest.iter().for_each(|&(kind, took)| least[kind] += took);
    let step = spent.iter().sum::<Duration>().as_secs_f64() / f64::from(options.steps);
    let undisturbed = least.iter().sum::<Duration>().as_secs_f64();
    let (alone, machine) = (stepper.alone(Duration::from_millis(500))?, stepper.task.machine);
    let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
    let mut text = format!(
        "{} at {} tokens, rank {}, {}, {:.1} MiB planned, {:.1} MiB spilled; {} in {:?}, {} threads; {}\n\n| kind | s a step | share | at best | share |\n|---|--:|--:|--:|--:|\n",
        options.stepped.model.display(),
        options.stepped.seq,
        options.stepped.rank,
        stepper.plan.policy.keep.words(stepper.plan.program.blocks()),
        mib(stepper.plan.peak()),
        mib(stepper.plan.spilled()),
        machine.isa.name(),
        machine.precision,
        machine.threads,
        processor()
    );
    let mut line = |name: &str, seconds: f64, least: f64| {
        let (share, of_least) = (100.0 * seconds / step, 100.0 * least / undisturbed);
        text.push_str(&format!("| {name} | {seconds:.4} | {share:.1} % | {least:.4} | {of_least:.1} % |\n"));
    };
    for (name, (spent, least)) in KINDS.iter().zip(spent.into_iter().zip(least)) {
        line(name, spent.as_secs_f64() / f64::from(options.steps), least.as_secs_f64());
    }
    line("all", step, undisturbed);
    let dequantisation = dequantisation(&stepper)?;
    line("of that dequantisation, about", dequantisation, dequantisation);
    let mfu = |step: f64| 100.0 * stepper.flops() / step / alone.rate();
    text.push_str(&format!(
        "\nMFU {:.1} %, at best {:.1}: {:.1} GFLOP/s of {:.1} that the largest product reaches alone\n",
        mfu(step),
        mfu(undisturbed),
        stepper.flops() / step / 1e9,
        alone.rate() / 1e9
    ));
    say(&text);
    Ok(())
}

/// A product's shape and direction, and how many rows it meets at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    ty: BlockType,
    rows: usize,
    cols: usize,
    backward: bool,
    n: usize,
}

/// Seconds of a step that go to reading and dequantising weights.
fn dequantisation(stepper: &Stepper) -> Result<f64> {
    let pool = Pool::new(stepper.task.machine.threads).map_err(|error| Failure::new(error.to_string()))?;
    let mut known: HashMap<Shape, f64> = HashMap::new();
    let mut total = 0.0;
    for (weight, backward, n, times) in products(&stepper.plan.program) {
        let matrix = stepper.cpu.weights().matrix(weight);
        let shape = Shape { ty: matrix.ty, rows: matrix.rows, cols: matrix.cols, backward, n };
        let seconds = *known.entry(shape).or_insert_with(|| before_the_first_row(stepper, &pool, matrix, shape));
        total += times as f64 * seconds;
    }
    Ok(total)
}

/// Every product with a frozen weight: which, in which direction, with how many rows at once, and how many times.
fn products(program: &Program) -> Vec<(WeightId, bool, usize, usize)> {
    let mut found = Vec::new();
    for (at, instr) in program.instrs.iter().enumerate() {
        let in_pieces = program.regions.iter().any(|region| (region.start..region.end).contains(&at));
        let rows = if in_pieces { program.rows.min(program.tokens) } else { program.tokens };
        let times = program.tokens.div_ceil(rows);
        match *instr {
            Instr::Linear { weight, .. } => found.push((weight, false, rows, times)),
            Instr::LinearBackward { weight, gx: Some(_), .. } => found.push((weight, true, rows, times)),
            Instr::CrossEntropy { weight, rows, gx, .. } => {
                let times = program.tokens.div_ceil(rows);
                found.push((weight, false, rows, times));
                if gx.is_some() {
                    found.push((weight, true, rows, times));
                }
            }
            _ => {}
        }
    }
    found
}

/// Seconds of a product that do not grow with its rows; none where it has too few to tell.
fn before_the_first_row(stepper: &Stepper, pool: &Pool, matrix: Weight, shape: Shape) -> f64 {
    /// One tile of rows.
    const FEW: usize = 32;
    let machine = stepper.task.machine;
    let Shape { ty, rows, cols, backward, n } = shape;
    let (isa, precision, threads) = (machine.isa, machine.precision, machine.threads);
    let (from, to) = if backward { (rows, cols) } else { (cols, rows) };
    let scratch = if backward { nn_scratch } else { nt_scratch };
    let len = scratch(matmul::Shape { ty, rows, cols, n: n.max(FEW), rank: 0 }, threads, isa, precision);
    let (x, mut y, mut scratch) = (vec![0.5; n.max(FEW) * from], vec![0.0; n.max(FEW) * to], vec![0.0; len]);
    let mut least = |n: usize| {
        let mut ctx = Ctx { pool, isa, precision, scratch: &mut scratch };
        let (begin, mut least, mut runs) = (Instant::now(), f64::INFINITY, 0);
        while runs < 3 || begin.elapsed() < Duration::from_millis(100) {
            let start = Instant::now();
            if backward {
                nn(&mut ctx, matrix, &x[..n * from], n, &mut y[..n * to], Start::Zero, None);
            } else {
                nt(&mut ctx, matrix, &x[..n * from], n, &mut y[..n * to], Start::Zero, None);
            }
            least = least.min(start.elapsed().as_secs_f64());
            runs += 1;
        }
        least
    };
    let few = least(FEW);
    if n <= FEW {
        return few;
    }
    intercept((FEW, few), (n, least(n)))
}

/// Where the line through two points meets zero rows; never below nothing.
fn intercept((n, t): (usize, f64), (more, longer): (usize, f64)) -> f64 {
    ((t * more as f64 - longer * n as f64) / (more - n) as f64).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_grow_with_rows_is_found_from_two_numbers_of_them() {
        let time = |n: usize| 0.25 + 0.5 * n as f64;
        assert!((intercept((32, time(32)), (256, time(256))) - 0.25).abs() < 1e-9);
        assert_eq!(intercept((32, 1.0), (256, 100.0)), 0.0);
    }
}
