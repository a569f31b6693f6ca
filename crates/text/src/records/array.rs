//! A JSON array of objects, as many data sets are published (alpaca, sharegpt): elements are cut out by following quotes and brackets,
//! and parsed one at a time. It refuses anything but one array, and what comes behind it.

use super::lines::parse;
use super::{Item, MAX_LINE};
use std::io::{self, BufRead};

/// Elements of an array.
pub(super) struct Array<R> {
    reader: R,
    line: u64,
    state: State,
    element: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    /// Before the opening bracket.
    Before,
    /// Between elements.
    Between,
    /// Behind the closing bracket.
    Behind,
    Ended,
}

/// What a byte means for where an element ends.
#[derive(Default)]
struct Depth {
    open: usize,
    in_text: bool,
    escaped: bool,
}

impl Depth {
    /// Whether the element ends before this byte, which is the array's.
    fn ends_at(&mut self, byte: u8) -> bool {
        if self.in_text {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_text = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_text = true,
            b'{' | b'[' => self.open += 1,
            b'}' | b']' if self.open > 0 => self.open -= 1,
            b',' | b']' => return self.open == 0,
            _ => {}
        }
        false
    }
}

impl<R: BufRead> Array<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, line: 1, state: State::Before, element: Vec::new() }
    }

    pub fn next_item(&mut self) -> io::Result<Option<Item>> {
        loop {
            let Some(byte) = self.byte()? else { return Ok(self.end()) };
            match (self.state, byte) {
                (_, b' ' | b'\t' | b'\r' | b'\n') => {}
                // The byte order mark.
                (State::Before, 0xEF | 0xBB | 0xBF) => {}
                (State::Before, b'[') => self.state = State::Between,
                (State::Between, b']') => self.state = State::Behind,
                (State::Between, b',') => {}
                (State::Between, byte) => return self.element(byte).map(Some),
                (State::Ended, _) => return Ok(None),
                (State::Before | State::Behind, _) => {
                    return Ok(self.fault("something outside the one array of the file"));
                }
            }
        }
    }

    /// What is left to say at the end of the file.
    fn end(&mut self) -> Option<Item> {
        match self.state {
            State::Before | State::Between => self.fault("the array has no end"),
            State::Behind | State::Ended => None,
        }
    }

    /// The last thing that is said of this file.
    fn fault(&mut self, reason: &str) -> Option<Item> {
        self.state = State::Ended;
        Some((self.line, Err(format!("not JSON: {reason}"))))
    }

    fn element(&mut self, first: u8) -> io::Result<Item> {
        let (line, mut depth, mut byte) = (self.line, Depth::default(), Some(first));
        self.element.clear();
        let mut too_long = false;
        loop {
            match byte {
                None => {
                    self.state = State::Ended;
                    return Ok((line, Err("not JSON: the array ends inside this record".into())));
                }
                Some(byte) if depth.ends_at(byte) => {
                    self.state = if byte == b']' { State::Behind } else { State::Between };
                    break;
                }
                Some(byte) if (self.element.len() as u64) < MAX_LINE => self.element.push(byte),
                Some(_) => too_long = true,
            }
            byte = self.byte()?;
        }
        if too_long {
            self.element = Vec::new();
            return Ok((line, Err(format!("longer than the limit of {MAX_LINE} bytes"))));
        }
        let text = std::str::from_utf8(&self.element).map_err(|error| format!("not UTF-8: {error}"));
        Ok((line, text.and_then(|text| parse(text.trim()))))
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        let Some(&byte) = self.reader.fill_buf()?.first() else { return Ok(None) };
        self.reader.consume(1);
        self.line += u64::from(byte == b'\n');
        Ok(Some(byte))
    }
}

#[cfg(test)]
mod tests {
    use crate::records::{Form, Reading, Record, Records};

    fn read(text: &str) -> Vec<Result<(u64, Record), String>> {
        let records = Records::new(text.as_bytes(), Form::Array, Reading::default());
        records.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn elements_come_one_by_one_with_the_line_they_begin_at() {
        let found = read("\u{FEFF}[\n {\"text\": \"a, ] \\\" }\"},\n\n {\n\"text\": \"b\"}, {\"text\": 3}]\n");
        assert_eq!(found[0], Ok((2, Record::Text("a, ] \" }".into()))));
        assert_eq!(found[1], Ok((4, Record::Text("b".into()))));
        assert_eq!(found[2], Err("line 5: `text` is a number, not a string".into()));
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn what_is_no_array_is_refused_once() {
        for (text, words) in [
            ("{\"text\": \"a\"}", "line 1: not JSON: something outside"),
            ("[{\"text\": \"a\"}] []", "line 1: not JSON: something outside"),
            ("[{\"text\": \"a\"},\n", "line 2: not JSON: the array has no end"),
            ("[\n{\"text\": \"a\"", "line 2: not JSON: the array ends inside this record"),
            ("", "line 1: not JSON: the array has no end"),
        ] {
            let found = read(text);
            let faults: Vec<_> = found.iter().filter_map(|record| record.as_ref().err()).collect();
            assert!(faults.len() == 1 && faults[0].starts_with(words), "{text}: {found:?}");
        }
    }
}
