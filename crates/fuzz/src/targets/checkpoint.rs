//! A checkpoint, as it is and once more with the checksum that it should have, so that damage behind the checksum is seen too.

use std::io::{ErrorKind, Result};
use std::path::Path;

use pocketune::store::{Checkpoints, Storage, Stored};
use pocketune::train::updates_of;
use sha2::{Digest, Sha256};

use super::{Target, accepted, as_it_is_or_mended};
use crate::seeds::Seed;

pub const TARGET: Target = Target {
    name: "checkpoint",
    run,
    seeds,
    words: &[
        b"pocketune state\n",
        b"\"format\":",
        b"\"terms\":",
        b"\"progress\":",
        b"\"iter\":",
        b"\"adapter\":",
        b"\"optimizer\":",
        b"null",
        b"{}",
        b"[]",
        b"-1",
        b"1e999",
        b"18446744073709551616",
        b"\xff",
        b"\\u0000",
        b"\"",
    ],
};

fn run(bytes: &[u8]) -> bool {
    as_it_is_or_mended(bytes, taken_up)
}

fn taken_up(file: Vec<u8>) -> bool {
    let disk = OneFile(file);
    let found =
        accepted(Checkpoints::of(&disk, Path::new("/run"))).and_then(|mut all| accepted(all.newest()).flatten());
    let Some(mut saved) = found else { return false };
    let known = accepted(updates_of(&saved)).is_some();
    let mut part = vec![0; saved.left().min(4096) as usize];
    assert!(saved.read(&mut part).is_ok(), "a whole file that can't be read");
    assert!(accepted(saved.read(&mut vec![0; saved.left() as usize + 1])).is_none(), "more than there is");
    known
}

/// A disk that holds one checkpoint and can't be written to.
struct OneFile(Vec<u8>);

struct Opened(Vec<u8>);

impl Storage for OneFile {
    fn create(&self, _: &Path) -> Result<Box<dyn Stored>> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn open(&self, _: &Path) -> Result<Box<dyn Stored>> {
        Ok(Box::new(Opened(self.0.clone())))
    }

    fn rename(&self, _: &Path, _: &Path) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove(&self, _: &Path) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync_folder(&self, _: &Path) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn names(&self, _: &Path) -> Result<Vec<String>> {
        Ok(vec!["0000000007.checkpoint".into()])
    }

    fn make_folder(&self, _: &Path) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn remove_folder(&self, _: &Path) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Stored for Opened {
    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.0.get(at..)?.get(..bytes.len()));
        bytes.copy_from_slice(from.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn bytes(&self) -> Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn reserve(&mut self, _: u64) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }

    fn sync(&mut self) -> Result<()> {
        Err(ErrorKind::ReadOnlyFilesystem.into())
    }
}

/// A whole checkpoint with this header.
fn file(header: &str, body: &[u8]) -> Vec<u8> {
    let before = [b"pocketune state\n", &(header.len() as u64).to_le_bytes()[..], header.as_bytes(), body].concat();
    [&before[..], &Sha256::digest(&before)[..]].concat()
}

/// The header of a run of the built-in model, as it was written.
const HEADER: &str = r#"{"format":2,"terms":{"batch-size":"4","data":"ec35","iters":"2000","lora-targets":"[Q, K]","seed":"0"},"progress":{"iter":2,"position":8,"trained":588,"skipped":0,"undone":0,"bad_in_a_row":0,"halvings":0,"since":{"losses":4619719046573689722,"counted":2},"spikes":{"mean":4615215446946319226,"variance":4571210268910618272,"count":2},"first_loss":9221120237041090560,"last_loss":9221120237041090560,"valid_before":{"loss":4664844225254785024,"hits":833,"targets":1970},"validated":0,"best":{"lowest":null,"worse":0},"kept":null},"adapter":2,"optimizer":4,"log":0}"#;

fn seeds() -> Vec<Seed> {
    let padded = format!("{HEADER}{}", " ".repeat(100));
    vec![Seed::common(file(HEADER, &[7; 24])), Seed::common(file(&padded, &[]))]
}
