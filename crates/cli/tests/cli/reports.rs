//! `--log-format jsonl`: standard output is for programs, one JSON object a report.

use serde_json::Value;

use crate::models::{Golden, demo, demo_data};
use crate::place::{Place, Said};

/// Every line of standard output as a JSON object.
fn lines(stdout: &str) -> impl Iterator<Item = Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
}

/// The lines that report on updates.
pub fn reports(stdout: &str) -> Vec<Value> {
    lines(stdout).filter(|line| line.get("val_loss").is_none()).collect()
}

/// The lines that report on validations.
pub fn validations(stdout: &str) -> Vec<Value> {
    lines(stdout).filter(|line| line.get("val_loss").is_some()).collect()
}

pub fn losses(stdout: &str) -> Vec<f64> {
    reports(stdout).iter().map(|report| report["loss"].as_f64().unwrap()).collect()
}

fn five_updates(place: &Place, steps_per_report: &str) -> Said {
    place
        .pocketune("train --iters 5 --batch-size 2 --log-format jsonl --learning-rate 1e-3")
        .with("--steps-per-report", steps_per_report)
        .model(demo())
        .data(demo_data())
        .into("adapter")
        .succeeds()
}

fn iters(stdout: &str) -> Vec<u64> {
    reports(stdout).iter().map(|report| report["iter"].as_u64().unwrap()).collect()
}

#[test]
fn standard_output_is_one_json_object_a_report_with_every_field() {
    let place = Place::new();
    let reports = reports(&five_updates(&place, "1").stdout);
    assert_eq!(reports.len(), 5);
    let mut peaks = (0, 0);
    for report in &reports {
        assert!((report["lr"].as_f64().unwrap() - 1e-3).abs() < 1e-9);
        assert!(report["loss"].as_f64().unwrap() > 0.0);
        assert!(report["tokens_per_second"].as_f64().unwrap() > 0.0);
        assert!(report["mfu"].as_f64().unwrap() > 0.0);
        let bytes = |name: &str| report[name].as_u64().unwrap_or_else(|| panic!("{name} in {report}"));
        assert!(bytes("planned_peak_bytes") >= bytes("peak_rss_bytes"), "{report}");
        assert!(bytes("peak_rss_bytes") >= bytes("peak_anon_bytes"), "{report}");
        assert!(bytes("peak_rss_bytes") >= peaks.0 && bytes("peak_anon_bytes") >= peaks.1, "a peak fell: {report}");
        peaks = (bytes("peak_rss_bytes"), bytes("peak_anon_bytes"));
    }
    assert!(cfg!(not(target_os = "linux")) || peaks.1 > 1 << 20);
}

#[test]
fn the_built_in_run_prints_nothing_but_reports_too() {
    let place = Place::new();
    let said = place.pocketune("train --iters 2 --log-format jsonl").succeeds();
    assert_eq!(iters(&said.stdout), [2]);
}

#[test]
fn reports_come_at_every_multiple_and_at_the_end() {
    let place = Place::new();
    for (steps, wanted) in [("1", &[1, 2, 3, 4, 5][..]), ("2", &[2, 4, 5]), ("5", &[5]), ("100", &[5])] {
        assert_eq!(iters(&five_updates(&place, steps).stdout), wanted, "every {steps}");
    }
}

#[test]
fn a_reports_loss_is_the_mean_since_the_report_before() {
    let place = Place::new();
    let each = losses(&five_updates(&place, "1").stdout);
    let by_two = losses(&five_updates(&place, "2").stdout);
    let wanted = [(each[0] + each[1]) / 2.0, (each[2] + each[3]) / 2.0, each[4]];
    for (got, want) in by_two.iter().zip(wanted) {
        assert!((got - want).abs() < 1e-12, "{by_two:?} from {each:?}");
    }
}

#[test]
fn trained_tokens_count_every_token_of_every_batch() {
    let (place, golden) = (Place::new(), Golden::new("llama"));
    let data = place.texts("data.jsonl", &["four", "seventy"]);
    let said = place
        .pocketune("train --iters 3 --batch-size 1 --no-shuffle --steps-per-report 1 --log-format jsonl")
        .model(golden.folder(&place))
        .data(data)
        .into("adapter")
        .succeeds();
    let counts: Vec<u64> =
        reports(&said.stdout).iter().map(|report| report["trained_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [4, 11, 15]);
    assert!(said.stderr.contains("Data: 2 records, 11 tokens, the longest 7"), "{}", said.stderr);
}

#[test]
fn mfu_is_the_same_work_over_the_time_it_took() {
    let (place, golden) = (Place::new(), Golden::new("llama"));
    let data = place.texts("data.jsonl", &["The same record in every update."]);
    let said = place
        .pocketune("train --iters 4 --batch-size 1 --steps-per-report 1 --log-format jsonl")
        .model(golden.folder(&place))
        .data(data)
        .into("adapter")
        .succeeds();
    assert!(said.stderr.contains(" GFLOP/s alone forward, "), "{}", said.stderr);
    let field = |report: &Value, name: &str| report[name].as_f64().unwrap();
    let shares: Vec<f64> =
        reports(&said.stdout).iter().map(|report| field(report, "mfu") / field(report, "iters_per_second")).collect();
    assert!(shares[0] > 0.0 && shares.iter().all(|share| (share / shares[0] - 1.0).abs() < 1e-9), "{shares:?}");
}
