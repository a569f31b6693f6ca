//! Model files that can't be used: missing, cut, patched or of an unknown kind. One line names the file and the fault.

use std::path::Path;

use serde_json::{Value, json};

use crate::models::{Golden, demo, demo_data};
use crate::place::{Place, Run};

/// Every command that needs a model.
fn users<'a>(place: &'a Place, model: &Path) -> [Run<'a>; 3] {
    [
        place.pocketune("train --iters 2").model(model).data(demo_data()).into("out"),
        place.pocketune("eval").model(model).data(demo_data()),
        place.pocketune("generate --prompt Hi").model(model),
    ]
}

fn refused(place: &Place, model: &Path, words: &[&str]) {
    for run in users(place, model) {
        run.refuses(words);
    }
}

/// `bytes` with the only occurrence of `old` replaced by something as long.
fn patched(mut bytes: Vec<u8>, old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(old.len(), new.len());
    let found: Vec<usize> = (0..bytes.len() - old.len()).filter(|&at| bytes[at..].starts_with(old)).collect();
    assert_eq!(found.len(), 1, "{:?}", old.escape_ascii().to_string());
    bytes[found[0]..][..new.len()].copy_from_slice(new);
    bytes
}

fn demo_bytes() -> Vec<u8> {
    std::fs::read(demo()).unwrap()
}

#[test]
fn a_model_that_is_not_there_is_refused() {
    let place = Place::new();
    refused(&place, &place.path("missing.gguf"), &["missing.gguf", "no such file or folder"]);
    place.pocketune("inspect missing.gguf").refuses(&["missing.gguf", "no such file or folder"]);
}

