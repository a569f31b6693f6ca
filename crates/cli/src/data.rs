//! `pocketune data preview`, and what is said about data that was read.

mod lengths;
mod tokens;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use pocketune::model::{Model, Source};
use pocketune::train::{BadLines, DataSource, Dataset, Prepared, Reader};

use crate::args::PreviewArgs;
use crate::{Failure, demo, note, say};
use lengths::Lengths;
use tokens::Shown;

/// Shows the first records of a file as tokens, then what all of them come to.
pub fn preview(args: &PreviewArgs) -> Result<(), Failure> {
    let source = args.model.clone().map_or(demo::MODEL, Source::Path);
    let model = Model::open(&source).map_err(Failure::new)?;
    let tokenizer = model.tokenizer().map_err(Failure::new)?;
    let options = args.reading.options(DataSource::Path(args.data.clone()));
    let template = options.template(&model).map_err(Failure::new)?;
    let cloze = options.cloze(&model, &tokenizer).map_err(Failure::new)?;
    let reader = Reader::new(&model, &tokenizer, template.as_ref(), &options, args.reading.max_seq_length);
    let reader = reader.with_cloze(cloze.as_ref());
    let path = training_file(&args.data)?;
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let (mut left, mut lengths) = (args.records, Lengths::default());
    let bad = reader.each_of(&path, &mut |line, example| {
        if left > 0 {
            left -= 1;
            let cloze = cloze.as_ref();
            say(&Shown { tokenizer: &tokenizer, example: &example, line, colour, cloze }.text());
        }
        lengths.add(&example);
    });
    note_bad_lines(&bad.map_err(Failure::of_run)?);
    say(&lengths.text(args.batch_size));
    Ok(())
}

/// What a run would train on.
fn training_file(path: &Path) -> Result<PathBuf, Failure> {
    DataSource::Path(path.into()).training_file().map_err(Failure::new)
}

/// What was made of the data.
pub fn note_prepared(data: &Prepared) {
    note_set("", &data.train);
    for (name, set) in [("validation", &data.valid), ("test", &data.test)] {
        if let Some(set) = set {
            note_set(&format!(" for {name}"), set);
        }
    }
}

/// How full batches are. There is no padding: what is left empty costs memory that was planned, and no time.
pub fn note_passes(packed: bool, passes: u64, filled: f64) {
    let hint = if !packed && filled < 0.7 { "; --pack would fill it" } else { "" };
    note(&format!("Data: {passes} batches an epoch, {:.1} % of their room filled{hint}", 100.0 * filled));
}

fn note_set(what: &str, set: &Dataset) {
    let longest = set.tokens.longest();
    note(&format!("Data: {} records{what}, {} tokens, the longest {longest}", set.tokens.len(), set.tokens.tokens()));
    if set.cut > 0 {
        let limit = "--max-seq-length, or the model's positions";
        note(&format!("Data: {} records were longer than {longest} tokens and were cut ({limit})", set.cut));
    }
    if set.skipped > 0 {
        note(&format!("Data: {} records in which nothing is to be predicted were left out", set.skipped));
    }
    note_bad_lines(&set.bad);
    if set.bad.count > 0 {
        note(&format!("Data: {} bad lines were left out", set.bad.count));
    }
}

/// The first bad lines, and how many more there are.
pub fn note_bad_lines(bad: &BadLines) {
    for (line, reason) in &bad.first {
        note(&format!("  line {line}: {reason}"));
    }
    if bad.count > bad.first.len() {
        note(&format!("  and {} more", bad.count - bad.first.len()));
    }
}
