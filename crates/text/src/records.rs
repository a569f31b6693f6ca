//! Records of a data file, in order, each with the number of its line: JSON Lines, a JSON array, a table (CSV or TSV) or plain
//! text. Files are read piece by piece, so that their size does not matter. Every bad record is an error that names its line
//! and its fault, and reading goes on behind it; a failing reader ends it. It refuses to guess: an object that holds none of
//! the known kinds of record, or two of them, is not a record.

mod array;
mod chat;
mod lines;
mod plain;
mod record;
mod table;

pub use record::{Chat, Fields, Record};

use crate::error::{Result, TextError};
use crate::recipes::Recipe;
use serde_json::Value;
use std::io::BufRead;
use std::path::Path;

/// The longest record that is read, in bytes.
pub const MAX_LINE: u64 = 64 << 20;

/// How a data file is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One JSON object a line.
    Lines,
    /// One JSON array of objects.
    Array,
    /// A line with the names of columns, then rows; columns are separated by this byte.
    Table(u8),
    /// Text without structure, cut into as many records as it takes.
    Plain,
}

impl Form {
    /// The form of a file, by its name and, for `.json`, by its `first` bytes; what has another name is taken for JSON Lines.
    pub fn of(path: &Path, first: &[u8]) -> Self {
        let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
        match extension.as_deref() {
            Some("txt" | "md") => Self::Plain,
            Some("csv") => Self::Table(b','),
            Some("tsv") => Self::Table(b'\t'),
            Some("json") if first.trim_ascii_start().starts_with(b"[") => Self::Array,
            _ => Self::Lines,
        }
    }
}

/// What a file holds at a line, before it is known to be a record; the error is its fault in words.
type Item = (u64, std::result::Result<Value, String>);

/// A reader of one form. `None` is the end; an error is the system's.
enum Source<R> {
    Lines(lines::Lines<R>),
    Array(array::Array<R>),
    Table(table::Table<R>),
    Plain(plain::Plain<R>),
}

/// The records of a data file.
pub struct Records<R> {
    source: Source<R>,
    reading: Reading,
    ended: bool,
}

/// How an object becomes a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// By the fields that it has.
    Fields(Fields),
    /// As a row of a labelled data set.
    Task(Recipe),
}

impl Default for Reading {
    fn default() -> Self {
        Self::Fields(Fields::default())
    }
}

impl<R: BufRead> Records<R> {
    /// Reads records of a form.
    pub fn new(reader: R, form: Form, reading: Reading) -> Self {
        let source = match form {
            Form::Lines => Source::Lines(lines::Lines::new(reader)),
            Form::Array => Source::Array(array::Array::new(reader)),
            Form::Table(delimiter) => Source::Table(table::Table::new(reader, delimiter)),
            Form::Plain => Source::Plain(plain::Plain::new(reader)),
        };
        Self { source, reading, ended: false }
    }

    fn item(&mut self) -> std::io::Result<Option<Item>> {
        match &mut self.source {
            Source::Lines(lines) => lines.next_item(),
            Source::Array(array) => array.next_item(),
            Source::Table(table) => table.next_item(),
            Source::Plain(_) => Ok(None),
        }
    }

    fn record(&mut self) -> std::io::Result<Option<(u64, std::result::Result<Record, String>)>> {
        if let Source::Plain(plain) = &mut self.source {
            return match self.reading {
                Reading::Fields(_) => plain.next_record(),
                Reading::Task(_) => {
                    self.ended = true;
                    Ok(Some((1, Err("plain text has no labels; a task wants .jsonl, .json, .csv or .tsv".into()))))
                }
            };
        }
        let found = self.item()?;
        let record = |value| match &self.reading {
            Reading::Fields(fields) => Record::from_json(value, fields),
            Reading::Task(recipe) => recipe.question(&value).map(Record::Question),
        };
        Ok(found.map(|(line, value)| (line, value.and_then(record))))
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<(u64, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        match self.record() {
            Ok(Some((line, Ok(record)))) => Some(Ok((line, record))),
            Ok(Some((line, Err(reason)))) => Some(Err(TextError::Record { line, reason })),
            Ok(None) => None,
            Err(error) => {
                self.ended = true;
                Some(Err(TextError::Reading(error)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_follows_the_name_and_an_array_its_first_byte() {
        let form = |name: &str, first: &str| Form::of(Path::new(name), first.as_bytes());
        assert_eq!(form("a.JSONL", "["), Form::Lines);
        assert_eq!(form("a.json", " \n[{"), Form::Array);
        assert_eq!(form("a.json", "{"), Form::Lines);
        assert_eq!((form("a.csv", ""), form("b/a.tsv", "")), (Form::Table(b','), Form::Table(b'\t')));
        assert_eq!((form("a.txt", "{"), form("a", "{")), (Form::Plain, Form::Lines));
    }

    #[test]
    fn a_reader_that_fails_ends_the_records_with_its_error() {
        struct Broken(usize);
        impl std::io::Read for Broken {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                self.0 += 1;
                if self.0 > 1 {
                    return Err(std::io::Error::other("gone"));
                }
                let line = b"{\"text\": \"a\"}\n";
                out[..line.len()].copy_from_slice(line);
                Ok(line.len())
            }
        }
        for form in [Form::Lines, Form::Plain] {
            let found: Vec<_> = Records::new(std::io::BufReader::new(Broken(0)), form, Reading::default()).collect();
            assert!(matches!(found.last(), Some(Err(TextError::Reading(_)))), "{form:?}: {found:?}");
            assert!(found.len() <= 2);
        }
    }
}
