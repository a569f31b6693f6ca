//! A byte-level tokenizer of any size from 257 tokens up: the 256 bytes, tokens of upper-case letters with a merge each, and an end
//! of text. It has as many tokens and merges as a real one of its size, so that reading it costs what theirs costs; and it merges
//! nothing in lower-case text, so that a byte there is a token. It refuses to be useful for language.

use pocketune_formats::gguf::Header;

/// The values of `tokenizer.ggml.token_type`.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

const BYTES: usize = 256;
const LETTERS: usize = 26;

/// Adds the entries of a tokenizer of `vocab` tokens.
///
/// # Panics
/// When that is too few for every byte and an end.
pub fn write(header: &mut Header, vocab: usize) {
    assert!(vocab > BYTES, "{vocab} tokens are too few for every byte and an end");
    let end = vocab - 1;
    let token = |id| match id {
        0..BYTES => spelling(id as u8).into(),
        _ if id == end => "<|endoftext|>".into(),
        _ => letters(LETTERS + id - BYTES),
    };
    header.text("tokenizer.ggml.model", "gpt2");
    header.text("tokenizer.ggml.pre", "gpt-2");
    header.texts("tokenizer.ggml.tokens", (0..vocab).map(token));
    header.integers("tokenizer.ggml.token_type", (0..vocab).map(|id| if id == end { CONTROL } else { NORMAL }));
    header.texts("tokenizer.ggml.merges", (BYTES..end).map(|id| merge(LETTERS + id - BYTES)));
    header.number("tokenizer.ggml.eos_token_id", end);
    header.flag("tokenizer.ggml.add_bos_token", false);
}

/// The strings of upper-case letters, shorter ones first: number 0 is `A`, 26 is `AA`, 27 is `AB`.
fn letters(number: usize) -> String {
    let mut text = number.checked_sub(LETTERS).map_or(String::new(), |rest| letters(rest / LETTERS));
    text.push(char::from(b'A' + (number % LETTERS) as u8));
    text
}

/// The merge that makes such a string of its last letter and what is before it.
fn merge(number: usize) -> String {
    let mut text = letters(number);
    text.insert(text.len() - 1, ' ');
    text
}

/// GPT-2's printable character for a byte: itself where that is printable, else the next free one from U+0100.
fn spelling(byte: u8) -> char {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(&byte) {
        return byte.into();
    }
    let before = (0..byte).filter(|byte| !printable(byte)).count() as u32;
    char::from_u32(0x100 + before).expect("the block from U+0100 has no gaps")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_letters_are_all_different_and_made_by_their_merge() {
        assert_eq!([0, 25, 26, 27, 52, 26 * 27].map(letters), ["A", "Z", "AA", "AB", "BA", "AAA"]);
        assert_eq!(merge(26 * 27 + 1), "AA B");
    }

    #[test]
    fn bytes_are_spelled_as_gpt_2_spells_them() {
        assert_eq!([b'a', b' ', b'\n', 0, 0xAD].map(spelling), ['a', 'Ġ', 'Ċ', 'Ā', 'Ń']);
    }
}
