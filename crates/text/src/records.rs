//! Records of a data file: one JSON object a line, with `text` or with `messages`. Lines are read one by one, and every
//! bad one is an error that names its number and its fault. It refuses to guess: an object that has neither field, or a
//! message without role or content, is not a record.

use crate::error::{Result, TextError};
use pocketune_formats::json;
use serde_json::Value;
use std::io::{BufRead, Read};

/// The longest line, and the longest plain text file, that is read.
pub const MAX_LINE: u64 = 64 << 20;

/// One training record.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Plain text.
    Text(String),
    /// A conversation: a list of objects with `role` and `content`.
    Messages(Value),
}

impl Record {
    /// Reads a whole plain text file as one record.
    pub fn from_plain_text(reader: impl Read) -> Result<Self> {
        let fault = |reason: String| TextError::Record { line: 1, reason };
        let mut bytes = Vec::new();
        reader.take(MAX_LINE + 1).read_to_end(&mut bytes).map_err(|error| fault(error.to_string()))?;
        if bytes.len() as u64 > MAX_LINE {
            return Err(TextError::TooLarge { what: "the text file".into(), limit: MAX_LINE });
        }
        let text = String::from_utf8(bytes).map_err(|error| fault(error.utf8_error().to_string()))?;
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(&text);
        if text.trim().is_empty() {
            return Err(fault("the file is empty".into()));
        }
        Ok(Self::Text(text.to_owned()))
    }

    /// Reads one line of JSON; the error is its fault in words.
    fn from_json(line: &str) -> std::result::Result<Self, String> {
        let value: Value = json::document(line.as_bytes()).map_err(|error| {
            // The line number is the file's, so only the column is of use.
            let reason = error.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            format!("not JSON: {reason} at column {}", error.column())
        })?;
        let Value::Object(mut fields) = value else {
            return Err(format!("a record is an object, not {}", kind(&value)));
        };
        match (fields.remove("messages"), fields.remove("text")) {
            (Some(messages), None) => check_messages(&messages).map(|()| Self::Messages(messages)),
            (None, Some(Value::String(text))) if text.is_empty() => Err("`text` is empty".into()),
            (None, Some(Value::String(text))) => Ok(Self::Text(text)),
            (None, Some(other)) => Err(format!("`text` is {}, not a string", kind(&other))),
            (Some(_), Some(_)) => Err("the record has both `text` and `messages`".into()),
            (None, None) => Err("the record has neither `text` nor `messages`".into()),
        }
    }
}

