//! RoBERTa, which has no next token: it learns from masked prompts, with PyTorch's numbers; what it can't learn from is refused in one line.

use std::path::PathBuf;

use serde_json::Value;

use crate::adapters::{self, agrees};
use crate::models::Golden;
use crate::place::Place;

/// Reviews, a tokenizer and PyTorch's numbers for masked prompts.
pub fn cloze(name: &str) -> PathBuf {
    Golden::new("roberta").adapter().join("../../cloze").join(name)
}

/// The tiny encoder, with a tokenizer that has a mask and a token for each answer.
pub fn encoder(place: &Place) -> PathBuf {
    let model = Golden::new("roberta").folder_without_tokenizer(place);
    place.file("roberta/tokenizer.json", std::fs::read(cloze("tokenizer.json")).unwrap());
    model
}

#[test]
fn ten_updates_on_masked_prompts_are_pytorchs() {
    let expected = adapters::read(&cloze("expected.safetensors"));
    for (method, rate) in [("backprop", "--learning-rate 1e-2 --weight-decay 0.01"), ("mezo", "--learning-rate 2e-3")] {
        let place = Place::new();
        let run =
            place.pocketune("train --task sst2 --iters 10 --batch-size 4 --no-shuffle --steps-per-report 1 --seed 3");
        let run = run.words("--precision f32 --log-format jsonl").with("--method", method).words(rate);
        let run = run.with("--init-adapter", Golden::new("roberta").adapter()).model(encoder(&place));
        let said = run.data(cloze("reviews.tsv")).into("out").succeeds();
        agrees(method, &expected, &said.stdout, &place.path("out"));
    }
}

#[test]
fn what_was_learnt_from_masked_prompts_is_measured_by_them() {
    let place = Place::new();
    let model = encoder(&place);
    let run = place.pocketune("train --task sst2 --iters 20 --learning-rate 1e-2 --lora-targets query,value");
    run.model(&model).data(cloze("reviews.tsv")).into("out").succeeds();
    let run = place.pocketune("eval --task sst2 --log-format jsonl").model(&model).data(cloze("reviews.tsv"));
    let said = run.with("--adapter", place.path("out")).succeeds();
    let score: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!((score["right"].as_u64(), score["asked"].as_u64()), (Some(4), Some(4)), "{score}");
}

#[test]
fn what_has_nothing_to_mask_is_refused_with_what_has() {
    let place = Place::new();
    let model = encoder(&place);
    let data = place.texts("data.jsonl", &["some words"]);
    let words = ["roberta is an encoder", "--task sst2"];
    place.pocketune("train --iters 1").model(&model).data(&data).into("out").refuses(&words);
    place.pocketune("eval").model(&model).data(&data).refuses(&words);
    place.pocketune("generate --prompt A").model(&model).refuses(&words);
    place.pocketune("plan").model(&model).succeeds();
    let copa = place.file(
        "copa.jsonl",
        "{\"premise\": \"a\", \"question\": \"cause\", \"choice1\": \"b\", \"choice2\": \"c\", \"label\": 0}\n",
    );
    place.pocketune("train --task copa").model(&model).data(&copa).into("out").refuses(&["copa are sentences"]);
    let reviews = cloze("reviews.tsv");
    place.pocketune("train --task boolq").model(&model).data(&reviews).into("out").refuses(&["` no` is 3 tokens"]);
    let far = std::fs::read_to_string(cloze("tokenizer.json")).unwrap().replace("\"id\": 3,", "\"id\": 99,");
    place.file("roberta/tokenizer.json", far.replace("\"<mask>\": 3,", "\"<mask>\": 99,"));
    place.pocketune("eval --task sst2").model(&model).data(&reviews).refuses(&["token 99", "96 tokens"]);
    let other = Place::new();
    let bytes = Golden::new("roberta").folder(&other);
    other.pocketune("eval --task sst2").model(bytes).data(&reviews).refuses(&["no `<mask>`"]);
}

#[test]
fn a_plan_of_a_real_shape_takes_no_more_tokens_than_there_are_positions() {
    for (shape, positions) in [("roberta-large", 512), ("opt-1.3b", 2048)] {
        let place = Place::new();
        let said = place.pocketune("plan --json --batch-size 1 --memory-budget 100%").with("--shape", shape).succeeds();
        let plan: Value = serde_json::from_str(&said.stdout).unwrap();
        assert!(plan["longest_sequence"].as_u64().unwrap() <= positions, "{shape}: {}", plan["longest_sequence"]);
        assert!(plan["smallest_peak_bytes"].as_u64().unwrap() > 10 << 20, "{shape}");
    }
}

#[test]
fn a_configuration_that_is_no_encoder_is_refused() {
    let place = Place::new();
    let model = Golden::new("roberta").folder(&place);
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value, words) in [
        ("is_decoder", Value::from(true), "is_decoder"),
        ("position_embedding_type", Value::from("relative_key"), "relative_key"),
        ("pad_token_id", Value::from(66), "66 position embeddings"),
        ("hidden_act", Value::Null, "hidden_act"),
        ("type_vocab_size", Value::from(0), "type_vocab_size 0"),
    ] {
        let mut changed = config.clone();
        changed[key] = value;
        std::fs::write(&path, changed.to_string()).unwrap();
        place.pocketune("plan").model(&model).refuses(&[words]);
    }
}

#[test]
fn a_preview_shows_the_mask_that_the_model_sees_beside_the_answer() {
    let place = Place::new();
    let run = place.pocketune("data preview --task sst2 --records 2").model(encoder(&place));
    let said = run.data(cloze("reviews.tsv")).succeeds().stdout;
    assert_eq!(said.matches("⟦<mask>→").count(), 2, "{said}");
}
