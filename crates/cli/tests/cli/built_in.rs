//! `pocketune train` without a model and data: the built-in ones, and what changed.

use crate::adapters::{self, FILES};
use crate::measuring::measured;
use crate::models::{demo, demo_data};
use crate::place::Place;

/// The number after `before` in `text`.
pub fn number(text: &str, before: &str) -> f64 {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before:?} in: {text}"));
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].parse().unwrap_or_else(|_| panic!("no number after {before:?} in: {text}"))
}

#[test]
fn it_shows_loss_sample_and_memory_before_and_after() {
    let place = Place::new();
    let said = place.pocketune("train --iters 5 --threads 2").succeeds().stdout;
    let (before, after) = (number(&said, "  loss    "), number(&said, "before, "));
    assert!(after < before - 0.2, "{before} before, {after} after");
    let (planned, measured) = (number(&said, "planned "), number(&said, "measured "));
    assert!(measured <= planned, "{planned} MiB planned, {measured} MiB measured");
    assert!(
        cfg!(not(target_os = "linux")) || planned < 2.0 * measured,
        "{planned} MiB planned, {measured} MiB measured"
    );
    for line in ["Question: Where do you live?\nAnswer:", "\n  before: ", "\n  after:  "] {
        assert!(said.contains(line), "{line:?} is not in: {said}");
    }
    assert!(said.contains("Iter 5: Train loss "), "{said}");
    assert!(said.contains("\n  files   adapters: ") && said.contains("\n  next    pocketune "), "{said}");

    let written: Vec<_> = std::fs::read_dir(place.path("adapters")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(written.len(), 3);
    assert!(written.iter().any(|name| name == "pocketune.yaml"), "{written:?}");
    assert!(FILES.iter().all(|file| written.iter().any(|name| name == file)), "{written:?}");
}

#[test]
fn the_losses_it_shows_are_those_that_eval_measures() {
    let place = Place::new();
    let said = place.pocketune("train --iters 5").succeeds().stdout;
    let loss = |adapter: Option<&str>| {
        let run = place.pocketune("eval --log-format jsonl").model(demo()).data(demo_data());
        let run = match adapter {
            Some(folder) => run.with("--adapter", place.path(folder)),
            None => run,
        };
        measured(run)["loss"].as_f64().unwrap()
    };
    let (before, after) = (loss(None), loss(Some("adapters")));
    assert!((before - number(&said, "  loss    ")).abs() < 1e-3, "{before} in: {said}");
    assert!((after - number(&said, "before, ")).abs() < 1e-3, "{after} in: {said}");
    assert!(after < before);
}

#[test]
fn the_model_and_data_inside_the_program_are_those_of_the_repository() {
    let place = Place::new();
    place.pocketune("train --iters 2 --learning-rate 1e-3 --adapter-path inside").succeeds();
    let run = place.pocketune("train --iters 2 --learning-rate 1e-3").model(demo()).data(demo_data());
    run.into("outside").succeeds();
    assert_eq!(adapters::bytes(&place.path("inside")), adapters::bytes(&place.path("outside")));
}
