//! One function a parser. Each takes the bytes of a file and does with it all that the product would: opens it, reads every field,
//! and uses what it made. It answers whether the file was accepted; it panics where an error is not one line.

mod chat_template;
mod checkpoint;
mod config;
mod gguf;
mod index;
mod mlx;
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
pub const ALL: [Target; 13] = [
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
