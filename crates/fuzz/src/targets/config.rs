//! `config.json` of every family, beside weights that have the names each looks for, up to the graph of a small model.

use pocketune::families::Config;
use pocketune_formats::ModelFiles;

use super::{Target, accepted, folder};
use crate::seeds::{Seed, f32_tensors};

pub const TARGET: Target = Target {
    name: "config",
    run,
    seeds,
    words: &[
        b"null",
        b"-1",
        b"1e999",
        b"[]",
        b"{}",
        b"\"llama\"",
        b"\"mistral\"",
        b"\"qwen3\"",
        b"\"roberta\"",
        b"\"opt\"",
        b"\"text_config\":",
        b"\"rope_scaling\":",
        b"\"rope_parameters\":",
        b"\"sliding_window\":",
        b"\"head_dim\":",
        b"\"layer_types\":",
        b"\"linear\"",
        b"\"llama3\"",
        b"\"sliding_window_pattern\":",
        b"\"rope_theta\":",
    ],
};

/// A graph of more blocks takes longer than it teaches.
const BLOCKS: usize = 4;

fn run(bytes: &[u8]) -> bool {
    let weights = f32_tensors(&[
        ("model.embed_tokens.weight", &[96, 1]),
        ("model.decoder.embed_tokens.weight", &[96, 1]),
        ("roberta.embeddings.word_embeddings.weight", &[96, 1]),
        ("model.layers.0.self_attn.q_proj.bias", &[1]),
    ]);
    let files = folder(&[("config.json", bytes), ("model.safetensors", &weights)]);
    let Some(model) = accepted(ModelFiles::from_folder(files)) else { return false };
    let Some(config) = accepted(Config::read(&model)) else { return false };
    config.layers > BLOCKS || accepted(config.graph(None)).is_some()
}

fn seeds() -> Vec<Seed> {
    macro_rules! golden {
        ($($name:literal),*) => {
            vec![$(Seed::common(include_bytes!(concat!("../../../engine/tests/golden/", $name, "/config.json")))),*]
        };
    }
    golden!("llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3_text", "opt", "roberta")
}
