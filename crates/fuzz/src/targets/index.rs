//! `model.safetensors.index.json`, in a folder with two shards.

use pocketune_formats::ModelFiles;

use super::{JSON, Target, accepted, folder};
use crate::seeds::{Seed, f32_tensors};

pub const TARGET: Target = Target { name: "index", run, seeds, words: JSON };

fn run(bytes: &[u8]) -> bool {
    let shard = |name| f32_tensors(&[(name, &[1])]);
    let files = folder(&[
        ("config.json", b"{}"),
        ("a.safetensors", &shard("x")),
        ("b.safetensors", &shard("y")),
        ("model.safetensors.index.json", bytes),
    ]);
    let Some(model) = accepted(ModelFiles::from_folder(files)) else { return false };
    model.tensors().all(|info| accepted(model.tensor(&info.name)).is_some())
}

fn seeds() -> Vec<Seed> {
    vec![
        Seed::common(r#"{"metadata":{"total_size":8},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}"#),
        Seed::common(r#"{"weight_map":{"x":"../a.safetensors"}}"#),
        Seed::common(r#"{"weight_map":{}}"#),
    ]
}
