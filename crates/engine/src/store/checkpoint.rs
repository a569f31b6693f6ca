//! Checkpoints: the state of a run as one file, of which the last two generations are kept. Whatever happens while the next one is written,
//! the newest that was finished is found again, whole.
//!
//! ```text
//! RUN/.pocketune/0000000007.checkpoint     the one before
//!                0000000008.checkpoint     the newest
//!                next                      space for the next, taken before it is needed
//! ```
//! `next` is written, synced, renamed to its number, and the folder synced; only then the oldest becomes `next`. A checkpoint that
//! does not bear out its own SHA-256 does not count: that is how a file is known whose new name reached the disk before its content
//! left it. After any error nothing more is written to the same file.
//!
//! ```text
//! "pocketune state\n" | length of the header, u64 | header, JSON padded with spaces | body | SHA-256 of all before
//! ```

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::hidden_folder;
use super::storage::{Storage, Stored};
use crate::error::{Error, Result};

const MAGIC: [u8; 16] = *b"pocketune state\n";
/// Bytes before the header.
const FRONT: u64 = 24;
/// Bytes of the checksum.
const SUM: u64 = 32;
/// No header is longer.
const LONGEST_HEADER: u64 = 1 << 20;
/// Bytes that pass through memory at once.
pub const CHUNK: usize = 64 << 10;
/// Generations that are kept.
const KEPT: usize = 2;

/// The checkpoints of one run.
pub struct Checkpoints<'a> {
    storage: &'a dyn Storage,
    folder: PathBuf,
    /// Generations that are there, oldest first.
    generations: Vec<u64>,
    /// Those that turned out to be damaged; their space is used first.
    damaged: Vec<u64>,
    /// The highest number that was ever used.
    highest: u64,
    /// The file that the next one is written to.
    next: Option<Box<dyn Stored>>,
}

/// Of the same generations.
impl PartialEq for Checkpoints<'_> {
    fn eq(&self, other: &Self) -> bool {
        (&self.folder, self.highest) == (&other.folder, other.highest)
    }
}

impl<'a> Checkpoints<'a> {
    /// Those of the run whose adapter goes to `run`; there may be none.
    ///
    /// # Errors
    /// When the folder can't be read.
    pub fn of(storage: &'a dyn Storage, run: &Path) -> Result<Self> {
        let folder = hidden_folder(run);
        let names = storage.names(&folder).map_err(|error| Error::io(&folder, error))?;
        let mut generations: Vec<u64> = names.iter().filter_map(|name| generation(name)).collect();
        generations.sort_unstable();
        let highest = generations.last().copied().unwrap_or(0);
        Ok(Self { storage, folder, generations, damaged: Vec::new(), highest, next: None })
    }

