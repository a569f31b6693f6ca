//! A reader of GGUF files, versions 2 and 3, little-endian, and an encoder of their headers ([`Header`]).
//!
//! ```text
//! "GGUF" version:u32 tensors:u64 entries:u64
//! entries x { key:string type:u32 value }          -> Meta
//! tensors x { name:string dims:u32 dim:u64.. type:u32 offset:u64 }
//! padding to general.alignment
//! data: each tensor at an aligned offset from here
//! ```
//! Written against hostile files: a count is compared with the bytes left before anything is allocated for it,
//! arithmetic is checked, names are unique, and tensors lie inside the file without sharing a byte. It knows nothing of
//! what keys mean, apart from `general.alignment`.

mod cursor;
mod meta;
mod problem;
mod tensors;
mod value;
mod write;

pub use meta::{Meta, MetaArray, Value};
pub use problem::Problem;
pub use value::ValueType;
pub use write::{ALIGNMENT, Header};

use crate::error::{Error, Result};
use crate::mapped::Mapped;
use crate::tensor::TensorList;
use cursor::Cursor;

/// The first bytes of a GGUF file.
pub const MAGIC: [u8; 4] = *b"GGUF";

/// Most metadata entries that a file may have; real ones have about 50.
const MAX_ENTRIES: u64 = 1 << 16;
/// Most tensors that a file may have; the largest models have a few thousand.
const MAX_TENSORS: u64 = 1 << 16;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 16;

/// What a GGUF file says of itself.
#[derive(Debug)]
pub struct Gguf {
    version: u32,
    meta: Meta,
}

impl Gguf {
    /// Reads and checks everything but the tensors' data, which `file` number `index` of the model holds.
    ///
    /// # Errors
    /// When the file is malformed.
    pub fn read(file: &Mapped, index: usize) -> Result<(Self, TensorList)> {
        parse(file, index).map_err(|problem| Error::Gguf { path: file.path().into(), problem })
    }

    /// The version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }
}

fn parse(file: &Mapped, index: usize) -> std::result::Result<(Gguf, TensorList), Problem> {
    let mut cursor = Cursor::new(file.bytes());
    let found = cursor.array("magic")?;
    if found != MAGIC {
        return Err(Problem::Magic { found });
    }
    let version = cursor.u32("version")?;
    match version {
        2 | 3 => {}
        _ if matches!(version.swap_bytes(), 1..=3) => return Err(Problem::BigEndian),
        found => return Err(Problem::Version { found }),
    }
    let tensors = cursor.u64("number of tensors")?;
    let entries = cursor.u64("number of metadata entries")?;
    let tensors = cursor.count("tensors", tensors, tensors::MIN_BYTES, MAX_TENSORS)?;
    let entries = cursor.count("metadata entries", entries, meta::MIN_BYTES, MAX_ENTRIES)?;

    let meta = Meta::read(file, &mut cursor, entries)?;
    let alignment = meta.unsigned("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT);
    if !alignment.is_power_of_two() || !(8..=MAX_ALIGNMENT).contains(&alignment) {
        return Err(Problem::Alignment { found: alignment, limit: MAX_ALIGNMENT });
    }
    let list = tensors::read(&mut cursor, tensors, alignment, index)?;
    Ok((Gguf { version, meta }, list))
}
