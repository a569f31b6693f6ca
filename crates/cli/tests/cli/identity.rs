//! What must not matter does not: policies, thread counts and the cut of an update into passes give the same adapter to the byte.

use std::path::PathBuf;

use crate::adapters;
use crate::models::{Golden, demo, demo_data};
use crate::place::Place;

/// The adapter after a few updates of the built-in model.
fn trained(words: &str) -> Vec<u8> {
    let place = Place::new();
    place
        .pocketune("train --iters 3 --batch-size 2 --max-seq-length 48 --learning-rate 1e-2 --log-format jsonl")
        .with("--seed", "11")
        .words(words)
        .model(demo())
        .data(demo_data().join("train.jsonl"))
        .into("adapter")
        .succeeds();
    adapters::bytes(&place.path("adapter"))
}

#[test]
fn every_policy_gives_the_same_adapter() {
    for precision in ["f32", "bf16"] {
        let of = |policy: &str| trained(&format!("--precision {precision} --grad-checkpoint {policy}"));
        let none = of("none");
        for policy in ["block", "selective", "auto"] {
            assert!(of(policy) == none, "{policy} differs from none in {precision}");
        }
    }
}

#[test]
fn every_number_of_threads_gives_the_same_adapter() {
    for precision in ["f32", "bf16"] {
        let of = |threads: usize| trained(&format!("--precision {precision} --threads {threads}"));
        let one = of(1);
        for threads in [2, 4] {
            assert!(of(threads) == one, "{threads} threads differ from one in {precision}");
        }
    }
}

#[test]
fn a_run_is_a_function_of_its_seed() {
    assert!(trained("") == trained(""));
    let place = Place::new();
    let of = |seed: &str| {
        let run = place.pocketune("train --iters 1 --batch-size 1 --max-seq-length 16").with("--seed", seed);
        run.model(demo()).data(demo_data().join("train.jsonl")).into("adapter").succeeds();
        adapters::bytes(&place.path("adapter"))
    };
    assert!(of("1") != of("2"));
}

/// Two updates over four records each, as so many passes of so many records.
fn passes(place: &Place, model: &PathBuf, data: &PathBuf, words: &str) -> Vec<u8> {
    let run = place.pocketune("train --iters 2 --precision f32 --learning-rate 1e-2").words(words);
    run.model(model).data(data).into("adapter").succeeds();
    adapters::bytes(&place.path("adapter"))
}

#[test]
fn four_passes_of_one_record_are_one_pass_of_four() {
    for golden in ["llama", "qwen3", "gemma3_text"].map(Golden::new) {
        let place = Place::new();
        let model = golden.folder(&place);
        let texts =
            ["ONE!", "TWO AND A BIT", "3", "THE FOURTH OF THESE RECORDS", "FIVE 5 FIVE", "SIX SIX", "7 7", "EIGHT"];
        let data = place.texts("data.jsonl", &texts);
        let whole = passes(&place, &model, &data, "--batch-size 4");
        for words in ["--batch-size 1 --grad-accumulation-steps 4", "--batch-size 2 --grad-accumulation-steps 2"] {
            assert!(passes(&place, &model, &data, words) == whole, "{}: {words}", golden.name);
        }
    }
}
