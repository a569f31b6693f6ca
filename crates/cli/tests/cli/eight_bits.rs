//! `--optimizer adamw8bit`: nearly AdamW's result for a quarter of its memory, under every budget the same bytes.

use serde_json::Value;

use crate::adapters;
use crate::built_in::number;
use crate::models::{demo, demo_data};
use crate::place::Place;
use crate::reports::reports;

#[test]
fn the_built_in_model_ends_at_nearly_the_loss_of_adamw_in_f32() {
    let place = Place::new();
    let ends = |optimizer: &str| {
        let said = place.pocketune("train --optimizer").word(optimizer).into(optimizer).succeeds().stdout;
        (number(&said, "  loss    "), number(&said, "before, "))
    };
    let ((start, f32), (_, bits8)) = (ends("adamw"), ends("adamw8bit"));
    println!("validation loss {start} at first, {f32} with adamw, {bits8} with adamw8bit");
    assert!((bits8 - f32).abs() < 0.01 * (start - f32), "{start} at first, {f32} in f32, {bits8} in 8 bits");
    let [in_f32, in_8_bits] = ["adamw", "adamw8bit"].map(|folder| adapters::bytes(&place.path(folder)));
    assert!(in_f32 != in_8_bits, "an approximation has other bits");
}

#[test]
fn every_budget_gives_the_same_adapter_whether_gradients_are_applied_at_once_or_summed() {
    for words in ["", "--grad-accumulation-steps 2 --max-grad-norm 0.5"] {
        let place = Place::new();
        let of = |budget: &str| {
            let run =
                place.pocketune("train --optimizer adamw8bit --lora-rank 64 --iters 3 --batch-size 2 --threads 2");
            let run = run.words("--log-format jsonl --steps-per-report 1").words(words);
            let said = run.with("--memory-budget", budget).model(demo()).data(demo_data()).into("adapter").succeeds();
            for report in reports(&said.stdout) {
                let of = |name: &str| report[name].as_u64().unwrap();
                assert!(of("peak_rss_bytes") <= of("planned_peak_bytes"), "{budget} {words}: {report}");
            }
            (adapters::bytes(&place.path("adapter")), said.stderr)
        };
        let ((roomy, _), (tight, plan)) = (of("50%"), of("min"));
        assert!(plan.contains("optimizer on disk"), "{plan}");
        assert!(roomy == tight, "{words}");
    }
}

#[test]
fn the_plan_says_what_the_optimizer_takes() {
    let place = Place::new();
    let optimizer = |name: &str| {
        let said = place.pocketune("plan --json --batch-size 1 --max-seq-length 64 --optimizer").word(name).succeeds();
        let plan: Value = serde_json::from_str(&said.stdout).unwrap();
        plan["chosen"]["memory"]["optimizer"].as_u64().unwrap() as f64
    };
    let share = optimizer("adamw8bit") / optimizer("adamw");
    // 2 bytes and 8/256 instead of 8, and what the last block of a matrix leaves empty.
    assert!((0.2539..0.262).contains(&share), "{share}");
}
