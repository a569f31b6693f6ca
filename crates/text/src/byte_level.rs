//! GPT-2's printable alphabet for bytes: 188 bytes stand for themselves, the other 68 for U+0100 onwards. Files spell
//! tokens in it; in memory tokens are raw bytes, so that text is looked up as it is. It refuses (answers `None` for)
//! strings with characters outside the alphabet.

/// Whether a byte is written as the character of the same number.
fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

/// The byte that a character of the alphabet stands for.
fn byte_of(c: char) -> Option<u8> {
    match u8::try_from(u32::from(c)) {
        Ok(byte) => stands_for_itself(byte).then_some(byte),
        // The bytes that don't stand for themselves are numbered in order from U+0100.
        Err(_) => (0..=255u8).filter(|&b| !stands_for_itself(b)).nth((u32::from(c) - 0x100) as usize),
    }
}

/// The raw bytes of a token that is spelled in the alphabet.
pub(crate) fn raw_bytes(token: &str) -> Option<Vec<u8>> {
    token.chars().map(byte_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_spells_each_byte_once() {
        let mut seen: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..=255).collect::<Vec<u8>>());
    }

    #[test]
    fn known_spellings_are_read() {
        assert_eq!(raw_bytes("Ġhello").as_deref(), Some(&b" hello"[..]));
        assert_eq!(raw_bytes("ĊÃ©").as_deref(), Some("\né".as_bytes()));
        assert_eq!(raw_bytes("a b"), None);
        assert_eq!(raw_bytes("한"), None);
    }
}
