//! `pocketune bench`: what the machine reaches, and the profile that the planner takes from it.

use serde_json::Value;

use crate::place::Place;
use crate::reports::reports;

const PROFILE: &str = "cache/pocketune/profile.json";

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Seconds a step that a plan with one thread states.
fn step(place: &Place) -> (f64, String) {
    let said = place.pocketune("plan --shape smollm2-135m --max-seq-length 64 --threads 1 --json").succeeds();
    (json(&said.stdout)["chosen"]["step_seconds"].as_f64().unwrap(), said.stderr)
}

#[test]
fn figures_are_above_zero_and_nothing_is_kept_unless_it_may_be() {
    let place = Place::new();
    let before = place.listing();
    let said = place.pocketune("bench --threads 1 --json --no-save").succeeds();
    assert_eq!(place.listing(), before);
    let found = json(&said.stdout);
    let types = found["product"]["types"].as_array().unwrap();
    assert_eq!(types.len(), 9);
    for rates in types {
        for name in ["forward_flops", "backward_flops", "dequantised_per_second"] {
            assert!(rates[name].as_f64().unwrap() > 0.0, "{name} in {rates}");
        }
    }
    for name in ["pass_bytes_per_second", "disk_write_bytes_per_second", "disk_read_bytes_per_second"] {
        assert!(found[name].as_f64().unwrap() > 0.0, "{name}");
    }
}

#[test]
fn the_planner_takes_the_profile_that_was_kept_and_no_other() {
    let place = Place::new();
    let said = place.pocketune("bench --threads 1").succeeds();
    assert!(said.stdout.contains("q4_0") && said.stderr.contains(PROFILE), "{} {}", said.stdout, said.stderr);
    let (kept, quiet) = step(&place);
    assert!(!quiet.contains("Profile"), "{quiet}");
    assert_eq!(kept, step(&place).0, "what was measured once does not change from run to run");
    // Nothing is measured now before the first step, and still the plan counts all that the process will hold.
    let train = "train --threads 1 --memory-budget min --iters 2 --log-format jsonl --adapter-path adapter";
    let report = &reports(&place.pocketune(train).succeeds().stdout)[0];
    let bytes = |name: &str| report[name].as_u64().unwrap();
    assert!(bytes("planned_peak_bytes") >= bytes("peak_rss_bytes"), "{report}");
    // A profile of a machine a thousand times as fast is believed: it is the profile that is read.
    let mut profile = json(&std::fs::read_to_string(place.path(PROFILE)).unwrap());
    for rate in profile["profiles"][0]["rates"].as_object_mut().unwrap().values_mut() {
        *rate = (rate.as_f64().unwrap() * 1000.0).into();
    }
    place.file(PROFILE, profile.to_string());
    let faster = step(&place).0;
    assert!((faster * 1000.0 / kept - 1.0).abs() < 0.1, "{faster} {kept}");
}

#[test]
fn a_profile_that_is_none_or_of_another_machine_is_noted_and_passed_over() {
    let place = Place::new();
    for (profile, words) in
        [("not JSON", "no profile"), ("{\"profiles\": []}", "no profile of this processor"), ("[1]", "no profile")]
    {
        place.file(PROFILE, profile);
        let (seconds, said) = step(&place);
        assert!(seconds > 0.0);
        assert!(said.lines().filter(|line| line.contains("Profile: ") && line.contains(words)).count() == 1, "{said}");
    }
}

#[test]
fn a_folder_or_a_place_for_the_profile_that_is_not_there_is_refused_in_one_line() {
    let place = Place::new();
    place.pocketune("bench --threads 1 --no-save --spill-dir nowhere").refuses(&["nowhere"]);
    place.pocketune("bench --threads 0").refuses(&["--threads 0"]);
    place.file("cache", "a file where a folder should be");
    place.pocketune("bench --threads 1 --spill-dir .").refuses(&["cache"]);
}
