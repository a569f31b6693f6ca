//! OPT, whose positions are a table that ends: longer records are cut to it, longer texts refused, and its linears have their own names.

use serde_json::Value;

use crate::adapters;
use crate::models::Golden;
use crate::place::Place;

/// The tiny model has this many positions.
const POSITIONS: usize = 64;

#[test]
fn a_record_longer_than_the_table_is_cut_to_it() {
    let place = Place::new();
    let model = Golden::new("opt").folder(&place);
    let data = place.texts("long.jsonl", &["A".repeat(POSITIONS + 40)]);
    let said = place.pocketune("train --iters 1").model(&model).data(data).into("out").succeeds();
    assert!(said.stderr.contains(&format!("1 records, {POSITIONS} tokens")), "{}", said.stderr);
    assert!(said.stderr.contains("1 records were longer than 64 tokens"), "{}", said.stderr);
}

#[test]
fn a_text_longer_than_the_table_is_refused_with_both_numbers() {
    let place = Place::new();
    let model = Golden::new("opt").folder(&place);
    let prompt = "A".repeat(POSITIONS - 4);
    let generate =
        |tokens: &str| place.pocketune("generate").with("--max-tokens", tokens).with("--prompt", &prompt).model(&model);
    generate("4").succeeds();
    generate("5").refuses(&["--max-tokens", "65 tokens", "64 positions"]);
}

#[test]
fn a_fresh_adapter_names_its_modules_as_peft_does() {
    let place = Place::new();
    let golden = Golden::new("opt");
    let model = golden.folder(&place);
    let data = place.texts("data.jsonl", &golden.records());
    let train = |words: &str| place.pocketune("train --iters 1 --lora-rank 4").words(words).model(&model).data(&data);
    train("").into("all").succeeds();
    let names = |folder: &std::path::Path| adapters::tensors(folder).into_keys().collect::<Vec<_>>();
    assert_eq!(names(&place.path("all")), names(&golden.adapter()), "PEFT's own adapter on all linears of a block");
    let config = std::fs::read(place.path("all/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["target_modules"], serde_json::json!(["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]));

    train("--lora-targets fc1,out_proj").into("two").succeeds();
    assert!(names(&place.path("two")).iter().all(|name| name.contains(".fc1.") || name.contains(".out_proj.")));
    train("--lora-targets q_proj,gate_proj").into("none").stops(&["--lora-targets", "gate_proj", "no such linear"]);
}

#[test]
fn what_the_configuration_says_beyond_what_is_known_is_refused_by_name() {
    let place = Place::new();
    let model = Golden::new("opt").folder(&place);
    let path = model.join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value, words) in [
        ("word_embed_proj_dim", Value::from(16), ["word_embed_proj_dim 16", "hidden_size is 32"]),
        ("do_layer_norm_before", Value::from(false), ["do_layer_norm_before", "not supported"]),
        ("activation_function", Value::from("mish"), ["activation_function 'mish'", "relu"]),
        ("num_attention_heads", Value::from(5), ["5 heads", "32"]),
        ("max_position_embeddings", Value::from(80), ["embed_positions", "[82, 32]"]),
    ] {
        let mut changed = config.clone();
        changed[key] = value;
        std::fs::write(&path, changed.to_string()).unwrap();
        place.pocketune("generate --prompt A --max-tokens 4").model(&model).refuses(&words);
    }
}
