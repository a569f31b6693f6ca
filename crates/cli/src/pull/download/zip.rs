//! Reads one member of a zip archive, which is what a Python wheel is.
//!
//! Stored and deflated members of archives below 4 GiB; no Zip64, no encryption, no writing, no member's name ever used as a path.
//! Checksums are left to the caller, who knows a better one.
//!
//! ```text
//! [local header, name, extra, DATA]*  [central header, name, extra, comment]*  end record, comment
//! ```

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use flate2::read::DeflateDecoder;

/// An end record without its comment, and the longest comment.
const END: usize = 22;
const LONGEST_COMMENT: usize = 0xffff;
/// A central header and a local header without their names.
const CENTRAL: usize = 46;
const LOCAL: u64 = 30;
/// More than any wheel's table of contents.
const MAX_DIRECTORY: u64 = 16 << 20;
/// What a field holds when the truth is in a Zip64 record.
const ELSEWHERE: u64 = 0xffff_ffff;

/// A member as the table of contents describes it.
struct Entry {
    method: u64,
    packed: u64,
    header_at: u64,
}

/// The unpacked bytes of `member`, which the archive says are `size` many; more than that are never given, plus one to notice.
pub fn open(mut archive: File, member: &str, size: u64) -> Result<Box<dyn Read>, String> {
    let length = archive.seek(SeekFrom::End(0)).map_err(|error| error.to_string())?;
    let directory = directory(&mut archive, length)?;
    let entry = find(&directory, member)?.ok_or_else(|| format!("no {member} in it"))?;
    let mut header = [0; LOCAL as usize];
    read_at(&mut archive, length, entry.header_at, &mut header)?;
    if &header[..4] != b"PK\x03\x04" {
        return Err(format!("{member}: no header where the table of contents says"));
    }
    let data_at = entry.header_at + LOCAL + number(&header, 26, 2) + number(&header, 28, 2);
    if data_at.checked_add(entry.packed).is_none_or(|end| end > length) {
        return Err(format!("{member}: {} bytes at {data_at}, in an archive of {length}", entry.packed));
    }
    archive.seek(SeekFrom::Start(data_at)).map_err(|error| error.to_string())?;
    let packed = archive.take(entry.packed);
    match entry.method {
        0 => Ok(Box::new(packed.take(size + 1))),
        8 => Ok(Box::new(DeflateDecoder::new(packed).take(size + 1))),
        method => Err(format!("{member}: packed by method {method}; only stored and deflated are read")),
    }
}

/// The table of contents, found through the end record.
fn directory(archive: &mut File, length: u64) -> Result<Vec<u8>, String> {
    if length < END as u64 {
        return Err(format!("no zip archive: {length} bytes"));
    }
    let tail_length = length.min((END + LONGEST_COMMENT) as u64);
    let mut tail = vec![0; tail_length as usize];
    read_at(archive, length, length - tail_length, &mut tail)?;
    // The comment must fill the rest, or these four letters are part of one.
    let is_end = |&at: &usize| {
        tail[at..].starts_with(b"PK\x05\x06") && at + END + number(&tail, at + 20, 2) as usize == tail.len()
    };
    let end = (0..=tail.len() - END).rev().find(is_end).ok_or("no zip archive: it has no end record")?;
    let (size, at) = (number(&tail, end + 12, 4), number(&tail, end + 16, 4));
    if size == ELSEWHERE || at == ELSEWHERE {
        return Err("a Zip64 archive, which is not read".into());
    }
    if size > MAX_DIRECTORY {
        return Err(format!("a table of contents of {size} bytes, where at most {MAX_DIRECTORY} are read"));
    }
    if at + size > length {
        return Err(format!("a table of contents of {size} bytes at {at}, in an archive of {length}"));
    }
    let mut directory = vec![0; size as usize];
    read_at(archive, length, at, &mut directory)?;
    Ok(directory)
}

/// The entry called `member`.
fn find(mut directory: &[u8], member: &str) -> Result<Option<Entry>, String> {
    while !directory.is_empty() {
        if directory.len() < CENTRAL || !directory.starts_with(b"PK\x01\x02") {
            return Err("a broken table of contents".into());
        }
        let name_end = CENTRAL + number(directory, 28, 2) as usize;
        let end = name_end + (number(directory, 30, 2) + number(directory, 32, 2)) as usize;
        if end > directory.len() {
            return Err("a table of contents that ends inside an entry".into());
        }
        if &directory[CENTRAL..name_end] == member.as_bytes() {
            let (method, packed) = (number(directory, 10, 2), number(directory, 20, 4));
            let header_at = number(directory, 42, 4);
            return match [packed, number(directory, 24, 4), header_at].contains(&ELSEWHERE) {
                true => Err(format!("{member}: a Zip64 entry, which is not read")),
                false => Ok(Some(Entry { method, packed, header_at })),
            };
        }
        directory = &directory[end..];
    }
    Ok(None)
}

fn read_at(archive: &mut File, length: u64, at: u64, into: &mut [u8]) -> Result<(), String> {
    if at.checked_add(into.len() as u64).is_none_or(|end| end > length) {
        return Err(format!("{} bytes wanted at {at}, in an archive of {length}", into.len()));
    }
    let sought = archive.seek(SeekFrom::Start(at));
    sought.and_then(|_| archive.read_exact(into)).map_err(|error| error.to_string())
}

/// The little-endian number of `width` bytes at `at`, which the caller knows to be there.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}