    /// Where they lie.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.generations.is_empty()
    }

    /// The newest that is whole, looked through once with memory of [`CHUNK`] bytes; `None` where there is none at all.
    ///
    /// # Errors
    /// When there are some and all are damaged, or the system fails.
    pub fn newest(&mut self) -> Result<Option<Saved>> {
        let mut fault = None;
        for at in (0..self.generations.len()).rev() {
            match self.check(self.generations[at]) {
                Ok(saved) => {
                    self.damaged.extend(self.generations.drain(at + 1..));
                    return Ok(Some(saved));
                }
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        fault.map_or(Ok(None), Err)
    }

    /// Counts the newest as damaged, where there is one before it.
    pub fn discard(&mut self) {
        if self.generations.len() > 1 {
            self.damaged.extend(self.generations.pop());
        }
    }

    fn check(&self, generation: u64) -> Result<Saved> {
        let path = self.path(generation);
        let io = |error| Error::io(&path, error);
        let fault = |fault: &str| Error::Checkpoint { path: path.clone(), fault: fault.into() };
        let file = self.storage.open(&path).map_err(io)?;
        let len = file.bytes().map_err(io)?;
        let mut front = [0; FRONT as usize];
        if len < FRONT + SUM {
            return Err(fault("damaged: it is too short"));
        }
        file.read_at(0, &mut front).map_err(io)?;
        let header = u64::from_le_bytes(front[16..].try_into().expect("eight bytes"));
        if front[..16] != MAGIC {
            return Err(fault("not a checkpoint"));
        }
        if header > LONGEST_HEADER || header > len - FRONT - SUM {
            return Err(fault("damaged: its header ends beyond it"));
        }
        let mut hash = Sha256::new();
        let mut chunk = vec![0; CHUNK];
        let mut at = 0;
        while at < len - SUM {
            let part = &mut chunk[..(len - SUM - at).min(CHUNK as u64) as usize];
            file.read_at(at, part).map_err(io)?;
            hash.update(&*part);
            at += part.len() as u64;
        }
        let mut sum = [0; SUM as usize];
        file.read_at(at, &mut sum).map_err(io)?;
        if hash.finalize()[..] != sum {
            return Err(fault("damaged: its checksum is another"));
        }
        let mut text = vec![0; header as usize];
        file.read_at(FRONT, &mut text).map_err(io)?;
        Ok(Saved { file, path, header: text, at: FRONT + header, end: len - SUM })
    }

    /// Takes the space for a checkpoint with a header of `header` bytes and a body of `body`.
    ///
    /// # Errors
    /// When the disk has no such space left.
    pub fn reserve(&mut self, header: usize, body: u64) -> Result<()> {
        let io = |error| Error::io(&self.folder, error);
        self.storage.make_folder(&self.folder).map_err(io)?;
        let bytes = FRONT + header as u64 + body + SUM;
        let path = self.folder.join("next");
        let full = |error| Error::System(format!("{}: {bytes} bytes for a checkpoint: {error}", path.display()));
        let oldest = (self.generations.len() > KEPT).then(|| self.generations[0]);
        let mut file = if let Some(unused) = self.damaged.first().copied().or(oldest) {
            // Its name is gone before its content is.
            self.storage.rename(&self.path(unused), &path).map_err(io)?;
            self.generations.retain(|&other| other != unused);
            self.damaged.retain(|&other| other != unused);
            self.storage.open(&path).map_err(io)?
        } else {
            self.storage.create(&path).map_err(io)?
        };
        file.reserve(bytes).map_err(full)?;
        self.next = Some(file);
        Ok(())
    }

    /// Writes the next generation: `header`, and a body that `fill` hands over. It is durable when this returns.
    ///
    /// # Errors
    /// The system's or `fill`'s: the generations before stay as they are, and another [`Checkpoints::reserve`] comes first.
    pub fn commit(&mut self, header: &[u8], fill: &mut dyn FnMut(&mut Body) -> Result<()>) -> Result<()> {
        let path = self.folder.join("next");
        let io = |error| Error::io(&path, error);
        let file = self.next.take().ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
        let mut body = Body { file, path: &path, at: 0, hash: Sha256::new() };
        body.write(&MAGIC)?;
        body.write(&(header.len() as u64).to_le_bytes())?;
        body.write(header)?;
        fill(&mut body)?;
        let Body { mut file, at, hash, .. } = body;
        file.write_at(at, &hash.finalize()).map_err(io)?;
        file.sync().map_err(io)?;
        self.highest += 1;
        let last = self.path(self.highest);
        self.storage.rename(&path, &last).map_err(|error| Error::io(&last, error))?;
        self.generations.push(self.highest);
        self.storage.sync_folder(&self.folder).map_err(|error| Error::io(&self.folder, error))
    }

    /// Gives back the space that was taken for the next one.
    ///
    /// # Errors
    /// The system's.
    pub fn give_back(&mut self) -> Result<()> {
        let path = self.folder.join("next");
        match self.next.take() {
            Some(_) => self.storage.remove(&path).map_err(|error| Error::io(&path, error)),
            None => Ok(()),
        }
    }

    /// Removes all of them, and the folder where nothing else is in it.
    ///
    /// # Errors
    /// The system's.
    pub fn clear(&mut self) -> Result<()> {
        let io = |error| Error::io(&self.folder, error);
        self.next = None;
        self.generations.clear();
        for name in self.storage.names(&self.folder).map_err(io)? {
            if name == "next" || generation(&name).is_some() {
                self.storage.remove(&self.folder.join(&name)).map_err(io)?;
            }
        }
        // Another's file in it is no reason to fail.
        let _ = self.storage.remove_folder(&self.folder);
        Ok(())
    }

    fn path(&self, generation: u64) -> PathBuf {
        self.folder.join(format!("{generation:010}.checkpoint"))
    }
}

fn generation(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".checkpoint")?;
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

/// The body of a checkpoint that is being written.
pub struct Body<'a> {
    file: Box<dyn Stored>,
    path: &'a Path,
    at: u64,
    hash: Sha256,
}

impl Body<'_> {
    /// Adds bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_at(self.at, bytes).map_err(|error| Error::io(self.path, error))?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }
}

/// A checkpoint that is whole, opened at the start of its body.
pub struct Saved {
    file: Box<dyn Stored>,
    path: PathBuf,
    /// What it says of itself.
    pub header: Vec<u8>,
    at: u64,
    end: u64,
}

impl Saved {
    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the body that were not read yet.
    pub fn left(&self) -> u64 {
        self.end - self.at
    }

    /// Reads on.
    ///
    /// # Errors
    /// When the body has no so many bytes left, or the system fails.
    pub fn read(&mut self, bytes: &mut [u8]) -> Result<()> {
        if bytes.len() as u64 > self.left() {
            return Err(Error::Checkpoint { path: self.path.clone(), fault: "it is of another adapter".into() });
        }
        self.file.read_at(self.at, bytes).map_err(|error| Error::io(&self.path, error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }
}
