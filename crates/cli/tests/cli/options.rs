//! The options of `train`, seen in the adapter that is written and in the reports.

use serde_json::{Value, json};

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::Place;
use crate::reports::reports;

const ALL: [&str; 7] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// A short run of the built-in model, of four blocks; its adapter is in `adapter`.
fn trained(words: &str) -> (Place, Vec<Value>) {
    let place = Place::new();
    let said = place
        .pocketune("train --batch-size 1 --max-seq-length 12 --steps-per-report 1 --log-format jsonl")
        .words(words)
        .model(demo())
        .data(demo_data().join("train.jsonl"))
        .into("adapter")
        .succeeds();
    let reports = reports(&said.stdout);
    (place, reports)
}

fn config(words: &str) -> Value {
    adapters::config(&trained(&format!("--iters 1 {words}")).0.path("adapter"))
}

#[test]
fn the_configuration_says_what_was_asked_for() {
    let config = config("--lora-rank 5 --lora-alpha 15 --lora-targets k_proj,up_proj");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(5), &json!(15)));
    assert_eq!(config["target_modules"], json!(["k_proj", "up_proj"]));
    assert_eq!(config["layers_to_transform"], Value::Null);
    assert_eq!((&config["peft_type"], &config["task_type"]), (&json!("LORA"), &json!("CAUSAL_LM")));
}

#[test]
fn by_default_every_linear_is_adapted_at_rank_8_with_alpha_twice_the_rank() {
    let defaults = config("");
    assert_eq!((&defaults["r"], &defaults["lora_alpha"]), (&json!(8), &json!(16)));
    assert_eq!(defaults["target_modules"], json!(ALL));
    assert_eq!(config("--lora-rank 3")["lora_alpha"], 6);
    assert_eq!(config("--lora-targets all-linear"), defaults);
    assert_eq!(config("--num-layers -1"), defaults);
    assert_eq!(config("--num-layers 4"), defaults);
}

#[test]
fn the_kind_of_an_adapter_is_in_its_configuration_and_in_its_tensors() {
    let words = "--use-rslora --fine-tune-type dora --lora-rank 4 --lora-rank-pattern layers.1.mlp.up_proj=6,v_proj=3 --lora-alpha-pattern q_proj=2.5";
    let (place, _) = trained(&format!("--iters 2 {words}"));
    let config = adapters::config(&place.path("adapter"));
    assert_eq!(config["rank_pattern"], json!({"layers.1.mlp.up_proj": 6, "v_proj": 3}));
    assert_eq!(config["alpha_pattern"], json!({"q_proj": 2.5}));
    assert_eq!((&config["use_rslora"], &config["use_dora"]), (&json!(true), &json!(true)));
    let tensors = adapters::tensors(&place.path("adapter"));
    let len = |name: &str| tensors[&format!("base_model.model.model.layers.1.{name}")].len();
    let rows = len("mlp.up_proj.lora_magnitude_vector");
    assert_eq!(len("mlp.up_proj.lora_B.weight"), 6 * rows);
    assert_eq!(len("mlp.gate_proj.lora_B.weight"), 4 * rows);
    let said = place.pocketune("inspect adapter").succeeds().stdout;
    assert!(said.contains("rsLoRA, DoRA") && said.contains("v_proj: rank 3"), "{said}");
    // The same numbers, read back.
    let eval = |more: &str| {
        let eval = place.pocketune("eval --adapter adapter --log-format jsonl").words(more).model(demo());
        let said: Value = serde_json::from_str(&eval.data(demo_data()).succeeds().stdout).unwrap();
        said["loss"].as_f64().unwrap()
    };
    assert_eq!(eval("--threads 1").to_bits(), eval("--threads 2 --memory-budget min").to_bits());
    trained("--iters 1 --lora-dropout 0.5 --lora-plus 16");
}

#[test]
fn the_ends_of_a_model_are_adapted_by_name() {
    let (place, _) = trained("--iters 2 --lora-targets embed_tokens,lm_head,q --num-layers 1");
    let names: Vec<String> = adapters::tensors(&place.path("adapter")).into_keys().collect();
    for end in ["lm_head.lora_A.weight", "lm_head.lora_B.weight", "model.embed_tokens.lora_embedding_A"] {
        assert!(names.contains(&format!("base_model.model.{end}")), "{names:?}");
    }
    // PEFT leaves out what is in no layer where it is told layers, so modules go by their paths.
    let config = adapters::config(&place.path("adapter"));
    assert_eq!(config["target_modules"], json!(["model.embed_tokens", "model.layers.3.self_attn.q_proj", "lm_head"]));
    assert_eq!(config["layers_to_transform"], Value::Null);
    // PEFT begins with an A of zeros there: what is not zero was learnt.
    let tensors = adapters::tensors(&place.path("adapter"));
    assert!(tensors["base_model.model.model.embed_tokens.lora_embedding_A"].iter().any(|x| *x != 0.0));
    assert!(tensors["base_model.model.lm_head.lora_B.weight"].iter().any(|x| *x != 0.0));
}

