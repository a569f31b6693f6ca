//! From data files to token files. The tokenizer lives only inside `tokenize`. It refuses data with a bad line, unless those are to be left
//! out; either way every line is looked at, and the first bad ones are named.

mod bad;
mod source;
mod split;

pub use bad::BadLines;
pub use source::{DataOptions, DataSource, TemplateChoice};

use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use pocketune_text::{
    ChatTemplate, Cloze, Example, ExampleMaker, Form, Record, Records, TextError, Tokenizer, reply_ends,
};

use crate::beside::Beside;
use crate::error::{Error, Result};
use crate::memory;
use crate::model::Model;
use crate::store::{TokenFile, TokenWriter};
use source::Files;
use split::Split;

/// Records as tokens, with what was done to them.
pub struct Dataset {
    /// The tokens.
    pub tokens: TokenFile,
    /// Records that were longer than the limit.
    pub cut: usize,
    /// Records in which nothing is to be predicted, which teach nothing and were left out.
    pub skipped: usize,
    /// Lines that are no records and were left out.
    pub bad: BadLines,
}

/// All data of a run.
pub struct Prepared {
    /// What to train on, or to evaluate on where that is all.
    pub train: Dataset,
    /// What to measure on.
    pub valid: Option<Dataset>,
    /// What to measure on once, at the end.
    pub test: Option<Dataset>,
    /// What the adapter takes along of the template that conversations went through, where there were any.
    pub beside: Beside,
    /// How what is to be predicted is masked, for models without a next token.
    pub cloze: Option<Cloze>,
}

impl Prepared {
    /// What tells the data of a run from any other: the sums of what is trained on and of what it is judged by.
    pub fn sum(&self) -> [[u8; 32]; 2] {
        [self.train.tokens.sum(), self.valid.as_ref().map_or([0; 32], |valid| valid.tokens.sum())]
    }

    /// Tokens of the longest record of all sets.
    pub fn longest(&self) -> usize {
        let sets = [Some(&self.train), self.valid.as_ref(), self.test.as_ref()];
        sets.into_iter().flatten().map(|set| set.tokens.longest()).max().unwrap_or(0)
    }
}

/// Turns the records of `options` into token files in `folder`, each record at most `max_seq_length` tokens long, and no longer than the
/// model's learned positions go. What the tokenizer
/// took is given back then, and so are the pages of the model that it was read from.
///
/// # Errors
/// When a file is missing, a line is bad (all errors name file and line), or no record is left.
pub fn prepare(model: &Model, options: &DataOptions, max_seq_length: usize, folder: &Path) -> Result<Prepared> {
    let prepared = tokenize(model, options, max_seq_length, folder)?;
    model.files.files().iter().for_each(|file| file.release(0, file.bytes().len()));
    memory::trim();
    Ok(prepared)
}

/// Prepares a record of no meaning, so that a plan without data stands where a run would that has prepared its own. A model that has
/// no tokenizer takes nothing for it.
pub fn rehearse(model: &Model) {
    const RECORD: &str = "{\"text\": \"Some words in a row, as many as it takes to call on all parts of a tokenizer: 12 of them, or more?\"}\n";
    let options = DataOptions::plain(DataSource::Embedded { train: RECORD, valid: RECORD });
    // Whatever is wrong with the tokenizer is said when it is needed.
    let _ = prepare(model, &options, 64, &std::env::temp_dir());
}

