//! Tables: the first line names the columns, every row is an object of texts. CSV quotes as RFC 4180 has it, so a field may hold commas,
//! quotes (doubled) and line ends; TSV quotes nothing. It refuses rows of another width, names that come twice, and quotes in the
//! middle of a bare field.

use super::lines::{Line, Lines};
use super::{Item, MAX_LINE};
use serde_json::{Map, Value};
use std::io::{self, BufRead};

/// The fields of a row, or what is wrong with it, and the line it begins at.
type Found = (u64, Result<Vec<String>, String>);

/// Rows of a table.
pub(super) struct Table<R> {
    lines: Lines<R>,
    delimiter: u8,
    names: Option<Vec<String>>,
    ended: bool,
}

impl<R: BufRead> Table<R> {
    pub fn new(reader: R, delimiter: u8) -> Self {
        Self { lines: Lines::new(reader), delimiter, names: None, ended: false }
    }

    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        if self.ended {
            return Ok(None);
        }
        if self.names.is_none() {
            match self.row()? {
                None => return Ok(None),
                Some((line, row)) => match row.and_then(columns) {
                    Ok(names) => self.names = Some(names),
                    Err(reason) => {
                        self.ended = true;
                        return Ok(Some((line, Err(reason))));
                    }
                },
            }
        }
        let Some((line, row)) = self.row()? else { return Ok(None) };
        let names = self.names.as_deref().unwrap_or_default();
        Ok(Some((line, row.and_then(|row| object(names, row)))))
    }

    /// The next row that is not blank, with the line it begins at.
    fn row(&mut self) -> io::Result<Option<Found>> {
        let (mut row, mut begun) = (Row::new(self.delimiter), 0);
        loop {
            match self.lines.next_line()? {
                None if begun > 0 => return Ok(Some((begun, Err("a quoted field has no end".into())))),
                None => return Ok(None),
                Some((line, Line::Bad(reason))) => {
                    return Ok(Some((if begun > 0 { begun } else { line }, Err(reason))));
                }
                Some((_, Line::Text(text))) if begun == 0 && text.trim().is_empty() => {}
                Some((line, Line::Text(text))) => {
                    begun = if begun > 0 { begun } else { line };
                    match row.take_line(text) {
                        Ok(true) => return Ok(Some((begun, Ok(row.fields)))),
                        Ok(false) if row.bytes as u64 > MAX_LINE => {
                            return Ok(Some((begun, Err(format!("longer than the limit of {MAX_LINE} bytes")))));
                        }
                        Ok(false) => {}
                        Err(reason) => return Ok(Some((begun, Err(reason)))),
                    }
                }
            }
        }
    }
}

fn columns(names: Vec<String>) -> Result<Vec<String>, String> {
    let names: Vec<String> = names.into_iter().map(|name| name.trim().to_owned()).collect();
    match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        Some((_, name)) => Err(format!("two columns are called `{name}`")),
        None => Ok(names),
    }
}

fn object(names: &[String], row: Vec<String>) -> Result<Value, String> {
    if row.len() != names.len() {
        return Err(format!("{} fields, where the first line names {} columns", row.len(), names.len()));
    }
    let fields: Map<String, Value> = names.iter().cloned().zip(row.into_iter().map(Value::String)).collect();
    Ok(Value::Object(fields))
}

/// A row that is being read; a quoted field may go on with the next line.
struct Row {
    delimiter: u8,
    fields: Vec<String>,
    bytes: usize,
    /// A quoted field that has not ended.
    open: Option<String>,
}

impl Row {
    fn new(delimiter: u8) -> Self {
        Self { delimiter, fields: Vec::new(), bytes: 0, open: None }
    }

    /// Takes a line in; whether the row is complete.
    fn take_line(&mut self, line: &str) -> Result<bool, String> {
        self.bytes += line.len() + 1;
        let quotes = self.delimiter == b',';
        let delimiter = char::from(self.delimiter);
        let mut rest = line;
        loop {
            if let Some(field) = &mut self.open {
                let Some((text, after)) = rest.split_once('"') else {
                    field.push_str(rest);
                    field.push('\n');
                    return Ok(false);
                };
                field.push_str(text);
                if let Some(after) = after.strip_prefix('"') {
                    field.push('"');
                    rest = after;
                    continue;
                }
                self.fields.extend(self.open.take());
                match after.strip_prefix(delimiter) {
                    Some(after) => rest = after,
                    None if after.is_empty() => return Ok(true),
                    None => return Err("text behind the closing quote of a field".into()),
                }
            }
            if quotes && let Some(text) = rest.strip_prefix('"') {
                self.open = Some(String::new());
                rest = text;
                continue;
            }
            let (field, after) = rest.split_once(delimiter).map_or((rest, None), |(field, after)| (field, Some(after)));
            if quotes && field.contains('"') {
                return Err("a quote inside a field that does not begin with one".into());
            }
            self.fields.push(field.to_owned());
            match after {
                Some(after) => rest = after,
                None => return Ok(true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::records::{Form, Reading, Record, Records};

    fn read(text: &str, delimiter: u8) -> Vec<Result<(u64, Record), String>> {
        let records = Records::new(text.as_bytes(), Form::Table(delimiter), Reading::default());
        records.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    fn texts(table: &str, delimiter: u8) -> Vec<(u64, String)> {
        let text = |record| match record {
            Ok((line, Record::Text(text))) => (line, text),
            other => panic!("{other:?}"),
        };
        read(table, delimiter).into_iter().map(text).collect()
    }

    #[test]
    fn csv_fields_hold_commas_quotes_and_line_ends() {
        let table = "\u{FEFF}id, text\r\n1,plain\r\n\r\n2,\"a, \"\"b\"\"\n\nc\"\n3,\"\"\"\"\n";
        let want = [(2, "plain"), (4, "a, \"b\"\n\nc"), (7, "\"")].map(|(line, text)| (line, text.to_owned()));
        assert_eq!(texts(table, b','), want);
    }

    #[test]
    fn tsv_quotes_nothing() {
        assert_eq!(texts("text\tlabel\n\"a\" b,c\t1\n", b'\t'), [(2, "\"a\" b,c".to_owned())]);
    }

    #[test]
    fn faults_are_named_with_the_line_they_begin_at() {
        for (table, words) in [
            ("text,b\na\n", "line 2: 1 fields, where the first line names 2 columns"),
            ("text,text\na,b\n", "line 1: two columns are called `text`"),
            ("text\n\"a\nb\n", "line 2: a quoted field has no end"),
            ("text\na\"b\n", "line 2: a quote inside a field"),
            ("text\n\"a\"b\n", "line 2: text behind the closing quote"),
            ("words\na\n", "line 2: no record"),
        ] {
            let found = read(table, b',');
            assert!(found.len() == 1, "{table}: {found:?}");
            assert!(found[0].as_ref().is_err_and(|error| error.starts_with(words)), "{table}: {found:?}");
        }
    }
}
