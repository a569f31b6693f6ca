//! Small zip archives for the tests, and what their reader does with broken ones.

use std::io::{Read, Seek, SeekFrom, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;

use crate::pull::download::zip;

/// An archive of these members, each stored or deflated, with a comment that looks like an end record.
pub fn archive(members: &[(&str, &[u8], bool)]) -> Vec<u8> {
    let (mut whole, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes, deflated) in members {
        let packed = if *deflated { deflate(bytes) } else { bytes.to_vec() };
        let method: u16 = if *deflated { 8 } else { 0 };
        let at = whole.len() as u32;
        let mut facts = Vec::new();
        facts.extend([20, 0, 0, 0]);
        facts.extend(method.to_le_bytes());
        facts.extend([0; 8]);
        facts.extend((packed.len() as u32).to_le_bytes());
        facts.extend((bytes.len() as u32).to_le_bytes());
        facts.extend((name.len() as u16).to_le_bytes());
        whole.extend(b"PK\x03\x04");
        whole.extend(&facts);
        whole.extend([3, 0]);
        whole.extend(name.as_bytes());
        whole.extend(b"???");
        whole.extend(packed);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&facts);
        directory.extend([0; 12]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = whole.len() as u32;
    whole.extend(&directory);
    whole.extend(b"PK\x05\x06\x00\x00\x00\x00");
    whole.extend([members.len() as u8, 0, members.len() as u8, 0]);
    whole.extend((directory.len() as u32).to_le_bytes());
    whole.extend(at.to_le_bytes());
    whole.extend([30, 0]);
    whole.extend(b"PK\x05\x06 is how an end record goes");
    whole
}

fn deflate(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes all bytes")
}

fn read(bytes: &[u8], member: &str, size: u64) -> Result<Vec<u8>, String> {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(bytes).and_then(|()| file.seek(SeekFrom::Start(0))).expect("written");
    let mut unpacked = Vec::new();
    zip::open(file, member, size)?.read_to_end(&mut unpacked).map_err(|error| error.to_string())?;
    Ok(unpacked)
}

#[test]
fn members_are_read_stored_and_deflated() {
    let long = b"one two three ".repeat(1000);
    let bytes = archive(&[("a/b.txt", b"stored", false), ("c.gguf", &long, true), ("empty", b"", false)]);
    assert_eq!(read(&bytes, "a/b.txt", 6).as_deref(), Ok(b"stored".as_slice()));
    assert_eq!(read(&bytes, "c.gguf", long.len() as u64).as_deref(), Ok(long.as_slice()));
    assert_eq!(read(&bytes, "empty", 0).as_deref(), Ok(b"".as_slice()));
    assert_eq!(read(&bytes, "b.txt", 6), Err("no b.txt in it".to_owned()));
}

#[test]
fn a_member_gives_at_most_one_byte_more_than_promised() {
    let bomb = archive(&[("bomb", &vec![0; 1 << 20], true)]);
    assert_eq!(read(&bomb, "bomb", 1000).map(|bytes| bytes.len()), Ok(1001));
}

#[test]
fn a_broken_archive_is_an_error_or_other_bytes_and_never_a_panic() {
    let bytes = archive(&[("a", b"first of two", false), ("b", b"second of two, deflated", true)]);
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length], "b", 23).is_err(), "cut to {length}");
    }
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut broken = bytes.clone();
            broken[at] ^= flip;
            let _ = read(&broken, "b", 23);
        }
    }
}
