//! `plan --picture` and `train --memory-trace`: what would be held, what was held, and both in one picture.

use std::fs;

use serde_json::Value;

use crate::place::Place;
use crate::reports::reports;

#[test]
fn a_plan_is_drawn_with_its_budget_and_the_smallest_one_where_none_fits() {
    let place = Place::new();
    place.pocketune("plan --memory-budget 64MiB --max-seq-length 64 --picture fits.svg").succeeds();
    let drawn = fs::read_to_string(place.path("fits.svg")).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    assert!(drawn.contains("budget 64.0 MiB"));
    let said = place.pocketune("plan --memory-budget 1MiB --max-seq-length 64 --json --picture none.svg").succeeds();
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    assert!(report["chosen"].is_null());
    let smallest = report["smallest_peak_bytes"].as_f64().unwrap() / f64::from(1 << 20);
    let drawn = fs::read_to_string(place.path("none.svg")).unwrap();
    assert!(drawn.contains(&format!("peak {smallest:.1} MiB")), "{smallest}");
}

#[test]
fn a_picture_that_cannot_be_written_is_refused_before_planning() {
    let place = Place::new();
    place.pocketune("plan --picture missing/plan.svg").refuses(&["missing"]);
    place.pocketune("train --memory-trace missing/trace.jsonl").refuses(&["missing"]);
    place.pocketune("train --memory-trace /dev/null").refuses(&["/dev/null"]);
    place.pocketune("plan --memory-trace trace.jsonl").refuses(&["--memory-trace", "--picture"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_trace_runs_forward_in_time_and_stays_below_the_plan() {
    let place = Place::new();
    let said = place
        .pocketune("train --iters 6 --steps-per-report 1 --log-format jsonl --memory-trace trace.jsonl")
        .succeeds();
    let planned = reports(&said.stdout)[5]["planned_peak_bytes"].as_u64().unwrap();
    let text = fs::read_to_string(place.path("trace.jsonl")).unwrap();
    let looks: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!looks.is_empty());
    for pair in looks.windows(2) {
        assert!(pair[0]["seconds"].as_f64() <= pair[1]["seconds"].as_f64(), "{pair:?}");
        assert!(pair[0]["step"].as_u64() <= pair[1]["step"].as_u64(), "{pair:?}");
    }
    for look in &looks {
        let (rss, anon) = (look["rss_bytes"].as_u64().unwrap(), look["rss_anon_bytes"].as_u64().unwrap());
        assert!(0 < anon && anon <= rss && rss <= planned, "{look}, planned {planned}");
        assert!((1..=6).contains(&look["step"].as_u64().unwrap()), "{look}");
    }
    let drawn = fs::read_to_string(place.path("trace.jsonl.svg")).unwrap();
    assert_eq!(drawn.matches("class=\"measured\"").count(), 2);
}
