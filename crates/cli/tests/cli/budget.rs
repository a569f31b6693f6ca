//! `--memory-budget`: a contract on the whole process that changes where numbers live, never what they are.

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run};
use crate::reports::reports;

fn train<'a>(place: &'a Place, budget: &str) -> Run<'a> {
    let run = place.pocketune("train --iters 2 --batch-size 2 --threads 2 --log-format jsonl --steps-per-report 1");
    run.with("--memory-budget", budget).model(demo()).data(demo_data()).into("adapter")
}

#[test]
fn every_budget_gives_the_same_adapter() {
    for precision in ["f32", "bf16"] {
        let place = Place::new();
        let of = |budget: &str| {
            train(&place, budget).with("--precision", precision).succeeds();
            adapters::bytes(&place.path("adapter"))
        };
        let roomy = of("50%");
        for budget in ["min", "20MiB", "24MiB", "1GB"] {
            assert!(of(budget) == roomy, "{budget} differs in {precision}");
        }
    }
}

#[test]
fn the_process_stays_within_its_plan_and_the_plan_within_the_budget() {
    let place = Place::new();
    for (budget, bytes) in [("min", u64::MAX), ("20MiB", 20 << 20), ("24MiB", 24 << 20), ("1GB", 1_000_000_000)] {
        let said = train(&place, budget).succeeds();
        for report in reports(&said.stdout) {
            let of = |name: &str| report[name].as_u64().unwrap();
            assert!(of("peak_rss_bytes") <= of("planned_peak_bytes"), "{budget}: {report}");
            assert!(of("planned_peak_bytes") <= bytes, "{budget}: {report}");
        }
    }
}

#[test]
fn what_cannot_fit_is_refused_with_a_budget_that_does() {
    let place = Place::new();
    let said = train(&place, "5MiB").stops(&["--memory-budget 5.0 MiB", "the smallest plan needs", "--batch-size 1"]);
    let bytes = said.split_once("MiB (").and_then(|(_, rest)| rest.split_once(" bytes)")).unwrap().0;
    // What the process itself holds differs a little from run to run.
    let enough = bytes.parse::<u64>().unwrap() + (1 << 20);
    train(&place, &enough.to_string()).succeeds();
}

#[test]
fn a_budget_that_means_nothing_is_refused() {
    let place = Place::new();
    for budget in ["0", "-5", "nonsense", "12parsecs", "150%", "NaN", "inf"] {
        train(&place, budget).refuses(&[&format!("--memory-budget {budget}: ")]);
    }
}

#[test]
fn what_is_spilled_goes_where_it_is_told_to_and_leaves_nothing() {
    let place = Place::new();
    std::fs::create_dir(place.path("spill")).unwrap();
    train(&place, "min").with("--spill-dir", place.path("spill")).succeeds();
    assert_eq!(std::fs::read_dir(place.path("spill")).unwrap().count(), 0);
    train(&place, "min").with("--spill-dir", place.path("nowhere")).stops(&["nowhere"]);
}
