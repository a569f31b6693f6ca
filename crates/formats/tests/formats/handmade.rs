//! Encoders for test files, separate from the readers that they test, and free to lie.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

pub const U32: u32 = 4;
pub const F32: u32 = 6;
pub const BOOL: u32 = 7;
pub const STRING: u32 = 8;
pub const ARRAY: u32 = 9;

/// A folder that lives as long as the test, and files in it.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

pub fn string(text: impl AsRef<[u8]>) -> Vec<u8> {
    let text = text.as_ref();
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A metadata entry.
pub fn entry(key: impl AsRef<[u8]>, ty: u32, value: impl AsRef<[u8]>) -> Vec<u8> {
    [&string(key), &ty.to_le_bytes()[..], value.as_ref()].concat()
}

/// The value of an array entry.
pub fn array(ty: u32, len: u64, elements: impl AsRef<[u8]>) -> Vec<u8> {
    [&ty.to_le_bytes(), &len.to_le_bytes()[..], elements.as_ref()].concat()
}

/// An entry of the tensor list; `dims` are in GGUF's order, columns first.
pub fn tensor(name: impl AsRef<[u8]>, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((dims.len() as u32).to_le_bytes());
    bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    bytes.extend(ty.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes
}

pub fn header(version: u32, tensors: u64, entries: u64) -> Vec<u8> {
    [&b"GGUF"[..], &version.to_le_bytes(), &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
}

/// A GGUF file, padded to 32 before `data` bytes that count upwards.
pub fn gguf(entries: &[Vec<u8>], tensors: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut bytes = header(3, tensors.len() as u64, entries.len() as u64);
    bytes.extend(entries.concat());
    bytes.extend(tensors.concat());
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

/// A file with a bit of everything.
pub fn good_gguf() -> Vec<u8> {
    let tokens = ["<s>", "Ġthe", ""].map(string).concat();
    let scores = [0.0f32, -1.5, 2.0].map(f32::to_le_bytes).concat();
    let types = [3i32, 1, -1].map(i32::to_le_bytes).concat();
    gguf(
        &[
            entry("general.architecture", STRING, string("llama")),
            entry("llama.block_count", U32, 30u32.to_le_bytes()),
            entry("llama.rope.freq_base", F32, 1e5f32.to_le_bytes()),
            entry("tokenizer.ggml.add_bos_token", BOOL, [1]),
            entry("tokenizer.ggml.tokens", ARRAY, array(STRING, 3, tokens)),
            entry("tokenizer.ggml.scores", ARRAY, array(F32, 3, scores)),
            entry("tokenizer.ggml.token_type", ARRAY, array(5, 3, types)),
            entry("negative", 5, (-7i32).to_le_bytes()),
            entry("latin", STRING, string(b"caf\xe9")),
        ],
        &[
            tensor("token_embd.weight", &[32, 3], 3, 0),
            tensor("output_norm.weight", &[5], 0, 64),
            tensor("odd.weight", &[32], 20, 96),
        ],
        96 + 18,
    )
}

/// A safetensors file with that header.
pub fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = string(header);
    bytes.extend((0..data).map(|i| i as u8));
    bytes
}

pub const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 2}"#;

/// A header with an f32 tensor `a` `[2, 2]`, a bf16 tensor `b` `[3]` and an i64 tensor `c` `[1]`.
pub const HEADER: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},
    "a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},
    "c":{"dtype":"I64","shape":[1],"data_offsets":[22,30]}}"#;
pub const HEADER_DATA: usize = 30;
