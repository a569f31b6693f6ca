//! What is trained on stays private: no socket, files for their owner alone, and nothing left when it is asked to go.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::place::Place;

const TEXTS: [&str; 2] = ["The keeper of the light is called Mira.", "She lives in the old lighthouse."];
const SMALL: &str = "--batch-size 1 --max-seq-length 32 --threads 1 --memory-budget 200MiB";

/// The built-in model as a file, written by no other means than the repository's own copy of it.
fn model() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/model.gguf").into()
}

#[test]
fn training_measuring_planning_and_generating_open_no_socket() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: there is no strace here");
        return;
    }
    let place = Place::new();
    let data = place.texts("data.jsonl", &TEXTS);
    let trace = place.path("trace");
    let traced = format!("exec strace -f -e trace=socket,socketpair,connect,execve -o '{}' \"$@\"", trace.display());
    let calls = |what: &str| {
        let text = fs::read_to_string(&trace).unwrap();
        // The trace works at all: it has seen the program start.
        assert!(text.contains("execve("), "{what}: {text}");
        let sockets: Vec<&str> =
            text.lines().filter(|line| line.contains("socket") || line.contains("connect(")).collect();
        assert!(sockets.is_empty(), "{what}: {sockets:?}");
    };
    place
        .pocketune(&format!("train --iters 2 {SMALL}"))
        .model(model())
        .data(&data)
        .into("adapter")
        .through(&traced)
        .succeeds();
    calls("train");
    place.pocketune("eval --batch-size 1 --threads 1").model(model()).data(&data).through(&traced).succeeds();
    calls("eval");
    place.pocketune(&format!("plan {SMALL}")).model(model()).through(&traced).succeeds();
    calls("plan");
    place.pocketune("generate --prompt Where --max-tokens 2 --threads 1").model(model()).through(&traced).succeeds();
    calls("generate");
}

#[test]
fn an_adapter_is_for_its_owner_alone_and_is_erased_when_asked_for() {
    let place = Place::new();
    let data = place.texts("data.jsonl", &TEXTS);
    place.pocketune(&format!("train --iters 1 {SMALL}")).model(model()).data(&data).into("adapter").succeeds();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        let mode = fs::metadata(place.path("adapter").join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let left = place.path("adapter").join(format!(".pocketune-spill-{}-0", 1 << 30));
    fs::write(&left, "x").unwrap();
    place.pocketune(&format!("train --iters 1 {SMALL}")).model(model()).data(&data).into("adapter").succeeds();
    assert!(!left.exists(), "left by a run that is no more");
    place.pocketune("erase").word(place.path("adapter")).succeeds();
    assert!(place.path("adapter/adapter_model.safetensors").exists());
    let said = place.pocketune("erase --adapter").word(place.path("adapter")).succeeds();
    assert_eq!(said.stdout, "Erased 3 files\n");
    assert!(!place.path("adapter").exists());
    place.pocketune("erase").word(place.path("tmp")).refuses(&["nothing of a run is here"]);
    assert!(place.path("tmp").exists());
}

#[test]
fn conditions_that_can_not_be_are_refused() {
    let place = Place::new();
    for (option, value, words) in [
        ("--between", "25:00-06:00", "two times such as 22:00-06:30"),
        ("--min-battery", "101", "at most 100"),
        ("--max-temp", "0", "between 1 and 150"),
        ("--check-every", "0", "at least 1 second"),
    ] {
        place.pocketune("train --iters 1").into("adapter").with(option, value).fails(&[words]);
    }
}
