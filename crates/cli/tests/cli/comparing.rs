//! `pocketune compare`: every method has its own process, its own peak and its own curve, and the same run behind it as `train` alone has.

use serde_json::Value;

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::Place;

#[test]
fn methods_are_compared_on_the_same_run_with_options_of_their_own() {
    let place = Place::new();
    let run = place.pocketune(
        "compare --iters 3 --batch-size 2 --max-seq-length 40 --steps-per-eval 2 --threads 1 --json --output out",
    );
    let said = run.with("--methods", "backprop:learning-rate=1e-2,mezo").model(demo()).data(demo_data()).succeeds();
    let found: Value = serde_json::from_str(&said.stdout).unwrap();
    assert_eq!(std::fs::read_to_string(place.path("out/compare.json")).unwrap(), said.stdout);
    let methods = found["methods"].as_array().unwrap();
    let names: Vec<&str> = methods.iter().map(|method| method["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["backprop learning-rate=1e-2", "mezo"]);
    for method in methods {
        let points = |name: &str| method[name].as_array().unwrap().len();
        // Before the first update, after the second, and after the last.
        assert_eq!((points("losses"), points("validation_losses")), (3, 3), "{method}");
        let of = |name: &str| method[name].as_f64().unwrap();
        assert!(of("peak_rss_bytes") <= of("planned_peak_bytes"), "{method}");
        assert!(of("step_cpu_seconds") > 0.0, "{method}");
    }
    let cosine = |at: usize| methods[at]["cosine"].as_f64().unwrap();
    assert_eq!(cosine(0), 1.0);
    assert!(cosine(1) > 0.0 && cosine(1) < 0.2, "an estimate along one direction of thousands: {}", cosine(1));
    assert!(methods[0]["peak_rss_bytes"].as_u64() > methods[1]["peak_rss_bytes"].as_u64());

    let alone = place.pocketune("train --iters 3 --batch-size 2 --max-seq-length 40 --threads 1 --method mezo");
    alone.model(demo()).data(demo_data()).into("alone").succeeds();
    assert!(adapters::bytes(&place.path("alone")) == adapters::bytes(&place.path("out/mezo")));
    let page = std::fs::read_to_string(place.path("out/compare.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.matches("<svg ").count() == 3, "{page}");
}

#[test]
fn an_estimate_along_more_directions_is_nearer_to_the_gradient() {
    let place = Place::new();
    let floats = place.path("floats.gguf");
    place.pocketune("quantize --type f32").model(demo()).with("--output", &floats).succeeds();
    for (name, model, words) in [("adapter", demo(), ""), ("whole", floats, "--fine-tune-type full --store f32")] {
        let run = place
            .pocketune(
                "compare --methods mezo,fzoo --iters 1 --batch-size 2 --max-seq-length 40 --precision f32 --json",
            )
            .with("--output", place.path(name))
            .words(words);
        let found: Value = serde_json::from_str(&run.model(model).data(demo_data()).succeeds().stdout).unwrap();
        let cosine = |at: usize| found["methods"][at]["cosine"].as_f64().unwrap();
        // About one over the root of the number of numbers, and for eight directions the root of eight times that.
        assert!(cosine(0) > 0.0 && cosine(1) > 1.3 * cosine(0), "{words}: {} and {}", cosine(0), cosine(1));
    }
}

#[test]
fn what_is_no_method_or_no_option_is_refused_before_anything_runs() {
    let place = Place::new();
    let compare = |methods: &str| {
        let run = place.pocketune("compare --iters 1 --output out").with("--methods", methods);
        run.model(demo()).data(demo_data())
    };
    compare("backprop,adam").fails(&["no method is called 'adam'", "sparse-mezo"]);
    compare("mezo:learning-rate").fails(&["mezo:learning-rate=5e-5"]);
    compare("mezo:optimizer=sgd").fails(&["--method backprop takes one"]);
}