fn tokenize(model: &Model, options: &DataOptions, max_seq_length: usize, folder: &Path) -> Result<Prepared> {
    let tokenizer = model.tokenizer()?;
    let template = options.template(model)?;
    let cloze = options.cloze(model, &tokenizer)?;
    let talked = Cell::new(false);
    let reader = Reader::new(model, &tokenizer, template.as_ref(), options, max_seq_length).with_cloze(cloze.as_ref());
    let reader = Reader { talked: Some(&talked), ..reader };
    let valid_share = options.val_split.map(|share| Split::new(share, options.seed));
    let whole = |path: &Path| Ok::<_, Error>(reader.file(path, None, folder)?.0);
    let prepared = match &options.source {
        DataSource::Embedded { train, valid } => {
            let lines = |text: &str, name| Ok::<_, Error>(reader.set(text.as_bytes(), name, None, folder)?.0);
            Prepared {
                train: lines(train, Path::new("embedded train.jsonl"))?,
                valid: Some(lines(valid, Path::new("embedded valid.jsonl"))?),
                test: None,
                beside: Beside::default(),
                cloze: None,
            }
        }
        DataSource::Path(path) => {
            let files = Files::find(path, options)?;
            let valid = files.valid.as_deref().map(whole).transpose()?;
            let test = files.test.as_deref().map(whole).transpose()?;
            let (train, drawn) = reader.file(&files.train, valid_share, folder)?;
            Prepared { train, valid: valid.or(drawn), test, beside: Beside::default(), cloze: None }
        }
    };
    let beside = match template.filter(|_| talked.get()) {
        Some(template) => {
            let ends = reply_ends(&tokenizer, Some(&template));
            Beside { template: Some(template.into_source()), ends }
        }
        None => Beside::default(),
    };
    Ok(Prepared { beside, cloze, ..prepared })
}

/// Reads examples from files.
pub struct Reader<'a> {
    model: &'a Model,
    options: &'a DataOptions,
    maker: ExampleMaker<'a>,
    /// Told when a conversation has gone through the template.
    talked: Option<&'a Cell<bool>>,
}

impl<'a> Reader<'a> {
    /// With a model's tokenizer and the template that [`DataOptions::template`] found.
    pub fn new(
        model: &'a Model,
        tokenizer: &'a Tokenizer,
        template: Option<&'a ChatTemplate>,
        options: &'a DataOptions,
        max_seq_length: usize,
    ) -> Self {
        let longest = model.config.longest(max_seq_length);
        Self { model, options, maker: ExampleMaker::new(tokenizer, template, longest, options.mask), talked: None }
    }

    /// The same for questions as masked prompts.
    pub fn with_cloze(self, cloze: Option<&'a Cloze>) -> Self {
        Self { maker: self.maker.with_cloze(cloze), ..self }
    }

    /// A file as token files: all of it, or what was drawn for validation apart.
    fn file(&self, path: &Path, split: Option<Split>, folder: &Path) -> Result<(Dataset, Option<Dataset>)> {
        self.set(open(path)?, path, split, folder)
    }

    fn set(
        &self,
        reader: impl BufRead,
        path: &Path,
        split: Option<Split>,
        folder: &Path,
    ) -> Result<(Dataset, Option<Dataset>)> {
        let mut rest = Writing::new(folder)?;
        let mut drawn = split.is_some().then(|| Writing::new(folder)).transpose()?;
        let mut number = 0;
        let bad = self.each(reader, path, &mut |_, example| {
            let to = match (&split, &mut drawn) {
                (Some(split), Some(drawn)) if split.draws(number) => drawn,
                _ => &mut rest,
            };
            number += 1;
            to.push(&example)
        })?;
        let (all, skipped) = (number, rest.skipped + drawn.as_ref().map_or(0, |drawn| drawn.skipped));
        let empty = |writing: &Writing| writing.pushed == 0;
        if empty(&rest) && drawn.as_ref().is_none_or(empty) {
            let fault = match (all, bad.count) {
                (0, 0) => "no record in it".into(),
                (0, bad) => format!("no record in it but {bad} bad lines"),
                _ => format!("all of its {skipped} records have nothing to predict"),
            };
            return Err(Error::Data { path: path.into(), fault });
        }
        if let Some(part) = [Some((&rest, "training")), drawn.as_ref().map(|drawn| (drawn, "validation"))]
            .into_iter()
            .flatten()
            .find_map(|(writing, part)| empty(writing).then_some(part))
        {
            let fault = format!("none of the {all} records of {} was left for {part}", path.display());
            let value = self.options.val_split.unwrap_or_default().to_string();
            return Err(Error::Option { option: "val-split", value, fault });
        }
        Ok((rest.finish(bad)?, drawn.map(|drawn| drawn.finish(BadLines::default())).transpose()?))
    }

