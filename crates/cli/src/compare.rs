//! `pocketune compare`: the same run by several methods, each in a process of its own, so that its peak is its own; a table, a page with curves, and
//! all figures as JSON. It trains with the words that were typed, and measures nothing that a run doesn't say of itself, but for its time and how
//! an estimate lies to the exact gradient.

mod course;
mod page;

use std::ffi::OsString;
use std::path::Path;

use clap::{ArgMatches, CommandFactory, Parser};
use pocketune::store::{Files, Storage, write_file};
use pocketune::train::{Method, alignment};
use serde_json::json;

use crate::args::{Cli, Command, CompareArgs, TrainArgs};
use crate::{Failure, config, note, say, train};
use course::Course;

/// Options that are not for the runs, or that each run has a value of its own for.
const OWN: [&str; 8] =
    ["methods", "output", "json", "method", "adapter_path", "log_format", "steps_per_report", "resume"];

/// Batches over which cosines are averaged.
const BATCHES: usize = 4;

/// Compares and writes.
pub fn run(args: &CompareArgs, typed: &ArgMatches) -> Result<(), Failure> {
    let Some((_, matches)) = typed.subcommand() else { return Ok(()) };
    let shared = config::retyped(&Cli::command(), "train", matches, &OWN);
    Files.make_folder(&args.output).map_err(|error| Failure(format!("{}: {error}", args.output.display())))?;
    let runs =
        args.methods.iter().map(|words| One::read(words, &shared, &args.output)).collect::<Result<Vec<_>, _>>()?;
    let mut courses = Vec::new();
    for One { label, words, args } in &runs {
        let built_in = args.model.is_none() && args.data.is_none();
        let options = train::options(args, built_in)?;
        note(&format!("{label}: cosine with the exact gradient"));
        let cosine = alignment(&options, BATCHES).map_err(Failure::of_run)?;
        note(&format!("{label}: {} updates", options.iters));
        let course = course::run(label, words)?;
        courses.push(Course { cosine, ..course });
    }
    let table = course::Table::of(&courses);
    let figures = json!({ "steps": table.steps, "seconds": table.seconds, "methods": courses.iter().map(Course::json).collect::<Vec<_>>() });
    let figures = format!("{figures:#}\n");
    for (name, text) in [("compare.json", &figures), ("compare.html", &page::html(&courses, &table))] {
        write_file(&args.output.join(name), text.as_bytes()).map_err(Failure::new)?;
    }
    say(&if args.json { figures } else { table.text() });
    note(&format!("Drew the curves to {}", args.output.join("compare.html").display()));
    Ok(())
}

/// One of the runs.
struct One {
    label: String,
    words: Vec<OsString>,
    args: Box<TrainArgs>,
}

impl One {
    /// Reads `NAME` or `NAME:OPTION=VALUE:…`, the options with dashes or underscores and without the first two.
    fn read(text: &str, shared: &[OsString], output: &Path) -> Result<Self, Failure> {
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        if Method::named(name).is_none() {
            let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
            return Err(Failure(format!(
                "--methods {text}: no method is called '{name}'; there are {}",
                names.join(", ")
            )));
        }
        let own: Vec<(String, &str)> = parts
            .map(|part| part.split_once('=').map(|(option, value)| (option.trim().replace('_', "-"), value.trim())))
            .collect::<Option<_>>()
            .ok_or_else(|| Failure(format!("--methods {text}: options are given as mezo:learning-rate=5e-5")))?;
        // How long a run goes is seen from its curve.
        let told = own.iter().filter(|(option, _)| !matches!(option.as_str(), "iters" | "steps-per-eval"));
        let label = told.fold(name.to_owned(), |label, (option, value)| format!("{label} {option}={value}"));
        let folder = output.join(text.replace([':', '=', '/'], "_"));
        let mut words: Vec<OsString> = vec!["train".into()];
        let long = |word: &OsString| word.to_string_lossy().split('=').next().unwrap_or_default().to_owned();
        words.extend(
            shared.iter().filter(|word| !own.iter().any(|(option, _)| long(word) == format!("--{option}"))).cloned(),
        );
        words.extend(own.iter().map(|(option, value)| OsString::from(format!("--{option}={value}"))));
        words.push(format!("--method={name}").into());
        words.push("--log-format=jsonl".into());
        words.push("--steps-per-report=1".into());
        words.push("--adapter-path".into());
        words.push(folder.into());
        let all = [OsString::from("pocketune")].into_iter().chain(words.iter().cloned());
        match Cli::try_parse_from(all).map_err(|error| Failure(format!("--methods {text}: {error}")))?.command {
            Command::Train(args) => Ok(Self { label, words, args }),
            _ => Err(Failure(format!("--methods {text}: not a run"))),
        }
    }
}
