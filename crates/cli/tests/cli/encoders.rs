//! RoBERTa, which has no next token: what it can't do yet is refused in one line, and planning works.

use serde_json::Value;

use crate::models::Golden;
use crate::place::Place;

#[test]
fn training_measuring_and_generating_say_what_is_missing() {
    let place = Place::new();
    let golden = Golden::new("roberta");
    let model = golden.folder(&place);
    let data = place.texts("data.jsonl", &["SOME WORDS"]);
    let words = ["roberta is an encoder", "masked-LM prompts", "classification"];
    place.pocketune("train --iters 1").model(&model).data(&data).into("out").refuses(&words);
    place.pocketune("eval").model(&model).data(&data).refuses(&words);
    place.pocketune("generate --prompt A").model(&model).refuses(&words);
    place.pocketune("plan").model(&model).succeeds();
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