    /// Hands over every example of a file, with the line of its record; the lines that are none.
    ///
    /// # Errors
    /// When the file can't be read, or when there are bad lines that are not to be left out.
    pub fn each_of(&self, path: &Path, each: &mut dyn FnMut(u64, Example)) -> Result<BadLines> {
        self.each(open(path)?, path, &mut |line, example| {
            each(line, example);
            Ok(())
        })
    }

    /// Hands over every question of a labelled file, with each of its answers and the number of the right one.
    ///
    /// # Errors
    /// As [`Reader::each_of`].
    pub(super) fn each_question(&self, path: &Path, each: &mut dyn FnMut(Vec<Example>, usize)) -> Result<BadLines> {
        self.each_record(open(path)?, path, &mut |_, record| {
            if let Record::Question(question) = &record {
                let choices = self.maker.choices(question);
                choices.iter().try_for_each(|choice| self.model.check_tokens(&choice.ids)).map_err(Fault::Line)?;
                each(choices, question.answer);
            }
            Ok(())
        })
    }

    fn each(
        &self,
        reader: impl BufRead,
        path: &Path,
        each: &mut dyn FnMut(u64, Example) -> Result<()>,
    ) -> Result<BadLines> {
        self.each_record(reader, path, &mut |line, record| {
            let mut done = Ok(());
            let made = self.maker.examples(&record, &mut |example| {
                if done.is_ok() {
                    let known = self.model.check_tokens(&example.ids).map_err(Fault::Line);
                    done = known.and_then(|()| each(line, example).map_err(|error| Fault::Run(Box::new(error))));
                }
            });
            made.map_err(|error| Fault::Line(error.to_string()))?;
            if let (Record::Chat(_) | Record::Answer { .. }, Some(talked)) = (&record, self.talked) {
                talked.set(true);
            }
            done
        })
    }

    fn each_record(
        &self,
        mut reader: impl BufRead,
        path: &Path,
        each: &mut dyn FnMut(u64, Record) -> std::result::Result<(), Fault>,
    ) -> Result<BadLines> {
        let form = Form::of(path, reader.fill_buf().map_err(|error| Error::io(path, error))?);
        let (mut bad, mut records) = (BadLines::default(), 0);
        for record in Records::new(reader, form, self.options.reading.clone()) {
            records += 1;
            let (line, record) = match record {
                Ok(record) => record,
                Err(TextError::Reading(error)) => return Err(Error::io(path, error)),
                Err(TextError::Record { line, reason }) => {
                    bad.add(line, reason);
                    continue;
                }
                Err(other) => return Err(other.into()),
            };
            match each(line, record) {
                Ok(()) => {}
                Err(Fault::Line(reason)) => bad.add(line, reason),
                Err(Fault::Run(error)) => return Err(*error),
            }
        }
        match bad.count == 0 || self.options.skip_bad_lines {
            true => Ok(bad),
            false => Err(Error::BadLines { path: path.into(), bad: Box::new(bad), records }),
        }
    }
}

/// Why a record was not taken.
enum Fault {
    /// Its line is bad.
    Line(String),
    /// The run can't go on.
    Run(Box<Error>),
}

/// Opens a data file.
fn open(path: &Path) -> Result<impl BufRead> {
    let io = |error| Error::io(path, error);
    // Opening a FIFO would wait for its writer forever.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::Data { path: path.into(), fault: "not a regular file".into() });
    }
    Ok(BufReader::with_capacity(1 << 16, File::open(path).map_err(io)?))
}

/// A token file that is being written.
struct Writing {
    out: TokenWriter,
    pushed: usize,
    cut: usize,
    skipped: usize,
}

impl Writing {
    fn new(folder: &Path) -> Result<Self> {
        Ok(Self { out: TokenWriter::new(folder)?, pushed: 0, cut: 0, skipped: 0 })
    }

    fn push(&mut self, example: &Example) -> Result<()> {
        self.cut += usize::from(example.cut_from.is_some());
        if !example.loss.contains(&true) {
            self.skipped += 1;
            return Ok(());
        }
        self.pushed += 1;
        self.out.push(&example.ids, &example.loss)
    }

    fn finish(self, bad: BadLines) -> Result<Dataset> {
        Ok(Dataset { tokens: self.out.finish()?, cut: self.cut, skipped: self.skipped, bad })
    }
}
