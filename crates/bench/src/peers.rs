//! `pocketune-bench peers`: steps of ours and of PyTorch + PEFT on the same shapes, in turn. Each is a process of its own that stays
//! alive and waits while the others run; all are asked for a few steps at a time, round after round, so that whatever else the machine
//! does hits all alike, and all are measured from outside by the same clocks. A program that can't run is reported and the rest goes on;
//! a row that is not as far ahead as it must be makes the command fail at the end.

mod child;
mod llama;
mod rows;
mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::{Args, ValueEnum};
use pocketune::families::shape;
use pocketune::store;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::process::{load, processor};
use crate::weights::WeightType;
use crate::{note, say, write_model};
use child::Program;
use rows::Row;
use table::{Block, Measured};

const BLOCK: &str = "ours, block";
const NONE: &str = "ours, none";
const PYTORCH: &str = "PyTorch";
const CHECKPOINTING: &str = "PyTorch, checkpointing";
const LLAMA: &str = "llama.cpp trainer";
/// Those that are asked in turn.
const NAMES: [&str; 4] = [BLOCK, NONE, PYTORCH, CHECKPOINTING];

/// Rank of the adapters, on all seven linears.
const RANK: usize = 16;

/// A load above which figures are doubtful.
const BUSY: f64 = 0.5;

/// The program that the peer is.
const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/peer.py");

/// What PyTorch computes in.
#[derive(Clone, Copy, ValueEnum)]
enum Precision {
    Bf16,
    F32,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Precision::Bf16 => "bf16",
            Precision::F32 => "f32",
        }
    }
}

/// What `peers` was asked for.
#[derive(Args)]
pub struct Options {
    /// Rows to run, such as smollm2-135m@256; a shape alone means 256, 512 and 1024 tokens [default: smollm2-135m,qwen2.5-0.5b,qwen2.5-1.5b].
    #[arg(long, value_delimiter = ',', value_name = "SHAPE[@SEQ]")]
    rows: Vec<String>,
    /// Threads to run with, one after the other; all means as many as training takes by itself.
    #[arg(long, value_delimiter = ',', default_value = "1,all")]
    threads: Vec<String>,
    /// Rounds; each asks every program for some steps, and the median of a program's turns counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Steps of a turn. As many come first to warm up.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// Write every figure as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// How our base is stored; rows that are no whole number of its blocks as q4_0.
    #[arg(long = "type", value_enum, default_value_t = WeightType::Q4_0)]
    ty: WeightType,
    /// What PyTorch computes in. On a processor without instructions for bf16 it is faster in f32.
    #[arg(long, value_enum, default_value_t = Precision::Bf16)]
    pytorch_precision: Precision,
    /// A trainer made from llama.cpp, with the options of its finetuning programs.
    #[arg(long, value_name = "PATH")]
    llama_trainer: Option<PathBuf>,
    /// The folder that models are kept in [default: $POCKETUNE_BENCH_MODELS, or target/bench].
    #[arg(long, value_name = "DIR")]
    models: Option<PathBuf>,
    /// A Python with the packages of bench/peers-requirements.txt [default: $POCKETUNE_PYTHON, or python3].
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

impl Options {
    fn threads(&self) -> Result<Vec<usize>> {
        let all = pocketune::threads::default();
        let mut threads = Vec::new();
        for word in &self.threads {
            let number = if word == "all" { Some(all) } else { word.parse().ok().filter(|n| (1..=1024).contains(n)) };
            threads.push(number.ok_or_else(|| Failure::new(format!("--threads {word}: a number up to 1024, or all")))?);
        }
        threads.dedup();
        Ok(threads)
    }

    fn models(&self) -> PathBuf {
        let named = || std::env::var_os("POCKETUNE_BENCH_MODELS").map(PathBuf::from);
        self.models.clone().or_else(named).unwrap_or("target/bench".into())
    }
}

/// The Python at `path`, or the one that is meant where none is named.
pub fn python(path: Option<&Path>) -> PathBuf {
    let meant = || std::env::var_os("POCKETUNE_PYTHON").unwrap_or("python3".into()).into();
    path.map_or_else(meant, Into::into)
}

/// Runs the rows and prints the table as it fills.
///
/// # Errors
/// When an option is at fault, a file can't be written, or a row fell short.
pub fn run(options: &Options) -> Result<()> {
    let (rows, threads) = (rows::select(&options.rows)?, options.threads()?);
    options.json.as_deref().map_or(Ok(()), store::check_file)?;
    if let Some(trainer) = options.llama_trainer.as_deref().filter(|trainer| !trainer.is_file()) {
        return Err(Failure::new(format!("--llama-trainer {}: no such file", trainer.display())));
    }
    say(&format!(
        "LoRA of rank {RANK} on all seven linears, AdamW, batch 1, full-length records; ours on a base in {}, PyTorch in {}; \
         medians of {} turns of {} steps, in turn; {}, load {} at the start\n\n{}",
        options.ty.block_type().name(),
        options.pytorch_precision.name(),
        options.rounds,
        options.steps,
        processor(),
        load().map_or("unknown".into(), |load| format!("{load:.1}")),
        table::HEAD
    ));
    if load().is_some_and(|load| load > BUSY) {
        note(
            "this machine is busy: threads that wait for each other spin meanwhile, and figures with several of them mean little",
        );
    }
    let (mut faults, mut all): (Vec<String>, Vec<Value>) = Default::default();
    for row in &rows {
        for &threads in &threads {
            let programs = compare(options, row, threads)?;
            let block = Block { row, threads, programs: &programs };
            say(&block.lines());
            faults.extend(block.faults());
            all.push(block.json());
        }
    }
    if let Some(path) = &options.json {
        let whole = serde_json::json!({ "processor": processor(), "rank": RANK, "type": options.ty.block_type().name(), "pytorch": options.pytorch_precision.name(), "rows": all });
        store::write_file(path, format!("{whole:#}\n").as_bytes())?;
    }
    match faults.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} targets missed: {}", faults.join("; ")))),
    }
}

