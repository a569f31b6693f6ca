//! Models to run on: the one that travels in the program, and the tiny ones that PyTorch's numbers are known for. Those have no
//! tokenizer, so they get one here in which the token of a byte is the byte's own number: any token sequence is a text.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::{Map, Value, json};

use crate::adapters::{self, Tensors};
use crate::place::Place;

/// Cases that are Hugging Face folders of decoders.
pub const FOLDERS: [&str; 7] = ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3_text", "opt"];
/// Cases that are GGUF files too.
pub const GGUFS: [&str; 5] = ["llama", "llama3", "qwen2", "qwen3", "gemma3_text"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The built-in model, as a file.
pub fn demo() -> PathBuf {
    repository().join("demo/model.gguf")
}

/// The built-in data, as a folder.
pub fn demo_data() -> PathBuf {
    repository().join("demo/data")
}

/// A chat template of the text crate's tests, with what transformers made of its messages.
pub fn chat_template(name: &str) -> Value {
    let path = repository().join("crates/text/tests/templates").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// A tiny model in the folder `llama` of a place, with SmolLM2's chat template.
pub fn chatty(place: &Place) -> PathBuf {
    let folder = Golden::new("llama").folder(place);
    let config = serde_json::json!({ "chat_template": chat_template("smollm2.json")["template"] });
    place.file("llama/tokenizer_config.json", config.to_string());
    folder
}

/// A tiny model with the numbers that PyTorch, transformers and PEFT found for it.
pub struct Golden {
    folder: PathBuf,
    pub name: &'static str,
    vocab: usize,
}

impl Golden {
    pub fn new(name: &'static str) -> Self {
        let folder = repository().join("crates/engine/tests/golden").join(name);
        let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        Self { folder, name, vocab: config["vocab_size"].as_u64().unwrap() as usize }
    }

    /// A copy of its folder, with a tokenizer.
    pub fn folder(&self, place: &Place) -> PathBuf {
        let path = self.folder_without_tokenizer(place);
        std::fs::write(path.join("tokenizer.json"), byte_tokenizer(self.vocab).to_string()).unwrap();
        path
    }

    /// A copy of its folder, as it is.
    pub fn folder_without_tokenizer(&self, place: &Place) -> PathBuf {
        for file in std::fs::read_dir(&self.folder).unwrap().map(|file| file.unwrap()) {
            let name = file.file_name().into_string().unwrap();
            if name == "config.json" || name.starts_with("model") {
                place.file(&format!("{}/{name}", self.name), std::fs::read(file.path()).unwrap());
            }
        }
        place.path(self.name)
    }

    /// A copy of its GGUF file, with a tokenizer.
    pub fn gguf(&self, place: &Place) -> PathBuf {
        place.file(&format!("{}.gguf", self.name), with_byte_tokenizer(&self.gguf_without_tokenizer(), self.vocab))
    }

    /// The bytes of its GGUF file.
    pub fn gguf_without_tokenizer(&self) -> Vec<u8> {
        std::fs::read(self.folder.with_extension("gguf")).unwrap()
    }

    /// Its PEFT adapter, which changes every linear.
    pub fn adapter(&self) -> PathBuf {
        self.folder.join("adapter")
    }

    /// The two records, as texts whose bytes are the tokens.
    pub fn records(&self) -> [String; 2] {
        ["ids.0", "ids.1"].map(|name| self.text(name))
    }

    /// Expected tokens, as a text.
    pub fn text(&self, name: &str) -> String {
        let file = std::fs::read(self.folder.join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let words = tensors.tensor(name).unwrap().data().chunks_exact(8).map(|word| word[0]).collect();
        String::from_utf8(words).unwrap()
    }

    /// Every expected tensor of numbers.
    pub fn expected(&self) -> Tensors {
        adapters::read(&self.folder.join("expected.safetensors"))
    }
}

/// Changes the tensors of a file, each a shape and numbers.
pub fn rewrite(path: &Path, change: impl FnOnce(&mut BTreeMap<String, (Vec<usize>, Vec<f32>)>)) {
    let (bytes, values) = (std::fs::read(path).unwrap(), adapters::read(path));
    let shapes = SafeTensors::deserialize(&bytes).unwrap();
    let with_shape = |(name, values): (String, Vec<f32>)| {
        let shape = shapes.tensor(&name).unwrap().shape().to_vec();
        (name, (shape, values))
    };
    let mut tensors = values.into_iter().map(with_shape).collect();
    change(&mut tensors);
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<Vec<u8>> = tensors.values().map(|(_, values)| bytes(values)).collect();
    let views = tensors
        .iter()
        .zip(&stored)
        .map(|((name, (shape, _)), bytes)| (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// How byte-level tokenizers write a byte below 128: itself where it can be seen, else a letter from 256 on.
fn letter(byte: usize) -> char {
    char::from_u32(match byte as u32 {
        seen @ 33..=126 => seen,
        127 => 289,
        hidden => 256 + hidden,
    })
    .unwrap()
}

/// A `tokenizer.json` of `vocab` tokens, each a byte.
fn byte_tokenizer(vocab: usize) -> Value {
    let tokens: Map<String, Value> = (0..vocab).map(|byte| (letter(byte).to_string(), json!(byte))).collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "byte_fallback": false,
            "ignore_merges": false, "vocab": tokens, "merges": [] },
    })
}

/// A GGUF file with the same tokenizer as new metadata in front of its own. The new bytes are a multiple of the alignment, so that
/// the tensors stay aligned.
fn with_byte_tokenizer(gguf: &[u8], vocab: usize) -> Vec<u8> {
    const STRING: u32 = 8;
    const ARRAY: u32 = 9;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let entry = |key: &str, ty: u32, value: &[u8]| [&string(key), &ty.to_le_bytes()[..], value].concat();
    let strings = |texts: &[String]| {
        let all: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
        [&STRING.to_le_bytes(), &(texts.len() as u64).to_le_bytes()[..], &all].concat()
    };
    let tokens: Vec<String> = (0..vocab).map(|byte| letter(byte).to_string()).collect();
    let mut new = [
        entry("tokenizer.ggml.model", STRING, &string("gpt2")),
        entry("tokenizer.ggml.pre", STRING, &string("gpt-2")),
        entry("tokenizer.ggml.tokens", ARRAY, &strings(&tokens)),
        entry("tokenizer.ggml.merges", ARRAY, &strings(&[])),
    ]
    .concat();
    let padding = (new.len() + entry("test.padding", STRING, &string("")).len()).next_multiple_of(32) - new.len();
    let padding = padding - entry("test.padding", STRING, &string("")).len();
    new.extend(entry("test.padding", STRING, &string(&"-".repeat(padding))));
    let entries = u64::from_le_bytes(gguf[16..24].try_into().unwrap()) + 5;
    [&gguf[..16], &entries.to_le_bytes(), &new, &gguf[24..]].concat()
}
