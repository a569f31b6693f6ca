//! One function a parser. Each takes the bytes of a file and does with it all that the product would: opens it, reads every field,
//! and uses what it made. It answers whether the file was accepted; it panics where an error is not one line.

mod chat_template;
mod checkpoint;
mod config;
mod gguf;
mod index;
mod mlx;
mod packed;
mod peft;
mod records;
mod safetensors;
mod tokenizer_config;
mod tokenizer_json;
mod updates;
mod yaml;

use std::fmt::Display;

use pocketune_formats::Mapped;
use pocketune_formats::folder::Folder;
use sha2::{Digest, Sha256};

use crate::seeds::Seed;

/// A parser under attack.
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Takes an input; whether it was accepted.
    pub run: fn(&[u8]) -> bool,
    /// Good inputs.
    pub seeds: fn() -> Vec<Seed>,
    /// Words that matter in the format.
    pub words: &'static [&'static [u8]],
}

/// All targets.
pub const ALL: [Target; 14] = [
    gguf::TARGET,
    safetensors::TARGET,
    index::TARGET,
    config::TARGET,
    tokenizer_json::TARGET,
    tokenizer_config::TARGET,
    chat_template::TARGET,
    peft::TARGET,
    records::TARGET,
    mlx::TARGET,
    packed::TARGET,
    checkpoint::TARGET,
    updates::TARGET,
    yaml::TARGET,
];

/// Words of JSON files.
const JSON: &[&[u8]] = &[
    b"null",
    b"true",
    b"false",
    b"{}",
    b"[]",
    b"\"\"",
    b"-1",
    b"1e999",
    b"{\"a\":",
    b"[[[[[[[[",
    b"]",
    b"}",
    b",",
    b"\"",
    b"\\u0000",
    b"\\ud800",
    b"\\",
    b"\xff",
    b"\xc3(",
];

/// Whether it is a value; an error must be one line.
fn accepted<T, E: Display>(answer: Result<T, E>) -> Option<T> {
    answer.map_err(|error| assert!(!error.to_string().contains('\n'), "more than a line: {error}")).ok()
}

/// A folder in memory with these files.
fn folder(files: &[(&str, &[u8])]) -> Folder {
    Folder::held("m", files.iter().map(|&(name, bytes)| (name.to_owned(), Mapped::from_bytes(name, bytes))))
}

/// What stands between two files of one input.
const BETWEEN: &[u8] = b"\n---\n";

/// A folder in memory with these two files, of an input that has both.
fn folder_of_two(names: [&str; 2], bytes: &[u8]) -> Folder {
    let cut = bytes.windows(BETWEEN.len()).position(|window| window == BETWEEN);
    let (first, second) = cut.map_or((bytes, &[][..]), |at| (&bytes[..at], &bytes[at + BETWEEN.len()..]));
    folder(&[(names[0], first), (names[1], second)])
}

/// Whether `run` takes a file that ends with a SHA-256 as it is, or with the one that it should have, so that damage behind the checksum is seen too.
fn as_it_is_or_mended(bytes: &[u8], run: impl Fn(Vec<u8>) -> bool) -> bool {
    let before = &bytes[..bytes.len().saturating_sub(32)];
    let right = [before, &Sha256::digest(before)[..]].concat();
    // Both are looked at, whatever comes of the first.
    let (given, mended) = (run(bytes.to_vec()), run(right));
    given | mended
}