#[test]
fn a_file_that_is_no_model_is_refused_for_what_it_is() {
    let place = Place::new();
    let mut other = demo_bytes();
    other[..4].copy_from_slice(b"GGOF");
    refused(&place, &place.file("other.gguf", other), &["other.gguf", "GGUF"]);
    refused(&place, &place.file("empty.gguf", ""), &["empty.gguf", "empty"]);
    refused(&place, &place.file("page.gguf", "<!DOCTYPE html>"), &["page.gguf", "web page"]);
    refused(&place, &place.path("tmp"), &["tmp", "config.json"]);
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_waiting_for_it() {
    let place = Place::new();
    refused(&place, &place.fifo("pipe.gguf"), &["pipe.gguf", "not a regular file"]);
}

#[test]
fn a_gguf_cut_in_its_data_is_refused_by_the_tensor_that_is_not_whole() {
    let place = Place::new();
    let bytes = demo_bytes();
    let cut = place.file("cut.gguf", &bytes[..bytes.len() - 1]);
    refused(&place, &cut, &["cut.gguf", "tensor", "ends at byte", &(bytes.len() - 1).to_string()]);
    refused(&place, &place.file("half.gguf", &bytes[..bytes.len() / 2]), &["half.gguf", "tensor"]);
}

#[test]
fn a_gguf_cut_anywhere_is_refused() {
    let place = Place::new();
    let golden = Golden::new("llama");
    let bytes = std::fs::read(golden.gguf(&place)).unwrap();
    let cuts =
        (1..64).chain((64..8192).step_by(173)).chain((8192..bytes.len()).step_by(39_989)).chain([bytes.len() - 1]);
    for cut in cuts {
        let model = place.file("cut.gguf", &bytes[..cut]);
        place.pocketune("generate --prompt Hi").model(model).refuses(&["cut.gguf"]);
    }
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    let place = Place::new();
    let known = ["llama", "qwen2", "qwen3", "gemma3"];
    let name = b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0llama";
    let other = b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0mamba";
    let gguf = place.file("mamba.gguf", patched(demo_bytes(), name, other));
    refused(&place, &gguf, &[&["mamba.gguf", "'mamba'"][..], &known].concat());
    let folder = with_config(&place, |config| config["model_type"] = json!("mamba"));
    refused(&place, &folder, &[&["'mamba'", "mistral"][..], &known].concat());
}

/// A copy of the llama folder with another configuration.
fn with_config(place: &Place, change: impl FnOnce(&mut Value)) -> std::path::PathBuf {
    let folder = Golden::new("llama").folder(place);
    let mut config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    place.file("llama/config.json", config.to_string());
    folder
}

#[test]
fn a_configuration_that_does_not_fit_the_tensors_is_refused() {
    let place = Place::new();
    let folder = with_config(&place, |config| config["intermediate_size"] = json!(80));
    refused_with_capitals(&place, &folder, &["layers.0.mlp.", "[96, 64]", "[80, 64]"]);
    let folder = with_config(&place, |config| config["num_hidden_layers"] = json!(3));
    refused_with_capitals(&place, &folder, &["layers.2.", "missing"]);
    let folder = with_config(&place, |config| config["num_key_value_heads"] = json!(3));
    refused_with_capitals(&place, &folder, &["heads"]);
    let folder = with_config(&place, |config| config["hidden_size"] = json!("many"));
    refused_with_capitals(&place, &folder, &["hidden_size", "many"]);
    let folder = with_config(&place, |config| config["num_hidden_layers"] = json!(0));
    refused_with_capitals(&place, &folder, &["layer"]);
    let folder = with_config(&place, |config| config["num_hidden_layers"] = json!(1_000_000_000));
    refused_with_capitals(&place, &folder, &["layer"]);
}

/// Faults that show when the data has been read are told after what was found in it.
fn refused_with_capitals(place: &Place, model: &Path, words: &[&str]) {
    let data = place.texts("capitals.jsonl", &["CAPITALS ONLY"]);
    place.pocketune("train --iters 2").model(model).data(&data).into("out").stops(words);
    place.pocketune("eval").model(model).data(&data).refuses(words);
    place.pocketune("generate --prompt Hi").model(model).refuses(words);
}

#[test]
fn a_gguf_without_one_of_its_tensors_is_refused() {
    let place = Place::new();
    let gguf = place.file("lacks.gguf", patched(demo_bytes(), b"blk.2.ffn_up.weight", b"blk.2.ffn_uq.weight"));
    refused_with_capitals(&place, &gguf, &["lacks.gguf", "blk.2.ffn_up.weight", "missing"]);
}

#[test]
fn a_model_without_a_tokenizer_is_refused() {
    let place = Place::new();
    let golden = Golden::new("llama");
    let gguf = place.file("mute.gguf", golden.gguf_without_tokenizer());
    refused(&place, &gguf, &["tokenizer.ggml.model"]);
    refused(&place, &golden.folder_without_tokenizer(&place), &["tokenizer.json", "not found"]);
}

#[test]
fn a_folder_with_a_broken_file_is_refused_by_that_files_name() {
    for (file, content, word) in [
        ("config.json", "{\"model_type\": ", "config.json"),
        ("config.json", "[]", "config.json"),
        ("tokenizer.json", "{\"model\": {\"type\": \"BPE\"", "tokenizer.json"),
        ("tokenizer.json", "{}", "tokenizer"),
        ("tokenizer_config.json", "{\"eos_token\": \"<nothing>\"}", "<nothing>"),
        ("tokenizer_config.json", "{\"chat_template\": \"{% if %}\"}", "chat template"),
        ("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../../etc/passwd\"}}", "passwd"),
        ("model-00002-of-00002.safetensors", "", "model-00002-of-00002.safetensors"),
    ] {
        let place = Place::new();
        let folder = Golden::new("llama").folder(&place);
        place.file(&format!("llama/{file}"), content);
        let data = place.texts("data.jsonl", &["Some text."]);
        place.pocketune("train --iters 2").model(&folder).data(data).into("out").refuses(&[word]);
    }
}

#[test]
fn a_folder_without_one_of_its_shards_is_refused() {
    let place = Place::new();
    let folder = Golden::new("llama").folder(&place);
    let shard = folder.join("model-00002-of-00002.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 4]).unwrap();
    refused(&place, &folder, &["model-00002-of-00002.safetensors"]);
    std::fs::remove_file(&shard).unwrap();
    refused(&place, &folder, &["model-00002-of-00002.safetensors"]);
}
