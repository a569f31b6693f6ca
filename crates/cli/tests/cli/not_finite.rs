//! A weight that is no number: whichever tensor it is in, the run stops and names that tensor, and no adapter is written.

use std::path::{Path, PathBuf};

use pocketune_formats::{ModelFiles, TensorInfo};

use crate::models::{Golden, demo, demo_data};
use crate::place::Place;

/// Puts `value` over an f32 element of a tensor; of an embedding, in the row of a token that the data has.
fn poison(model: &Path, info: &TensorInfo, value: f32) {
    let files = ModelFiles::open(model).unwrap();
    let path = files.files()[info.file].path().to_path_buf();
    let mut bytes = files.files()[info.file].bytes().to_vec();
    drop(files);
    let element = if info.name.contains("embd") || info.name.contains("embed") { 65 * info.shape[1] } else { 1 };
    bytes[info.offset + 4 * element..][..4].copy_from_slice(&value.to_le_bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Puts `value` into each tensor in turn, and runs `check` with the tensor's name.
fn for_every_tensor(make: impl Fn(&Place) -> PathBuf, value: f32, check: impl Fn(&Place, &Path, &str)) {
    let place = Place::new();
    let infos: Vec<TensorInfo> = ModelFiles::open(&make(&place)).unwrap().tensors().cloned().collect();
    place.texts("data.jsonl", &["ABRACADABRA"]);
    for info in infos.iter().filter(|info| !info.name.starts_with("rope")) {
        let model = make(&place);
        poison(&model, info, value);
        check(&place, &model, &info.name);
    }
}

fn train_stops(place: &Place, model: &Path, words: &str, tensor: &str) {
    let train = place.pocketune("train --iters 2").words(words).model(model).data(place.path("data.jsonl"));
    train.into("out").stops(&[&format!("tensor {tensor} holds NaN")]);
}

#[test]
fn nan_in_any_tensor_of_a_gguf_stops_training() {
    for name in ["llama", "qwen3", "gemma3_text"] {
        let golden = Golden::new(name);
        let words = "--precision f32 --num-layers 1";
        for_every_tensor(
            |place| golden.gguf(place),
            f32::NAN,
            |place, model, tensor| train_stops(place, model, words, tensor),
        );
    }
}

#[test]
fn nan_in_any_tensor_of_a_folder_stops_training() {
    let golden = Golden::new("qwen2");
    for words in ["--precision bf16", "--precision f32"] {
        for_every_tensor(
            |place| golden.folder(place),
            f32::NAN,
            |place, model, tensor| train_stops(place, model, words, tensor),
        );
    }
}

#[test]
fn nan_in_any_tensor_stops_the_scalar_kernels_too() {
    let golden = Golden::new("llama");
    for_every_tensor(
        |place| golden.gguf(place),
        f32::NAN,
        |place, model, tensor| {
            let train = place.pocketune("train --iters 2").env("POCKETUNE_ISA", "scalar").model(model);
            train.data(place.path("data.jsonl")).into("out").stops(&[&format!("tensor {tensor} holds NaN")]);
        },
    );
}

#[test]
fn nan_in_any_tensor_stops_eval_and_generate() {
    let golden = Golden::new("llama");
    for_every_tensor(
        |place| golden.folder(place),
        f32::NAN,
        |place, model, tensor| {
            let words = [&format!("tensor {tensor} holds NaN")[..]];
            place.pocketune("eval").model(model).data(place.path("data.jsonl")).refuses(&words);
            place.pocketune("generate --prompt ABBA").model(model).refuses(&words);
        },
    );
}

#[test]
fn infinity_in_a_norm_is_named_before_the_first_step() {
    let golden = Golden::new("llama");
    let place = Place::new();
    let model = golden.gguf(&place);
    let info = ModelFiles::open(&model).unwrap().tensors().find(|info| &*info.name == "blk.1.ffn_norm.weight").cloned();
    poison(&model, &info.unwrap(), f32::INFINITY);
    let data = place.texts("data.jsonl", &["ABRACADABRA"]);
    let said =
        place.pocketune("train").model(&model).data(data).into("out").stops(&["blk.1.ffn_norm.weight holds inf"]);
    assert!(!said.contains("Iter"), "{said}");
}

#[test]
fn a_learning_rate_that_tears_the_adapter_apart_ends_without_one() {
    let place = Place::new();
    let train = place.pocketune("train --iters 9 --learning-rate 1e38").model(demo()).data(demo_data()).into("out");
    let said = train.stops(&["the loss of update ", "--learning-rate"]);
    assert_eq!(said.matches("Back to the state after update 0").count(), 4, "{said}");
}