/// Runs all programs of a row in turn.
fn compare(
    options: &Options,
    row: &Row,
    threads: usize,
) -> Result<Vec<(&'static str, std::result::Result<Measured, String>)>> {
    let folder = options.models();
    let model = folder.join(format!("{}-{}.gguf", row.shape, options.ty.block_type().name()));
    if !model.exists() {
        note(&format!("writing {}", model.display()));
        write_model::write(&shape(&row.shape)?, &row.shape, options.ty, &model)?;
    }
    let scratch = tempfile::tempdir().map_err(|error| Failure::io(std::env::temp_dir(), error))?;
    let mut runs = Vec::new();
    for name in NAMES {
        let started = command(options, row, threads, name, &model)
            .and_then(|command| Program::start(command, scratch.path(), &name.replace(' ', "-")));
        if let Ok(program) = &started {
            note(&format!("{}@{}, {threads} threads: {name} is ready ({})", row.shape, row.seq, program.ready.about));
        }
        runs.push(Contest { name, turns: Vec::new(), state: started });
    }
    same_work(&mut runs);
    // The first round warms up. Each begins with another program, so that none always follows the same one.
    for round in 0..=options.rounds as usize {
        for at in 0..runs.len() {
            let contest = &mut runs[(at + round) % NAMES.len()];
            contest.turn(options.steps as usize, round > 0);
        }
    }
    let mut programs: Vec<_> = runs.into_iter().map(Contest::finish).collect();
    let llama = match &options.llama_trainer {
        None => Err("not given (--llama-trainer)".into()),
        Some(trainer) => {
            llama::measure(trainer, &model, row, threads, scratch.path()).map_err(|error| error.to_string())
        }
    };
    programs.push((LLAMA, llama));
    Ok(programs)
}

/// One program of a row, as far as it came.
struct Contest {
    name: &'static str,
    turns: Vec<child::Turn>,
    state: Result<Program>,
}

impl Contest {
    fn turn(&mut self, steps: usize, counts: bool) {
        let Ok(program) = &mut self.state else { return };
        // Products after the steps, so that these find the machine as the others' do.
        match program.turn(steps).and_then(|turn| program.look_at_products().map(|()| turn)) {
            Ok(turn) if counts => self.turns.push(turn),
            Ok(_) => {}
            Err(error) => self.state = Err(error),
        }
    }

    fn finish(self) -> (&'static str, std::result::Result<Measured, String>) {
        let measured = self.state.and_then(|program| {
            Ok(Measured { turns: self.turns, peak: program.peak()?, mfu_seconds: program.mfu_seconds() })
        });
        (self.name, measured.map_err(|error| error.to_string()))
    }
}

/// A peer that trains or holds another number of parameters does other work: it is not compared.
fn same_work(runs: &mut [Contest]) {
    let count = |program: &Program| (program.ready.trainable, program.ready.frozen);
    let Some(ours) = runs.iter().find_map(|run| run.state.as_ref().ok().map(count)) else { return };
    for run in runs {
        if let Some(theirs) = run.state.as_ref().ok().map(count).filter(|&theirs| theirs != ours) {
            run.state = Err(Failure::new(format!(
                "it trains {} of {} numbers where ours trains {} of {}",
                theirs.0,
                theirs.0 + theirs.1,
                ours.0,
                ours.0 + ours.1
            )));
        }
    }
}

fn command(options: &Options, row: &Row, threads: usize, name: &str, model: &Path) -> Result<Command> {
    let numbers = [("--seq", row.seq), ("--rank", RANK), ("--threads", threads)];
    let mut command = match name {
        BLOCK | NONE => {
            let us = std::env::current_exe().map_err(|error| Failure::io("this program", error))?;
            let mut command = Command::new(us);
            command.arg("steps").arg("--model").arg(model);
            command.args(["--grad-checkpoint", if name == BLOCK { "block" } else { "none" }]);
            command
        }
        _ => {
            let mut command = Command::new(python(options.python.as_deref()));
            command.arg(PEER).arg("--config").arg(rows::numbers(&shape(&row.shape)?)?.to_string());
            command.args(["--precision", options.pytorch_precision.name()]);
            if name == CHECKPOINTING {
                command.arg("--checkpointing");
            }
            command
        }
    };
    for (option, number) in numbers {
        command.arg(option).arg(number.to_string());
    }
    Ok(command)
}
