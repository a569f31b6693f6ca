//! `pocketune-bench memory`: trains each shape of the table with the smallest plan, in a process of its own that is watched from
//! outside, and prints what it held beside what MeBP and MeSP published. A row that can't be run is reported and the next one tried;
//! a row that misses its target, or whose plan missed the truth, makes the command fail at the end.

mod child;
mod rows;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use pocketune::families::shape;

use crate::failure::{Failure, Result};
use crate::weights::WeightType;
use crate::{note, process, say, write_data, write_model};
use child::Measured;
use rows::Row;

/// What `memory` was asked for.
#[derive(Args)]
pub struct Options {
    /// Rows to run, such as qwen2.5-0.5b@1024; a shape alone means all rows of it [default: all].
    #[arg(long, value_delimiter = ',', value_name = "SHAPE[@SEQ]")]
    rows: Vec<String>,
    /// The folder that models and data are kept in; what is there already is used as it is.
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    models: PathBuf,
    /// How matrices are stored.
    #[arg(long = "type", value_enum, default_value_t = WeightType::Q4_0)]
    ty: WeightType,
    /// The program to measure [default: the pocketune beside this one].
    #[arg(long, value_name = "PATH")]
    pocketune: Option<PathBuf>,
    /// More options for `pocketune train`.
    #[arg(last = true, value_name = "OPTIONS")]
    more: Vec<String>,
}

const HEAD: &str = "\
| shape | seq | MeBP | MeSP | anon | total RSS | planned | target anon / total | s a step | |
|---|--:|--:|--:|--:|--:|--:|--:|--:|---|
";

/// Runs the rows and prints the table as it fills.
///
/// # Errors
/// When an option is at fault, a file can't be written, or a row did not run or fell short.
pub fn run(options: &Options) -> Result<()> {
    let rows = rows::select(&options.rows)?;
    let pocketune = match &options.pocketune {
        Some(path) => path.clone(),
        None => {
            std::env::current_exe().map_err(|error| Failure::io("this program", error))?.with_file_name("pocketune")
        }
    };
    if !pocketune.is_file() {
        let path = pocketune.display();
        return Err(Failure::new(format!("{path} is not there; build it, or name it with --pocketune")));
    }
    let about = "batch 1, rank 8 on all seven linears, AdamW, exact gradients, smallest plan";
    say(&format!("{about}; {}; memory in MB (10^6 bytes)\n\n{HEAD}", process::processor()));
    let mut faults = 0;
    for row in &rows {
        let (cells, ok) = match measure(options, row, &pocketune) {
            Ok(measured) => verdict::judge(row, &measured),
            Err(error) => (format!("– | – | – | {} / {} | – | did not run: {error}", row.anon, row.total), false),
        };
        let published = |mb: Option<u32>| mb.map_or("–".into(), |mb| mb.to_string());
        let (mebp, mesp) = (published(row.mebp), published(row.mesp));
        say(&format!("| {} | {} | {mebp} | {mesp} | {cells} |\n", row.shape, row.seq));
        faults += usize::from(!ok);
    }
    match faults {
        0 => Ok(()),
        faults => Err(Failure::new(format!("{faults} of {} rows did not run or fell short", rows.len()))),
    }
}

/// Runs one row, after writing what it needs.
fn measure(options: &Options, row: &Row, pocketune: &Path) -> Result<Measured> {
    let ty = options.ty.block_type().name();
    let model = options.models.join(format!("{}-{ty}.gguf", row.shape));
    if !model.exists() {
        note(&format!("writing {}", model.display()));
        write_model::write(&shape(row.shape)?, row.shape, options.ty, &model)?;
    }
    let data = options.models.join(format!("tokens-{}.jsonl", row.seq));
    if !data.exists() {
        write_data::write(row.seq, 4, &data)?;
    }
    note(&format!("training {} at {} tokens", row.shape, row.seq));
    let scratch = tempfile::tempdir_in(&options.models).map_err(|error| Failure::io(&options.models, error))?;
    let mut command = Command::new(pocketune);
    command.arg("train").arg("--model").arg(model).arg("--data").arg(data);
    command.arg("--adapter-path").arg(scratch.path().join("adapter"));
    command.args(["--memory-budget", "min", "--batch-size", "1", "--lora-rank", "8", "--iters", "3"]);
    command.args(["--log-format", "jsonl", "--steps-per-report", "1", "--max-seq-length", &row.seq.to_string()]);
    command.args(&options.more);
    child::run(command, scratch.path())
}
