//! `pocketune-bench`: writes models of real shapes with random weights, data for them, and measures `pocketune` as its users run
//! it, from outside. What it trains itself, it trains to be timed; and it refuses to take the engine's own word for what a run holds.

mod breakdown;
mod failure;
mod memory;
mod metadata;
mod pauses;
mod peers;
mod process;
mod products;
mod ratios;
mod stepper;
mod steps;
mod talk;
mod tokenizer;
mod trade;
mod weights;
mod write_data;
mod write_model;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use pocketune::families::shape;
use pocketune::store::FolderWriter;

use failure::{Failure, Result};
use weights::WeightType;

/// Write models of real shapes with random weights, and measure pocketune on them.
#[derive(Parser)]
#[command(name = "pocketune-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write a GGUF file of a real shape with random weights and a byte-level tokenizer.
    WriteModel {
        /// The shape, such as qwen2.5-0.5b.
        #[arg(long)]
        shape: String,
        /// How matrices are stored; those whose rows are no whole number of blocks are stored as q4_0.
        #[arg(long = "type", value_enum, default_value_t = WeightType::Q4_0)]
        ty: WeightType,
        /// The file.
        #[arg(long, short, value_name = "FILE.gguf")]
        output: PathBuf,
    },
    /// Write text records with an exact number of tokens.
    WriteData {
        /// Tokens in a record, the end left out.
        #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1 << 24))]
        tokens_per_record: u32,
        /// Records.
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        records: u32,
        /// The file.
        #[arg(long, short, value_name = "FILE.jsonl")]
        output: PathBuf,
    },
    /// Train each shape with the smallest plan, and print what the process held beside what others published.
    Memory(memory::Options),
    /// Run steps that keep less and less in turn, and print what memory costs in time.
    Trade(trade::Options),
    /// Run steps of ours and of PyTorch + PEFT in turn, and print what each took.
    Peers(peers::Options),
    /// Time products with linears of real models by how weights are stored, beside PyTorch's of ready floats.
    Products(products::Options),
    /// Time a step by kind of instruction, and estimate how much of it is dequantisation.
    Breakdown(breakdown::Options),
    /// Set an exact step beside two forward passes, longer records beside shorter ones, and two threads beside one.
    Ratios(ratios::Options),
    /// Pause a run at random moments, and print how long it takes until its state is on disk.
    Pauses(pauses::Options),
    /// Run as many steps as each line of standard input says; for `peers`.
    #[command(hide = true)]
    Steps(steps::Options),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::WriteModel { shape: name, ty, output } => {
            shape(&name).map_err(Into::into).and_then(|config| write_model::write(&config, &name, ty, &output))
        }
        Command::WriteData { tokens_per_record, records, output } => {
            write_data::write(tokens_per_record as usize, records as usize, &output)
        }
        Command::Memory(options) => memory::run(&options),
        Command::Trade(options) => trade::run(&options),
        Command::Peers(options) => peers::run(&options),
        Command::Products(options) => products::run(&options),
        Command::Breakdown(options) => breakdown::run(&options),
        Command::Ratios(options) => ratios::run(&options),
        Command::Pauses(options) => pauses::run(&options),
        Command::Steps(options) => steps::run(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // Standard error may be closed; there is nobody left to tell then.
            let _ = writeln!(std::io::stderr(), "error: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Writes a file that appears under its name whole or not at all.
fn write_whole(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
        return Err(Failure::io(path, std::io::ErrorKind::InvalidFilename.into()));
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut writer = FolderWriter::open(folder)?;
    writer.file(name, fill)?;
    Ok(writer.commit()?)
}

/// Prints to standard output; a reader that went away is no reason to stop.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a line for people.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
