//! Adapters that can't be used: absent, broken, not plain LoRA, or made for another model. Every command that takes one says so.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::adapters::FILES;
use crate::models::Golden;
use crate::place::Place;

/// A llama with data and a good adapter, which tests then spoil.
fn set_up() -> (Place, PathBuf, PathBuf) {
    let place = Place::new();
    let golden = Golden::new("llama");
    let model = golden.folder(&place);
    place.texts("data.jsonl", &["CAPITALS ONLY"]);
    for file in FILES {
        place.file(&format!("adapter/{file}"), std::fs::read(golden.adapter().join(file)).unwrap());
    }
    let adapter = place.path("adapter");
    (place, model, adapter)
}

fn refused(place: &Place, model: &Path, adapter: &Path, words: &[&str]) {
    let data = place.path("data.jsonl");
    let train = place.pocketune("train --iters 2").model(model).data(&data).into("out");
    train.with("--init-adapter", adapter).stops(words);
    place.pocketune("eval").model(model).data(&data).with("--adapter", adapter).refuses(words);
    place.pocketune("generate --prompt A").model(model).with("--adapter", adapter).refuses(words);
}

#[test]
fn an_adapter_that_is_not_there_is_refused() {
    let (place, model, adapter) = set_up();
    refused(&place, &model, &place.path("nowhere"), &["nowhere", "no such file or folder"]);
    refused(&place, &model, &place.path("data.jsonl"), &["data.jsonl", "not a GGUF file"]);
    refused(&place, &model, &place.path("tmp"), &["tmp", "adapter_config.json"]);
    std::fs::remove_file(adapter.join("adapter_model.safetensors")).unwrap();
    refused(&place, &model, &adapter, &["adapter", "adapter_model.safetensors"]);
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let (place, model, _) = set_up();
    // More layers, another width, modules with other shapes.
    refused(&place, &model, &Golden::new("gemma3_text").adapter(), &["the adapter changes layer 2", "0 to 1"]);
    refused(&place, &model, &Golden::new("qwen3").adapter(), &["qwen3/adapter", "shape"]);
    refused(&place, &model, &Golden::new("mistral").adapter(), &["mistral/adapter", "shape"]);
}

#[test]
fn a_configuration_that_is_no_plain_lora_is_refused_by_the_field() {
    let (place, model, adapter) = set_up();
    let good: Value = serde_json::from_slice(&std::fs::read(adapter.join(FILES[0])).unwrap()).unwrap();
    for (field, value) in [
        ("peft_type", json!("IA3")),
        ("r", json!(0)),
        ("r", json!(3)),
        ("r", json!("four")),
        ("lora_alpha", json!(-1)),
        ("use_rslora", json!("yes")),
        ("bias", json!("all")),
        ("rank_pattern", json!({ "q.*": 2 })),
        ("alpha_pattern", json!({ "q_proj": -1 })),
        ("modules_to_save", json!(["lm_head"])),
        ("target_modules", json!(7)),
    ] {
        let mut config = good.clone();
        config[field] = value.clone();
        place.file("adapter/adapter_config.json", config.to_string());
        let word = if value == json!(3) { "r = 3" } else { field };
        refused(&place, &model, &adapter, &["adapter", word]);
    }
    place.file("adapter/adapter_config.json", "{\"peft_type\": ");
    refused(&place, &model, &adapter, &["adapter_config.json", "malformed JSON"]);
}

#[test]
fn a_file_of_tensors_that_is_not_whole_is_refused() {
    let (place, model, adapter) = set_up();
    let bytes = std::fs::read(adapter.join(FILES[1])).unwrap();
    for cut in [0, 7, 100, bytes.len() / 2, bytes.len() - 1] {
        place.file("adapter/adapter_model.safetensors", &bytes[..cut]);
        refused(&place, &model, &adapter, &["adapter_model.safetensors"]);
    }
}

#[test]
fn an_adapter_that_is_not_finite_is_refused_by_the_tensor() {
    let (place, model, adapter) = set_up();
    let mut bytes = std::fs::read(adapter.join(FILES[1])).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    place.file("adapter/adapter_model.safetensors", bytes);
    refused(&place, &model, &adapter, &["layers.1.", "lora_", "holds NaN"]);
}

#[test]
fn the_folder_of_a_model_is_no_adapter() {
    let (place, model, _) = set_up();
    refused(&place, &model, &model, &["llama", "adapter_config.json"]);
}
