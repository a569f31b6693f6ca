//! `pocketune`: the words for people. It turns what was typed into options, runs the engine, and prints what happens; it holds no
//! logic of its own.

mod args;
mod bench;
mod conditions;
mod demo;
mod eval;
mod generate;
mod memory_bar;
mod plan;
mod pull;
mod trace;
mod train;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};

fn main() -> ExitCode {
    pocketune::store::outlive_file_limits();
    pocketune_formats::mapped::outlive_short_files();
    let result = match Cli::parse().command {
        Command::Train(args) => train::run(args),
        Command::Plan(args) => plan::run(*args),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Bench(args) => bench::run(&args),
        Command::Inspect { file } => {
            pocketune_formats::inspect::describe(&file).map_err(Failure::new).map(|text| say(&text))
        }
        Command::Erase { run, adapter } => pocketune::store::erase(&run, adapter)
            .map_err(Failure::new)
            .map(|files| say(&format!("Erased {files} files\n"))),
        Command::Pull { name, into } => {
            pull::run(&name, into.as_deref()).map_err(Failure::new).map(|path| say(&format!("{}\n", path.display())))
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message)) => {
            // Standard error may be closed; there is nobody left to tell then.
            let _ = writeln!(std::io::stderr(), "error: {}", pocketune_formats::error::plain(&message));
            ExitCode::FAILURE
        }
    }
}

/// Why a command ends: one line for its user.
struct Failure(String);

impl Failure {
    fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// Prints to standard output; a reader that went away is no reason to stop training.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a line for people, where standard output may carry something else.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
