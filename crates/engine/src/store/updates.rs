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

/// Reads a header and numbers.
///
/// # Errors
/// When it is no such file, or damaged, or the system fails.
pub fn read_updates(path: &Path) -> Result<(Vec<u8>, Vec<f32>)> {
    let io = |error| Error::io(path, error);
    let fault = |fault: &str| Error::Checkpoint { path: path.into(), fault: fault.into() };
    let file = Files.open(path).map_err(io)?;
    let len = file.bytes().map_err(io)?;
    if len > LONGEST {
        return Err(fault("longer than any run's updates"));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(0, &mut bytes).map_err(io)?;
    if bytes.len() < FRONT + SUM || bytes[..16] != MAGIC {
        return Err(fault("not the updates of a run"));
    }
    let (all, sum) = bytes.split_at(bytes.len() - SUM);
    if Sha256::digest(all)[..] != *sum {
        return Err(fault("damaged: its checksum is another"));
    }
    let header = u64::from_le_bytes(all[16..FRONT].try_into().expect("eight bytes"));
    let rest = &all[FRONT..];
    let header = usize::try_from(header).ok().filter(|&header| header <= rest.len());
    let (header, numbers) = rest.split_at(header.ok_or_else(|| fault("damaged: its header ends beyond it"))?);
    let words = numbers.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().expect("four bytes")));
    Ok((header.into(), words.collect()))
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
        assert_eq!(read_updates(&path).unwrap(), (b"{}".to_vec(), vec![1.0, -0.5, f32::MIN_POSITIVE]));
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            std::fs::write(&path, &other).unwrap();
            assert!(read_updates(&path).is_err(), "byte {at} was changed");
            std::fs::write(&path, &bytes[..at]).unwrap();
            assert!(read_updates(&path).is_err(), "{at} bytes are left");
        }
    }
}
