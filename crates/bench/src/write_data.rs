//! Text records of an exact length: lower-case words, of which the tokenizer written here makes a token a byte. The words mean nothing.

use std::io::{self, Write};
use std::path::Path;

use pocketune_kernels::philox::Philox;

use crate::failure::Result;
use crate::write_whole;

/// Writes `records` records of `tokens` tokens each as JSON Lines.
///
/// # Errors
/// The system's; no half-written file is left.
pub fn write(tokens: usize, records: usize, path: &Path) -> Result<()> {
    write_whole(path, |out| (0..records).try_for_each(|record| write_record(out, tokens, record)))
}

fn write_record(out: &mut dyn Write, tokens: usize, record: usize) -> io::Result<()> {
    let random = Philox::new(0, record as u64);
    out.write_all(b"{\"text\": \"")?;
    for at in 0..tokens {
        // About one byte in six is a space, never the first, the last or one after another.
        let drawn = |at: usize| random.below(at as u64, 26 + 6) as u8;
        let space = drawn(at) >= 26 && at > 0 && at + 1 < tokens && drawn(at - 1) < 26;
        let byte = if space { b' ' } else { b'a' + drawn(at) % 26 };
        out.write_all(&[byte])?;
    }
    out.write_all(b"\"}\n")
}
