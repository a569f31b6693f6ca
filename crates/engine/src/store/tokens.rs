//! The token file: all records as tokens, one after another, written once and read record by record while steps run, so that neither
//! the tokenizer nor the text stays in memory. It has no name after it is opened: the system removes it when the run ends, however it ends.
//!
//! Each token is a little-endian `u32`; its top bit says whether it is a target. The record bounds stay in memory, 8 bytes each.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

const TARGET: u32 = 1 << 31;

/// Writes a token file.
pub struct TokenWriter {
    out: BufWriter<File>,
    path: std::path::PathBuf,
    ends: Vec<u64>,
    tokens: u64,
    longest: usize,
    hash: Sha256,
}

impl TokenWriter {
    /// A new token file in `folder`, without a name there.
    ///
    /// # Errors
    /// The system's.
    pub fn new(folder: &Path) -> Result<Self> {
        let path = folder.join("the token file");
        let file = super::spill::nameless(folder, "tokens")?;
        let (out, hash) = (BufWriter::with_capacity(1 << 16, file), Sha256::new());
        Ok(Self { out, path, ends: Vec::new(), tokens: 0, longest: 0, hash })
    }

    /// Adds a record; `target[i]` says whether token `i` counts in the loss.
    ///
    /// # Errors
    /// The system's.
    pub fn push(&mut self, ids: &[u32], target: &[bool]) -> Result<()> {
        for (&id, &target) in ids.iter().zip(target) {
            let word = id | if target { TARGET } else { 0 };
            self.out.write_all(&word.to_le_bytes()).map_err(|error| Error::io(&self.path, error))?;
            self.hash.update(word.to_le_bytes());
        }
        // No word is all ones: it ends the record.
        self.hash.update(u32::MAX.to_le_bytes());
        self.tokens += ids.len() as u64;
        self.longest = self.longest.max(ids.len());
        self.ends.push(self.tokens);
        Ok(())
    }

    /// Ends writing and maps the file.
    ///
    /// # Errors
    /// The system's.
    pub fn finish(self) -> Result<TokenFile> {
        let file = self.out.into_inner().map_err(|error| Error::io(&self.path, error.into_error()))?;
        Ok(TokenFile { file, ends: self.ends, longest: self.longest, sum: self.hash.finalize().into() })
    }
}

/// A finished token file.
pub struct TokenFile {
    file: File,
    ends: Vec<u64>,
    longest: usize,
    sum: [u8; 32],
}

impl TokenFile {
    /// The SHA-256 of all records: what a run learns from, whatever files and options it came from.
    pub fn sum(&self) -> [u8; 32] {
        self.sum
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Tokens of all records.
    pub fn tokens(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Tokens of the longest record.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Tokens of a record.
    pub fn length(&self, at: usize) -> usize {
        (self.ends[at] - if at == 0 { 0 } else { self.ends[at - 1] }) as usize
    }

    /// Reads a record into the front of `words`, which has room for the longest: what [`token`] takes apart.
    ///
    /// # Errors
    /// The system's.
    pub fn read<'a>(&self, at: usize, words: &'a mut [u32]) -> Result<&'a [u32]> {
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        let words = &mut words[..self.length(at)];
        let read = self.file.read_exact_at(bytemuck::cast_slice_mut(words), start * 4);
        read.map_err(|error| Error::io("the token file", error))?;
        words.iter_mut().for_each(|word| *word = u32::from_le(*word));
        Ok(words)
    }
}

/// A token and whether it is a target.
pub const fn token(word: u32) -> (u32, bool) {
    (word & !TARGET, word & TARGET != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_written_and_the_folder_stays_empty() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::new(folder.path()).unwrap();
        writer.push(&[1, 2, 3], &[false, true, true]).unwrap();
        writer.push(&[], &[]).unwrap();
        writer.push(&[7], &[false]).unwrap();
        let file = writer.finish().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!((file.len(), file.tokens(), file.longest()), (3, 4, 3));
        let mut words = [0; 3];
        let mut read = |at| file.read(at, &mut words).unwrap().iter().map(|&word| token(word)).collect::<Vec<_>>();
        assert_eq!(read(0), [(1, false), (2, true), (3, true)]);
        assert_eq!(read(1), []);
        assert_eq!(read(2), [(7, false)]);
    }

    #[test]
    fn the_sum_knows_tokens_targets_and_where_records_end() {
        let folder = tempfile::tempdir().unwrap();
        let sum = |records: &[(&[u32], &[bool])]| {
            let mut writer = TokenWriter::new(folder.path()).unwrap();
            records.iter().for_each(|(ids, target)| writer.push(ids, target).unwrap());
            writer.finish().unwrap().sum()
        };
        let one = sum(&[(&[1, 2], &[true, true]), (&[3], &[true])]);
        assert_eq!(one, sum(&[(&[1, 2], &[true, true]), (&[3], &[true])]));
        assert_ne!(one, sum(&[(&[1], &[true]), (&[2, 3], &[true, true])]));
        assert_ne!(one, sum(&[(&[1, 2], &[true, false]), (&[3], &[true])]));
        assert_ne!(one, sum(&[(&[1, 2], &[true, true]), (&[4], &[true])]));
    }
}
