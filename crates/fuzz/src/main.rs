//! `pocketune-fuzz TARGET --inputs N --seed S`: runs a target and says what was found. `all` runs every target.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use pocketune_fuzz::drive::{drive, judge};
use pocketune_fuzz::measure::Counting;
use pocketune_fuzz::targets;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Hostile inputs for the parsers of pocketune.
#[derive(Parser)]
struct Args {
    /// A target's name, or `all`.
    target: String,
    /// How many inputs each target gets.
    #[arg(long, default_value_t = 100_000)]
    inputs: u64,
    /// Another seed makes other inputs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs that break a rule are written.
    #[arg(long, value_name = "DIR", default_value = "target/fuzz")]
    findings: PathBuf,
    /// Run this one file instead.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let chosen: Vec<_> = targets::ALL.iter().filter(|t| args.target == "all" || t.name == args.target).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = targets::ALL.iter().map(|target| target.name).collect();
        eprintln!("error: no target {:?}; there are {} and all", args.target, names.join(", "));
        return ExitCode::FAILURE;
    }
    if let Some(file) = args.file {
        return match std::fs::read(&file) {
            Ok(bytes) => {
                println!("{:?}", judge(chosen[0], &bytes));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {}: {error}", file.display());
                ExitCode::FAILURE
            }
        };
    }
    // A panic is a finding, and says its word in the report.
    std::panic::set_hook(Box::new(|_| {}));
    let mut clean = true;
    for target in chosen {
        let start = std::time::Instant::now();
        let run = std::fs::create_dir_all(&args.findings)
            .and_then(|()| drive(target, args.seed, args.inputs, &args.findings));
        let report = match run {
            Ok(report) => report,
            Err(error) => {
                eprintln!("error: {}: {error}", args.findings.display());
                return ExitCode::FAILURE;
            }
        };
        println!(
            "{}: {} inputs in {:.0} s, {} accepted, most held {:.1} MiB, slowest {:.0} ms, {} faults",
            target.name,
            report.inputs,
            start.elapsed().as_secs_f64(),
            report.accepted,
            report.most.bytes as f64 / f64::from(1 << 20),
            report.most.time.as_secs_f64() * 1e3,
            report.faults.len()
        );
        for (fault, path) in &report.faults {
            println!("  {fault}: {}", path.display());
        }
        clean &= report.faults.is_empty();
    }
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
