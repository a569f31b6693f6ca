//! The order in which records are taken, seen through the losses of a run whose updates are too small to change anything.

use crate::adapters;
use crate::measuring::measured;
use crate::models::Golden;
use crate::place::Place;
use crate::reports::losses;

const TEXTS: [&str; 6] = ["One.", "Two two.", "Three, three, three.", "4 4 4 4", "Five?", "Number six of these."];

/// The loss of each update, one record each, over two epochs.
fn order(place: &Place, words: &str) -> Vec<f64> {
    let said = place
        .pocketune("train --iters 12 --batch-size 1 --steps-per-report 1 --log-format jsonl --precision f32")
        .words(words)
        .with("--learning-rate", "1e-30")
        .model(place.path("llama"))
        .data(place.path("data.jsonl"))
        .into("adapter")
        .succeeds();
    losses(&said.stdout)
}

fn sorted(losses: &[f64]) -> Vec<f64> {
    let mut sorted = losses.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[test]
fn records_come_in_the_files_order_or_each_once_an_epoch_in_the_seeds() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    place.texts("data.jsonl", &TEXTS);
    let each: Vec<f64> = TEXTS
        .iter()
        .map(|text| {
            let data = place.texts("one.jsonl", &[text]);
            let eval = place.pocketune("eval --log-format jsonl --precision f32").model(&model).data(data);
            measured(eval)["loss"].as_f64().unwrap()
        })
        .collect();
    let in_order = order(&place, "--no-shuffle");
    assert_eq!(in_order, [&each[..], &each[..]].concat());
    assert_eq!(order(&place, "--no-shuffle --seed 1"), in_order);

    let shuffled = order(&place, "--seed 1");
    let (first, second) = shuffled.split_at(6);
    assert_eq!((sorted(first), sorted(second)), (sorted(&each), sorted(&each)));
    assert_ne!(first, &each[..]);
    assert_ne!(first, second);
    assert_eq!(order(&place, "--seed 1"), shuffled);
    assert_ne!(order(&place, "--seed 2"), shuffled);
}

#[test]
fn without_shuffling_the_seed_matters_only_for_the_fresh_adapter() {
    let (place, golden) = (Place::new(), Golden::new("llama"));
    let (model, data) = (golden.folder(&place), place.texts("data.jsonl", &TEXTS));
    let trained = |words: &str, seed: &str| {
        let run = place.pocketune("train --iters 3 --batch-size 1").words(words).with("--seed", seed);
        run.with("--init-adapter", golden.adapter()).model(&model).data(&data).into("adapter").succeeds();
        adapters::bytes(&place.path("adapter"))
    };
    assert!(trained("--no-shuffle", "1") == trained("--no-shuffle", "2"));
    assert!(trained("", "1") != trained("", "2"));
}
