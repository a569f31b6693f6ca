//! Plain text: passages of up to a megabyte, each ending with a line where it can, one after another until the file ends. It refuses
//! bytes that are no UTF-8, and a file without a word in it.

use super::record::Record;
use std::io::{self, BufRead, Read};

/// Bytes of a passage; the tokenizer sees no more at once.
const PASSAGE: usize = 1 << 20;

/// Passages of a text file.
pub(super) struct Plain<R> {
    reader: R,
    line: u64,
    /// What was read and not yet handed out.
    buffer: Vec<u8>,
    /// Whether a passage was handed out, and whether the file has ended.
    begun: bool,
    ended: bool,
}

type Found = (u64, Result<Record, String>);

impl<R: BufRead> Plain<R> {
    pub fn new(reader: R) -> Self {
        Self { reader, line: 1, buffer: Vec::new(), begun: false, ended: false }
    }

    pub fn next_record(&mut self) -> io::Result<Option<Found>> {
        if self.ended {
            return Ok(None);
        }
        // One byte more than a passage says whether another follows.
        let wanted = (PASSAGE + 1 - self.buffer.len()) as u64;
        (&mut self.reader).take(wanted).read_to_end(&mut self.buffer)?;
        self.ended = self.buffer.len() <= PASSAGE;
        let end = if self.ended { self.buffer.len() } else { cut(&self.buffer[..PASSAGE]) };
        let rest = self.buffer.split_off(end);
        let bytes = std::mem::replace(&mut self.buffer, rest);
        let line = self.line;
        self.line += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let first = !std::mem::replace(&mut self.begun, true);
        Ok(match String::from_utf8(bytes) {
            Err(error) => {
                self.ended = true;
                Some((line, Err(format!("not UTF-8: {}", error.utf8_error()))))
            }
            Ok(text) => {
                let text = if first { text.trim_start_matches('\u{FEFF}') } else { &text };
                match text.trim().is_empty() {
                    true if first && self.ended => Some((line, Err("the file is empty".into()))),
                    true if self.ended => None,
                    _ => Some((line, Ok(Record::Passage { text: text.to_owned(), last: self.ended }))),
                }
            }
        })
    }
}

/// Where a passage ends: behind the last line end in its second half, else before a character that it would cut.
fn cut(bytes: &[u8]) -> usize {
    let half = bytes.len() / 2;
    if let Some(at) = bytes[half..].iter().rposition(|&byte| byte == b'\n') {
        return half + at + 1;
    }
    let is_inside = |&&byte: &&u8| byte & 0xC0 == 0x80;
    let inside = bytes.iter().rev().take(3).take_while(is_inside).count();
    // The byte before those inside a character may begin one that is not whole.
    let start = bytes.len() - inside - 1;
    if bytes[start] < 0x80 || std::str::from_utf8(&bytes[start..]).is_ok() { bytes.len() } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Form, Reading, Records};

    fn read(text: &[u8]) -> Vec<Result<(u64, Record), String>> {
        let records = Records::new(text, Form::Plain, Reading::default());
        records.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn a_short_file_is_one_passage() {
        let passage = |text: &str| Record::Passage { text: text.into(), last: true };
        assert_eq!(read("\u{FEFF}a\n\nb\n".as_bytes()), [Ok((1, passage("a\n\nb\n")))]);
        assert_eq!(read(b" \n"), [Err("line 1: the file is empty".into())]);
        assert!(read(b"one \xC0\x80 two")[0].as_ref().is_err_and(|error| error.contains("not UTF-8")));
    }

    #[test]
    fn a_long_file_is_cut_at_lines_and_loses_nothing() {
        for text in ["A line of text.\n".repeat(200_000), "no line ends é東😀 ".repeat(120_000)] {
            let mut whole = String::new();
            let found = read(text.as_bytes());
            assert!(found.len() > 2);
            for (at, record) in found.iter().enumerate() {
                let Ok((line, Record::Passage { text: piece, last })) = record else { panic!("{record:?}") };
                assert_eq!(*line, 1 + whole.matches('\n').count() as u64);
                assert!(piece.len() <= PASSAGE && (piece.ends_with('\n') || !text.contains('\n')));
                assert_eq!(*last, at + 1 == found.len());
                whole.push_str(piece);
            }
            assert!(whole == text);
        }
    }
}
