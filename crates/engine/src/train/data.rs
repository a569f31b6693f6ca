//! From data files to token files. The tokenizer lives only inside `tokenize`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use pocketune_text::{ChatTemplate, ExampleMaker, Record, Records, Tokenizer};

use crate::error::{Error, Result};
use crate::memory;
use crate::model::Model;
use crate::store::{TokenFile, TokenWriter};

/// Where records come from.
#[derive(Clone, Debug)]
pub enum DataSource {
    /// A JSON Lines file, a plain text file, or a folder with `train.jsonl` and perhaps `valid.jsonl`.
    Path(PathBuf),
    /// JSON Lines inside the program.
    Embedded {
        /// What to train on.
        train: &'static str,
        /// What to measure on.
        valid: &'static str,
    },
}

/// Records as tokens, with what was done to them.
pub struct Dataset {
    /// The tokens.
    pub tokens: TokenFile,
    /// Records that were longer than the limit.
    pub cut: usize,
    /// Records of fewer than two tokens, which teach nothing and were left out.
    pub skipped: usize,
}

/// All data of a run.
pub struct Prepared {
    /// What to train on, or to evaluate on where that is all.
    pub train: Dataset,
    /// What to measure on.
    pub valid: Option<Dataset>,
}

/// Turns the records of `source` into token files in `folder`, each record at most `max_seq_length` tokens long, and no longer than the
/// model's learned positions go. What the tokenizer
/// took is given back then, and so are the pages of the model that it was read from.
///
/// # Errors
/// When a file is missing, a line is bad (all errors name file and line), or no record is left.
pub fn prepare(model: &Model, source: &DataSource, max_seq_length: usize, folder: &Path) -> Result<Prepared> {
    let prepared = tokenize(model, source, max_seq_length, folder)?;
    model.files.files().iter().for_each(|file| file.release(0, file.bytes().len()));
    memory::trim();
    Ok(prepared)
}

/// Prepares a record of no meaning, so that a plan without data stands where a run would that has prepared its own. A model that has
/// no tokenizer takes nothing for it.
pub fn rehearse(model: &Model) {
    const RECORD: &str = "{\"text\": \"Some words in a row, as many as it takes to call on all parts of a tokenizer: 12 of them, or more?\"}\n";
    let source = DataSource::Embedded { train: RECORD, valid: RECORD };
    // Whatever is wrong with the tokenizer is said when it is needed.
    let _ = prepare(model, &source, 64, &std::env::temp_dir());
}

fn tokenize(model: &Model, source: &DataSource, max_seq_length: usize, folder: &Path) -> Result<Prepared> {
    let tokenizer = model.tokenizer()?;
    let template = model.chat_template()?;
    let max_seq_length = model.config.longest(max_seq_length);
    let maker = Maker { model, tokenizer: &tokenizer, template: template.as_ref(), max_seq_length, folder };
    match source {
        DataSource::Embedded { train, valid } => Ok(Prepared {
            train: maker.lines(train.as_bytes(), Path::new("embedded train.jsonl"))?,
            valid: Some(maker.lines(valid.as_bytes(), Path::new("embedded valid.jsonl"))?),
        }),
        DataSource::Path(path) if path.is_dir() => {
            let valid = path.join("valid.jsonl");
            let valid = if valid.exists() { Some(maker.file(&valid)?) } else { None };
            Ok(Prepared { train: maker.file(&path.join("train.jsonl"))?, valid })
        }
        DataSource::Path(path) => Ok(Prepared { train: maker.file(path)?, valid: None }),
    }
}

struct Maker<'a> {
    model: &'a Model,
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    max_seq_length: usize,
    folder: &'a Path,
}

impl DataSource {
    /// What an evaluation reads of it: of a folder, `valid.jsonl` where there is one, else `train.jsonl`.
    pub(super) fn to_measure(&self) -> Self {
        match self {
            DataSource::Path(path) if path.is_dir() => {
                let valid = path.join("valid.jsonl");
                DataSource::Path(if valid.exists() { valid } else { path.join("train.jsonl") })
            }
            other => other.clone(),
        }
    }
}

impl Maker<'_> {
    fn file(&self, path: &Path) -> Result<Dataset> {
        let io = |error| Error::io(path, error);
        // Opening a FIFO would wait for its writer forever.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::Data { path: path.into(), fault: "not a regular file".into() });
        }
        let reader = BufReader::with_capacity(1 << 16, File::open(path).map_err(io)?);
        if path.extension().is_some_and(|extension| extension == "txt") {
            let record = Record::from_plain_text(reader).map(|record| (1, record));
            return self.records(std::iter::once(record), path);
        }
        self.lines(reader, path)
    }

    fn lines(&self, reader: impl BufRead, path: &Path) -> Result<Dataset> {
        self.records(Records::new(reader), path)
    }

    fn records(
        &self,
        records: impl Iterator<Item = pocketune_text::Result<(u64, Record)>>,
        path: &Path,
    ) -> Result<Dataset> {
        let fault = |fault: String| Error::Data { path: path.into(), fault };
        let maker = ExampleMaker::new(self.tokenizer, self.template, self.max_seq_length);
        let mut writer = TokenWriter::new(self.folder)?;
        let (mut cut, mut skipped) = (0, 0);
        for record in records {
            let (line, record) = record.map_err(|error| fault(error.to_string()))?;
            let example = maker.example(&record).map_err(|error| fault(format!("line {line}: {error}")))?;
            self.model.check_tokens(&example.ids).map_err(|error| fault(format!("line {line}: {error}")))?;
            cut += usize::from(example.cut_from.is_some());
            if example.loss.iter().any(|&target| target) {
                writer.push(&example.ids, &example.loss)?;
            } else {
                skipped += 1;
            }
        }
        let tokens = writer.finish()?;
        if tokens.is_empty() {
            return Err(fault(if skipped == 0 {
                "no record in it".into()
            } else {
                format!("all of its {skipped} records are shorter than two tokens: nothing to predict")
            }));
        }
        Ok(Dataset { tokens, cut, skipped })
    }
}
