//! `pocketune`: the words for people. It turns what was typed into options, runs the engine, and prints what happens; it holds no
//! logic of its own.

mod args;
mod bench;
mod chat;
mod compare;
mod conditions;
mod config;
mod convert;
mod data;
mod demo;
mod eval;
mod generate;
mod memory_bar;
mod merge;
mod plan;
mod progress;
mod pull;
mod quantize;
mod replay;
mod signals;
mod trace;
mod train;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches};

use args::{Cli, Command, DataCommand};

fn main() -> ExitCode {
    pocketune::store::outlive_file_limits();
    pocketune_formats::mapped::outlive_short_files();
    let mut stopped = false;
    let result = understood().and_then(|(cli, matches)| match cli.command {
        Command::Train(args) => train::run(args, &matches).map(|end| stopped = matches!(end, train::End::Stopped)),
        Command::Plan(args) => plan::run(*args),
        Command::Eval(args) => eval::run(args),
        Command::Data(DataCommand::Preview(args)) => data::preview(&args),
        Command::Generate(args) => generate::run(args),
        Command::Chat(args) => chat::run(args),
        Command::Bench(args) => bench::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Merge(args) => merge::run(args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Compare(args) => compare::run(&args, &matches),
        Command::Replay(args) => replay::run(&args),
        Command::Inspect { file } => {
            pocketune_formats::inspect::describe(&file).map_err(Failure::new).map(|text| say(&text))
        }
        Command::Erase { run, adapter } => pocketune::store::erase(&run, adapter)
            .map_err(Failure::new)
            .map(|files| say(&format!("Erased {files} files\n"))),
        Command::Pull { name, into } => {
            pull::run(&name, into.as_deref()).map_err(Failure::new).map(|path| say(&format!("{}\n", path.display())))
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pocketune", &mut text);
            say(&String::from_utf8_lossy(&text));
            Ok(())
        }
        Command::Man => manual(),
    });
    match result {
        // What sysexits.h calls a temporary failure: the same command with --resume goes on.
        Ok(()) if stopped => ExitCode::from(75),
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(message)) => {
            // Standard error may be closed; there is nobody left to tell then.
            let _ = writeln!(std::io::stderr(), "error: {}", pocketune_formats::error::plain(&message));
            ExitCode::FAILURE
        }
    }
}

/// What was typed, with the configuration that it names. Words that are wrong end the program here.
fn understood() -> Result<(Cli, ArgMatches), Failure> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let mut matches = Cli::command().get_matches_from(&words);
    if let Some(words) = config::expand(&Cli::command(), &matches, &words)? {
        matches = Cli::command().get_matches_from(words);
    }
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    Ok((cli, matches))
}

/// The manual: one page, the commands one after another.
fn manual() -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let mut text = Vec::new();
    let written = clap_mangen::Man::new(command.clone()).render(&mut text);
    written.and_then(|()| sections(&command, &mut text)).map_err(Failure::new)?;
    say(&String::from_utf8_lossy(&text));
    Ok(())
}

/// The sections of all commands below one.
fn sections(command: &clap::Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
        let page = clap_mangen::Man::new(below.clone());
        page.render_name_section(text)?;
        page.render_synopsis_section(text)?;
        page.render_options_section(text)?;
        sections(below, text)?;
    }
    Ok(())
}

/// Why a command ends: one line for its user.
struct Failure(String);

impl Failure {
    fn new(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }

    /// A run's failure; where lines of a data file are bad, the first of them are noted before.
    fn of_run(error: pocketune::Error) -> Self {
        if let pocketune::Error::BadLines { bad, .. } = &error
            && bad.count > 1
        {
            data::note_bad_lines(bad);
        }
        Self::new(error)
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
