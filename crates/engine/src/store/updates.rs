//! The file of a run's updates: a header and numbers, with a checksum over both. It is written with the adapter's other files, whole or not at all.
//!
//! ```text
//! "pocketune update" | length of the header, u64 | header, JSON | numbers, f32 | SHA-256 of all before
//! ```

use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::storage::{Files, Storage};
use crate::error::{Error, Result};

/// Its name in an adapter's folder.
pub const UPDATES: &str = "pocketune.updates";

const MAGIC: [u8; 16] = *b"pocketune update";
/// Bytes before the header.
const FRONT: usize = 24;
/// Bytes of the checksum.
const SUM: usize = 32;
/// No file is longer: a hundred million updates along one direction.
const LONGEST: u64 = 1 << 30;
/// No header is longer: it has a kilobyte or two.
const LONGEST_HEADER: usize = 1 << 20;

/// Writes a header and numbers.
///
/// # Errors
/// Those of `out`.
pub fn write_updates(out: &mut dyn Write, header: &[u8], numbers: &[f32]) -> std::io::Result<()> {
    let mut hash = Sha256::new();
    for part in [&MAGIC[..], &(header.len() as u64).to_le_bytes(), header, bytemuck::cast_slice(numbers)] {
        hash.update(part);
        out.write_all(part)?;
    }
    out.write_all(&hash.finalize())
}

/// Reads the bytes of such a file.
///
/// # Errors
/// When it is too long, or the system fails.
pub fn read_updates(path: &Path) -> Result<Vec<u8>> {
    let io = |error| Error::io(path, error);
    let file = Files.open(path).map_err(io)?;
    let len = file.bytes().map_err(io)?;
    if len > LONGEST {
        return Err(Error::Checkpoint { path: path.into(), fault: "longer than any run's updates".into() });
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(0, &mut bytes).map_err(io)?;
    Ok(bytes)
}

/// The header and the numbers of a file that was read from `path`.
///
/// # Errors
/// When it is no such file, or damaged.
pub fn parse_updates<'a>(path: &Path, bytes: &'a [u8]) -> Result<(&'a [u8], Vec<f32>)> {
    let fault = |fault: &str| Error::Checkpoint { path: path.into(), fault: fault.into() };
    if bytes.len() < FRONT + SUM || bytes[..16] != MAGIC {
        return Err(fault("not the updates of a run"));
    }
    let (all, sum) = bytes.split_at(bytes.len() - SUM);
    if Sha256::digest(all)[..] != *sum {
        return Err(fault("damaged: its checksum is another"));
    }
    let header = u64::from_le_bytes(all[16..FRONT].try_into().expect("eight bytes"));
    let rest = &all[FRONT..];
    let header = usize::try_from(header).ok().filter(|&header| header <= rest.len().min(LONGEST_HEADER));
    let (header, numbers) = rest.split_at(header.ok_or_else(|| fault("damaged: its header ends beyond it"))?);
    let words = numbers.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")));
    Ok((header, words.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_comes_back_and_what_is_damaged_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(UPDATES);
        let mut bytes = Vec::new();
        write_updates(&mut bytes, b"{}", &[1.0, -0.5, f32::MIN_POSITIVE]).unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let read = read_updates(&path).unwrap();
        assert_eq!(parse_updates(&path, &read).unwrap(), (&b"{}"[..], vec![1.0, -0.5, f32::MIN_POSITIVE]));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert!(parse_updates(&path, &other).is_err(), "byte {at} was changed");
            assert!(parse_updates(&path, &bytes[..at]).is_err(), "{at} bytes are left");
        }
    }
}