fn check_messages(messages: &Value) -> std::result::Result<(), String> {
    let Value::Array(list) = messages else {
        return Err(format!("`messages` is {}, not a list", kind(messages)));
    };
    if list.is_empty() {
        return Err("`messages` is empty".into());
    }
    for (number, message) in (1..).zip(list) {
        let Value::Object(fields) = message else {
            return Err(format!("message {number} is {}, not an object", kind(message)));
        };
        match fields.get("role") {
            Some(Value::String(_)) => {}
            Some(other) => return Err(format!("message {number}: `role` is {}, not a string", kind(other))),
            None => return Err(format!("message {number} has no `role`")),
        }
        match fields.get("content") {
            // A list of parts is for templates that know them; null stands beside a tool call.
            Some(Value::String(_) | Value::Array(_)) => {}
            Some(Value::Null) | None if fields.contains_key("tool_calls") => {}
            Some(other) => return Err(format!("message {number}: `content` is {}, not a string", kind(other))),
            None => return Err(format!("message {number} has no `content`")),
        }
    }
    Ok(())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The records of a JSON Lines file, in order, each with the number of its line. After a bad line reading goes on, so that
/// all of them can be reported; after a failure of the reader, or a line that is too long, it ends.
pub struct Records<R> {
    reader: R,
    line: u64,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> Records<R> {
    /// Reads records from JSON Lines.
    pub fn new(reader: R) -> Self {
        Self { reader, line: 0, buffer: Vec::new(), ended: false }
    }

    /// Reads the next line into the buffer; `None` at the end.
    fn next_line(&mut self) -> std::result::Result<Option<()>, String> {
        self.buffer.clear();
        self.line += 1;
        let read = (&mut self.reader).take(MAX_LINE + 1).read_until(b'\n', &mut self.buffer);
        let read = read.map_err(|error| error.to_string())?;
        if self.buffer.len() as u64 > MAX_LINE {
            return Err(format!("longer than the limit of {MAX_LINE} bytes"));
        }
        Ok((read > 0).then_some(()))
    }

    /// Makes a record of the buffer; `None` when it is blank.
    fn parse(&self) -> std::result::Result<Option<Record>, String> {
        let line = std::str::from_utf8(&self.buffer).map_err(|error| format!("not UTF-8: {error}"))?;
        let line = if self.line == 1 { line.trim_start_matches('\u{FEFF}') } else { line };
        match line.trim() {
            "" => Ok(None),
            line => Record::from_json(line).map(Some),
        }
    }
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<(u64, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let record = match self.next_line() {
                Ok(Some(())) => self.parse(),
                Ok(None) => {
                    self.ended = true;
                    return None;
                }
                Err(reason) => {
                    self.ended = true;
                    Err(reason)
                }
            };
            let line = self.line;
            match record {
                Ok(None) => {}
                Ok(Some(record)) => return Some(Ok((line, record))),
                Err(reason) => return Some(Err(TextError::Record { line, reason })),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<std::result::Result<(u64, Record), String>> {
        Records::new(text.as_bytes()).map(|record| record.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn records_keep_the_numbers_of_their_lines() {
        let found =
            read("\u{FEFF}{\"text\": \"a\"}\r\n\n  \n{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}");
        assert_eq!(found.len(), 2);
        assert_eq!(found[0], Ok((1, Record::Text("a".into()))));
        assert!(matches!(&found[1], Ok((4, Record::Messages(_)))));
    }

    #[test]
    fn each_fault_is_named_with_its_line_and_reading_goes_on() {
        let cases = [
            (r#"{"text": 3}"#, "`text` is a number, not a string"),
            (r#"{"text": ""}"#, "`text` is empty"),
            (r#"{"texts": "a"}"#, "the record has neither `text` nor `messages`"),
            (r#"["a"]"#, "a record is an object, not a list"),
            (r#"{"text": "a""#, "not JSON: EOF while parsing an object at column 12"),
            (r#"{"messages": []}"#, "`messages` is empty"),
            (r#"{"messages": "a"}"#, "`messages` is a string, not a list"),
            (r#"{"messages": [{"content": "a"}]}"#, "message 1 has no `role`"),
            (r#"{"messages": [{"role": "user"}]}"#, "message 1 has no `content`"),
            (r#"{"messages": [{"role": "user", "content": 1}]}"#, "message 1: `content` is a number, not a string"),
        ];
        let file: String = cases.iter().map(|(line, _)| format!("{line}\n{{\"text\": \"good\"}}\n")).collect();
        let found = read(&file);
        for (i, (_, reason)) in cases.iter().enumerate() {
            assert_eq!(found[2 * i], Err(format!("line {}: {reason}", 2 * i + 1)));
            assert_eq!(found[2 * i + 1], Ok((2 * i as u64 + 2, Record::Text("good".into()))));
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_refused_with_their_line() {
        let found: Vec<_> = Records::new(&b"{\"text\": \"a\"}\n\xFF\xFE\n"[..]).collect();
        assert!(found[0].is_ok());
        assert!(found[1].as_ref().is_err_and(|error| error.to_string().starts_with("line 2: not UTF-8")));
    }

    #[test]
    fn a_plain_text_file_is_one_record() {
        assert_eq!(Record::from_plain_text(&b"a\n\nb\n"[..]).unwrap(), Record::Text("a\n\nb\n".into()));
        assert!(Record::from_plain_text(&b" \n"[..]).is_err());
    }
}
