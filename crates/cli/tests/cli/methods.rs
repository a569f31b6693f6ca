//! `--method`: every method trains, resumes to the same bytes and obeys its plan; what does not go together is refused with what does.

use serde_json::Value;

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run};

/// A short run of the built-in model with `words`.
fn train<'a>(place: &'a Place, words: &str) -> Run<'a> {
    train_into(place, "adapter", &format!("--iters 4 {words}"))
}

fn train_into<'a>(place: &'a Place, folder: &str, words: &str) -> Run<'a> {
    let run = place.pocketune("train --batch-size 2 --max-seq-length 40 --log-format jsonl --steps-per-report 1");
    run.words(words).model(demo()).data(demo_data().join("train.jsonl")).into(folder)
}

fn bytes(place: &Place) -> Vec<u8> {
    adapters::bytes(&place.path("adapter"))
}

#[test]
fn every_method_goes_on_to_the_same_bytes_under_any_plan() {
    for method in ["lora-fa", "dora"] {
        let (whole, place) = (Place::new(), Place::new());
        let words = format!("--method {method}");
        train(&whole, &words).succeeds();
        for plan in ["--threads 1", "--memory-budget min", "--threads 2"] {
            let said = train(&place, &words).words(plan).words("--time-limit 1ms --resume auto").stops_early();
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
            assert!(held <= planned, "{method} {plan}: {held} bytes held, {planned} planned");
        }
        train(&place, &words).words("--resume auto").succeeds();
        assert!(bytes(&place) == bytes(&whole), "{method}");
    }
}

#[test]
fn a_run_with_another_method_is_not_gone_on_with() {
    let place = Place::new();
    train(&place, "--time-limit 1ms").stops_early();
    let other = train(&place, "--method lora-fa --resume auto --allow-changed");
    other.stops(&["method backprop, not lora-fa", "can't be gone on with"]);
}

#[test]
fn dora_by_its_method_is_dora_by_its_type() {
    let (method, kind) = (Place::new(), Place::new());
    train(&method, "--method dora").succeeds();
    train(&kind, "--fine-tune-type dora").succeeds();
    assert!(bytes(&method) == bytes(&kind));
}

#[test]
fn first_factors_that_stay_cost_neither_state_nor_kept_inputs() {
    let place = Place::new();
    let plan = |method: &str| -> Value {
        let run = place.pocketune("plan --json --batch-size 1 --max-seq-length 64 --grad-checkpoint none --method");
        serde_json::from_str(&run.word(method).succeeds().stdout).unwrap()
    };
    let of = |plan: &Value, name: &str| plan["chosen"]["memory"][name].as_u64().unwrap();
    let (plain, frozen) = (plan("backprop"), plan("lora-fa"));
    assert_eq!(of(&plain, "adapter"), of(&frozen, "adapter"));
    assert!(of(&frozen, "optimizer") * 3 < of(&plain, "optimizer") * 2, "{frozen}");
    assert!(of(&frozen, "step") < of(&plain, "step"), "{frozen}");
}

#[test]
fn first_factors_stay_as_they_began() {
    let place = Place::new();
    train_into(&place, "start", "--method lora-fa --iters 1 --learning-rate 1e-9").succeeds();
    train_into(&place, "end", "--method lora-fa --iters 4").succeeds();
    let [start, end] = ["start", "end"].map(|folder| adapters::tensors(&place.path(folder)));
    for (name, values) in &start {
        assert_eq!(name.contains("lora_A"), *values == end[name], "{name}");
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_what_does() {
    for (words, said) in [
        ("--method lora-fa --fine-tune-type dora", "--method dora"),
        ("--method lora-fa --lora-targets q_proj,lm_head", "leave that out of --lora-targets"),
        ("--method dora --fine-tune-type lora", "--method backprop"),
        ("--method dora --lora-dropout 0.1", "without dropout"),
    ] {
        train(&Place::new(), words).refuses(&[said]);
    }
    train(&Place::new(), "--method gradient-descent").misused(&["backprop", "lora-fa"]);
    let place = Place::new();
    train_into(&place, "plain", "--iters 1").succeeds();
    let from = train(&place, "--method dora").with("--init-adapter", place.path("plain"));
    from.stops(&["no magnitudes", "--method backprop"]);
}
