//! `--init-adapter`: training goes on from a PEFT folder, with its rank, alpha and targets.

use crate::adapters::{self, distance};
use crate::models::{Golden, demo};
use crate::place::Place;

const TEXTS: [&str; 3] = ["The first of three.", "The second one, with more in it.", "And the third."];

#[test]
fn rank_alpha_targets_and_layers_come_from_the_folder() {
    let place = Place::new();
    let data = place.texts("data.jsonl", &TEXTS);
    let train = |words: &str| place.pocketune("train --batch-size 1").words(words).model(demo()).data(&data);
    train("--iters 2 --lora-rank 3 --lora-alpha 7.5 --lora-targets q,down --num-layers 2").into("first").succeeds();
    train("--iters 1 --learning-rate 1e-12").with("--init-adapter", place.path("first")).into("second").succeeds();
    let config = adapters::config(&place.path("second"));
    assert_eq!(config["r"], 3);
    assert_eq!(config["lora_alpha"], 7.5);
    assert_eq!(config, adapters::config(&place.path("first")));
    // A rate of nothing changes nothing: what was read is what is written.
    let (first, second) = (adapters::tensors(&place.path("first")), adapters::tensors(&place.path("second")));
    assert_eq!(first.len(), 2 * 2 * 2);
    assert!(distance(&second, &first) < 1e-6);
}

#[test]
fn an_adapter_of_pefts_own_comes_back_as_it_was() {
    for golden in ["llama", "qwen2", "gemma3_text"].map(Golden::new) {
        for gguf in [false, true] {
            let place = Place::new();
            let model = if gguf { golden.gguf(&place) } else { golden.folder(&place) };
            place
                .pocketune("train --iters 1 --learning-rate 1e-30 --weight-decay 0")
                .with("--init-adapter", golden.adapter())
                .model(model)
                .data(place.texts("data.jsonl", &golden.records()))
                .into("adapter")
                .succeeds();
            let (got, want) = (adapters::tensors(&place.path("adapter")), adapters::tensors(&golden.adapter()));
            assert_eq!(got, want, "{}, GGUF: {gguf}", golden.name);
            assert_eq!(adapters::config(&place.path("adapter"))["lora_alpha"], 8);
        }
    }
}

#[test]
fn two_runs_of_three_updates_are_one_of_six_where_the_optimizer_has_no_memory() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let data = place.texts("data.jsonl", &TEXTS);
    let train = |iters: &str| {
        let run = place.pocketune("train --optimizer sgd --learning-rate 0.05 --batch-size 1 --no-shuffle");
        run.with("--iters", iters).model(&model).data(&data)
    };
    train("6").into("whole").succeeds();
    train("3").into("half").succeeds();
    train("3").with("--init-adapter", place.path("half")).into("rest").succeeds();
    assert!(adapters::bytes(&place.path("half")) != adapters::bytes(&place.path("rest")));
    assert!(adapters::bytes(&place.path("rest")) == adapters::bytes(&place.path("whole")));
}

#[test]
fn an_adapter_can_be_trained_on_in_its_own_folder() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let data = place.texts("data.jsonl", &TEXTS);
    let train = || place.pocketune("train --iters 2").model(&model).data(&data).into("adapter");
    train().succeeds();
    let before = adapters::bytes(&place.path("adapter"));
    train().with("--init-adapter", place.path("adapter")).succeeds();
    assert!(adapters::bytes(&place.path("adapter")) != before);
    assert_eq!(std::fs::read_dir(place.path("adapter")).unwrap().count(), 3);
}
