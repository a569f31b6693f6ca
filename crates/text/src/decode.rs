//! From ids back to text. One decoder serves whole sequences and streams: it holds bytes back until they are whole UTF-8
//! characters. It refuses to guess at bytes that can't become one: each such stretch is one U+FFFD.

use crate::tokenizer::Tokenizer;

/// How tokens become text, in the order in which it is done.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Decoding {
    /// Replaced in each token's text: (from, to).
    pub replace: Option<(String, String)>,
    /// Whether tokens named `<0x00>` to `<0xFF>` stand for a byte.
    pub byte_fallback: bool,
    /// A mark that is dropped from the first token, where elsewhere it is replaced.
    pub drop_in_first: Option<char>,
    /// This character is dropped from the beginning of the text, so many times.
    pub strip_start: Option<(char, usize)>,
}

/// Turns ids into text as they come, emitting only whole characters.
pub struct Decoder<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Bytes of a character that is not yet whole.
    pending: Vec<u8>,
    /// Characters that may still be dropped from the beginning.
    to_strip: usize,
    first: bool,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        let to_strip = tokenizer.decoding().strip_start.map_or(0, |(_, count)| count);
        Self { tokenizer, skip_special, pending: Vec::new(), to_strip, first: true }
    }

    /// Appends to `out` what became whole with this token. An id without a token adds nothing.
    pub fn push(&mut self, id: u32, out: &mut String) {
        if self.skip_special && self.tokenizer.is_special(id) {
            return;
        }
        let Some(bytes) = self.tokenizer.token_bytes(id) else { return };
        let decoding = self.tokenizer.decoding();
        match (fallback_byte(bytes).filter(|_| decoding.byte_fallback), std::str::from_utf8(bytes)) {
            (Some(byte), _) => self.pending.push(byte),
            (None, Ok(text)) => self.push_text(text),
            (None, Err(_)) => self.pending.extend_from_slice(bytes),
        }
        self.first = false;
        self.emit(out);
    }

    fn push_text(&mut self, text: &str) {
        let decoding = self.tokenizer.decoding();
        let dropped = decoding.drop_in_first.filter(|_| self.first).map(|mark| text.replace(mark, ""));
        let text = dropped.as_deref().unwrap_or(text);
        match &decoding.replace {
            Some((from, to)) => self.pending.extend_from_slice(text.replace(from.as_str(), to).as_bytes()),
            None => self.pending.extend_from_slice(text.as_bytes()),
        }
    }

    /// Moves whole characters from the pending bytes to `out`.
    fn emit(&mut self, out: &mut String) {
        let pending = std::mem::take(&mut self.pending);
        for chunk in pending.utf8_chunks() {
            self.emit_text(chunk.valid(), out);
            match chunk.invalid() {
                [] => {}
                cut if could_still_be_whole(cut) && pending.ends_with(cut) => self.pending.extend_from_slice(cut),
                _ => self.emit_text("\u{FFFD}", out),
            }
        }
    }

    fn emit_text(&mut self, mut text: &str, out: &mut String) {
        if let Some((strip, _)) = self.tokenizer.decoding().strip_start {
            while self.to_strip > 0 && !text.is_empty() {
                match text.strip_prefix(strip) {
                    Some(rest) => (text, self.to_strip) = (rest, self.to_strip - 1),
                    None => self.to_strip = 0,
                }
            }
        }
        out.push_str(text);
    }

    /// Ends the stream: bytes that are still waiting become one U+FFFD.
    pub fn finish(mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.emit_text("\u{FFFD}", out);
        }
    }
}

/// Whether the bytes are the beginning of a character that more bytes could complete.
fn could_still_be_whole(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// The byte that a token of the form `<0x2F>` stands for.
fn fallback_byte(token: &[u8]) -> Option<u8> {
    let hex = token.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let [high, low] = hex else { return None };
    let digit = |c: u8| char::from(c).to_digit(16);
    u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
}
