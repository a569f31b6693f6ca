//! An adapter of mlx-lm: `adapter_config.json`, a line of three dashes, `adapters.safetensors`.

use std::path::Path;

use pocketune_formats::lora::LoraFile;
use pocketune_formats::mlx::Adapter;

use super::{BETWEEN, Target, accepted, folder_of_two};
use crate::seeds::{Seed, f32_tensors};

pub const TARGET: Target = Target {
    name: "mlx",
    run,
    seeds,
    words: &[
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"-1",
        b"0",
        b"1e999",
        b"\"lora_parameters\":",
        b"\"scale\":",
        b"\"rank\":",
        b"\"fine_tune_type\":\"dora\"",
        b"\"fine_tune_type\":\"full\"",
        b"\"num_layers\":",
        b".lora_a",
        b".lora_b",
        b"model.layers.0.",
        b"\"dtype\":\"BF16\"",
        b"\"dtype\":\"I8\"",
        b"\"shape\":[0,0]",
    ],
};

fn run(bytes: &[u8]) -> bool {
    let files = folder_of_two(["adapter_config.json", "adapters.safetensors"], bytes);
    let adapter = accepted(Adapter::read(&files));
    let Some(lora) = adapter.and_then(|adapter| accepted(LoraFile::from_mlx(Path::new("m"), adapter))) else {
        return false;
    };
    lora.pairs.iter().all(|pair| {
        (lora.a(pair).len(), lora.b(pair).len()) == (pair.rank * pair.cols, pair.rows * pair.rank)
            && pair.scale.is_finite()
    })
}

fn seeds() -> Vec<Seed> {
    let seed = |config: &str, tensors: &[(&str, &[usize])]| {
        Seed::common([config.as_bytes(), BETWEEN, &f32_tensors(tensors)].concat())
    };
    vec![
        seed(
            r#"{"fine_tune_type":"lora","num_layers":-1,"lora_parameters":{"rank":2,"scale":20.0,"dropout":0.0,"keys":["self_attn.q_proj"]},"model":"m"}"#,
            &[("model.layers.0.self_attn.q_proj.lora_a", &[3, 2]), ("model.layers.0.self_attn.q_proj.lora_b", &[2, 3])],
        ),
        seed(r#"{"lora_parameters":{"scale":0.5},"batch_size":1}"#, &[("x.lora_a", &[1, 1]), ("x.lora_b", &[1, 4])]),
    ]
}
