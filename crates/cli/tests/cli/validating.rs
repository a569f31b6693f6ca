//! Validation on a schedule, the best adapter, and stopping early.

use serde_json::Value;

use crate::adapters;
use crate::measuring::measured;
use crate::models::{demo, demo_data};
use crate::place::{Place, Said};
use crate::reports::{reports, validations};

fn train(place: &Place, words: &str, out: &str) -> Said {
    let run = place.pocketune("train --batch-size 2 --log-format jsonl").words(words);
    run.model(demo()).data(demo_data()).into(out).succeeds()
}

fn field(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"))
}

#[test]
fn validation_comes_on_its_schedule_and_changes_nothing() {
    let place = Place::new();
    let words = "--iters 5 --learning-rate 1e-3 --precision f32 --val-batches -1";
    let said = train(&place, &format!("{words} --steps-per-eval 2"), "a");
    let found = validations(&said.stdout);
    assert_eq!(found.iter().map(|line| line["iter"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 2, 4, 5]);
    assert!(said.stderr.contains("Iter 4: Val loss ") && said.stderr.contains(", Val perplexity "), "{}", said.stderr);
    train(&place, words, "b");
    assert!(adapters::bytes(&place.path("a")) == adapters::bytes(&place.path("b")));
    let run = place.pocketune("eval --log-format jsonl --batch-size 2 --precision f32").model(demo()).data(demo_data());
    let eval = measured(run.with("--adapter", place.path("a")));
    for (ours, theirs) in [("val_loss", "loss"), ("val_perplexity", "perplexity"), ("val_accuracy", "accuracy")] {
        assert_eq!(field(&found[3], ours), field(&eval, theirs), "{ours}");
    }
}

#[test]
fn a_validation_may_be_part_of_the_set() {
    let place = Place::new();
    let tokens = |words: &str| {
        let said = train(&place, &format!("--iters 1 {words}"), "adapter");
        validations(&said.stdout)[0]["val_tokens"].as_u64().unwrap()
    };
    let (one, all) = (tokens("--val-batches 1"), tokens("--val-batches -1"));
    assert!(one < all, "{one} of {all}");
    assert_eq!(tokens("--val-batches 1000"), all);
}

#[test]
fn the_best_adapter_is_kept_and_a_run_that_gets_worse_ends_early() {
    let place = Place::new();
    // A rate so high that the loss falls at first and then rises.
    let words =
        "--iters 60 --learning-rate 3e-2 --steps-per-eval 4 --early-stopping 2 --precision f32 --val-batches -1";
    let said = train(&place, words, "best");
    for report in reports(&said.stdout) {
        // Saving in the midst of a run is part of the plan.
        assert!(report["planned_peak_bytes"].as_u64() >= report["peak_rss_bytes"].as_u64(), "{report}");
    }
    let found = validations(&said.stdout);
    let judged = &found[1..];
    let best = judged.iter().min_by(|a, b| field(a, "val_loss").total_cmp(&field(b, "val_loss"))).unwrap();
    let last = judged.last().unwrap();
    assert!(field(last, "iter") < 60.0 && field(best, "iter") == field(last, "iter") - 8.0, "{found:?}");
    assert!(said.stderr.contains(&format!("Stopped after update {}", last["iter"])), "{}", said.stderr);
    let run = place.pocketune("eval --log-format jsonl --batch-size 2 --precision f32").model(demo()).data(demo_data());
    assert_eq!(field(&measured(run.with("--adapter", place.path("best"))), "loss"), field(best, "val_loss"));
    let words = format!("--iters {} --learning-rate 3e-2 --steps-per-eval 4 --precision f32 --save-best", last["iter"]);
    train(&place, &words, "again");
    assert!(adapters::bytes(&place.path("again")) == adapters::bytes(&place.path("best")));
}
