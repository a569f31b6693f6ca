//! JSON Lines: one object a line; blank lines count but hold nothing. A line longer than the limit is read past and reported, not kept.

use super::{Item, MAX_LINE};
use pocketune_formats::json;
use serde_json::Value;
use std::io::{self, BufRead, Read};

/// Lines of a reader, in one buffer.
pub(super) struct Lines<R> {
    reader: R,
    line: u64,
    buffer: Vec<u8>,
}

/// A line as it was found.
pub(super) enum Line<'a> {
    /// Its text, without the line's end.
    Text(&'a str),
    /// What is wrong with it.
    Bad(String),
}

impl<R: BufRead> Lines<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, line: 0, buffer: Vec::new() }
    }

    /// The next line and its number; `None` at the end. A byte order mark before the first is no part of it.
    pub fn next_line(&mut self) -> io::Result<Option<(u64, Line<'_>)>> {
        self.buffer.clear();
        self.line += 1;
        if (&mut self.reader).take(MAX_LINE + 1).read_until(b'\n', &mut self.buffer)? == 0 {
            return Ok(None);
        }
        if self.buffer.len() as u64 > MAX_LINE {
            if self.buffer.last() != Some(&b'\n') {
                self.reader.skip_until(b'\n')?;
            }
            self.buffer = Vec::new();
            return Ok(Some((self.line, Line::Bad(format!("longer than the limit of {MAX_LINE} bytes")))));
        }
        let line = match std::str::from_utf8(&self.buffer) {
            Err(error) => Line::Bad(format!("not UTF-8: {error}")),
            Ok(text) => {
                let text = if self.line == 1 { text.trim_start_matches('\u{FEFF}') } else { text };
                let text = text.strip_suffix('\n').unwrap_or(text);
                Line::Text(text.strip_suffix('\r').unwrap_or(text))
            }
        };
        Ok(Some((self.line, line)))
    }

    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        loop {
            match self.next_line()? {
                None => return Ok(None),
                Some((_, Line::Text(text))) if text.trim().is_empty() => {}
                Some((line, Line::Text(text))) => return Ok(Some((line, parse(text.trim())))),
                Some((line, Line::Bad(reason))) => return Ok(Some((line, Err(reason)))),
            }
        }
    }
}

/// A JSON value; the error is its fault in words. The line's number is the file's, so only the column is of use.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    json::document(text.as_bytes()).map_err(|error| {
        let reason = error.to_string();
        let reason = reason.split(" at line ").next().unwrap_or_default();
        format!("not JSON: {reason} at column {}", error.column())
    })
}

#[cfg(test)]
mod tests {
    use crate::records::{Form, Reading, Record, Records};

    fn read(text: &[u8]) -> Vec<Result<(u64, Record), String>> {
        let records = Records::new(text, Form::Lines, Reading::default());
        records.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn records_keep_the_numbers_of_their_lines() {
        let found = read("\u{FEFF}{\"text\": \"a\"}\r\n\n  \n{\"text\": \"b\"}".as_bytes());
        assert_eq!(found, [Ok((1, Record::Text("a".into()))), Ok((4, Record::Text("b".into())))]);
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line_and_reading_goes_on() {
        let found = read(b"{\"text\": \"a\"}\n\xFF\xFE\n{\"text\": \"b\"}\n");
        assert!(found[1].as_ref().is_err_and(|error| error.starts_with("line 2: not UTF-8")), "{found:?}");
        assert_eq!(found[2], Ok((3, Record::Text("b".into()))));
    }

    #[test]
    fn a_line_beyond_the_limit_is_refused_and_reading_goes_on() {
        let mut text = vec![b'x'; super::MAX_LINE as usize + 10];
        text.extend_from_slice(b"\n{\"text\": \"b\"}\n");
        let found = read(&text);
        assert_eq!(found[0], Err(format!("line 1: longer than the limit of {} bytes", super::MAX_LINE)));
        assert_eq!(found[1], Ok((2, Record::Text("b".into()))));
    }
}