#[test]
fn a_linear_has_three_names() {
    let [gguf, hf, short] = ["attn_q,attn_output,ffn_gate", "o_proj,q_proj,gate_proj", "gate,o,q"]
        .map(|names| trained(&format!("--iters 2 --lora-targets {names}")).0);
    assert_eq!(adapters::config(&hf.path("adapter"))["target_modules"], json!(["q_proj", "o_proj", "gate_proj"]));
    for other in [gguf, short] {
        assert!(adapters::bytes(&other.path("adapter")) == adapters::bytes(&hf.path("adapter")));
        assert_eq!(adapters::config(&other.path("adapter")), adapters::config(&hf.path("adapter")));
    }
}

#[test]
fn the_last_layers_alone_are_trained() {
    let (place, _) = trained("--iters 1 --num-layers 2 --lora-rank 2 --lora-targets q,v");
    assert_eq!(adapters::config(&place.path("adapter"))["layers_to_transform"], json!([2, 3]));
    let names: Vec<String> = adapters::tensors(&place.path("adapter")).into_keys().collect();
    let mut wanted = Vec::new();
    for (layer, module) in [(2, "q"), (2, "v"), (3, "q"), (3, "v")] {
        for factor in ["A", "B"] {
            wanted.push(format!("base_model.model.model.layers.{layer}.self_attn.{module}_proj.lora_{factor}.weight"));
        }
    }
    assert_eq!(names, wanted);
}

#[test]
fn every_schedule_has_its_rates() {
    let rates = |words: &str| -> Vec<f64> {
        let (_, reports) = trained(&format!("--iters 8 --learning-rate 0.001 {words}"));
        reports.iter().map(|report| report["lr"].as_f64().unwrap() / 1e-3).collect()
    };
    let close = |got: Vec<f64>, want: [f64; 8]| {
        assert!(
            got.len() == 8 && got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-6),
            "{got:?}, not {want:?}"
        );
    };
    close(rates(""), [1.0; 8]);
    close(rates("--warmup-steps 4"), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]);
    close(rates("--lr-scheduler linear"), [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]);
    close(rates("--lr-scheduler linear --warmup-steps 4"), [0.25, 0.5, 0.75, 1.0, 0.8, 0.6, 0.4, 0.2]);
    let cosine = |step: f64| 0.5 * (1.0 + (std::f64::consts::PI * step / 8.0).cos());
    close(rates("--lr-scheduler cosine"), std::array::from_fn(|step| cosine(step as f64)));
    close(rates("--warmup-steps 100"), std::array::from_fn(|step| (step + 1) as f64 / 100.0));
}

#[test]
fn sgd_without_decay_takes_the_step_that_two_smaller_rates_share() {
    // The update is linear in the rate, so one step at rate 0.2 goes twice as far as one at 0.1; AdamW's goes a rate's length.
    let after =
        |words: &str| adapters::tensors(&trained(&format!("--iters 1 --precision f32 {words}")).0.path("adapter"));
    let (one, two) = (after("--optimizer sgd --learning-rate 0.1"), after("--optimizer sgd --learning-rate 0.2"));
    let adamw = after("--learning-rate 0.01");
    for (name, once) in one.iter().filter(|(name, _)| name.contains("lora_B")) {
        assert!(once.iter().any(|x| *x != 0.0), "{name} was not trained");
        for (x, y) in once.iter().zip(&two[name]) {
            assert!((2.0 * x - y).abs() <= 1e-6 * y.abs(), "{name}: {x} and {y}");
        }
        let largest = adamw[name].iter().fold(0.0_f32, |a, x| a.max(x.abs()));
        assert!((largest - 0.01).abs() < 1e-5, "{name}: AdamW's first step is {largest}");
    }
}

#[test]
fn weight_decay_shrinks_what_has_no_gradient() {
    // In the first update the second factor is zero, so the first factor gets no gradient: decay alone moves it.
    let after = |decay: &str| {
        let words = format!("--iters 1 --precision f32 --learning-rate 0.1 --weight-decay {decay}");
        adapters::tensors(&trained(&words).0.path("adapter"))
    };
    let (none, half) = (after("0"), after("0.5"));
    for (name, before) in none.iter().filter(|(name, _)| name.contains("lora_A")) {
        for (x, y) in before.iter().zip(&half[name]) {
            assert!((0.95 * x - y).abs() < 1e-6, "{name}: {x} became {y}");
        }
    }
}

#[test]
fn the_adapter_is_for_its_owner_alone() {
    let (place, _) = trained("--iters 1");
    #[cfg(unix)]
    for file in adapters::FILES {
        use std::os::unix::fs::PermissionsExt;
        let mode = place.path("adapter").join(file).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}: {mode:o}");
    }
    assert!(place.path("adapter").is_dir());
}

#[test]
fn inspect_shows_the_adapter_that_train_wrote() {
    let (place, _) = trained("--iters 1 --lora-rank 2 --lora-targets q --num-layers 1");
    let said = place.pocketune("inspect adapter").succeeds().stdout;
    for words in ["PEFT LoRA adapter", "rank             2", "model.layers.3.self_attn.q_proj.lora_A.weight", "[3]"] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
}
