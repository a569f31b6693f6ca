//! What is trained on stays private: no socket, files for their owner alone, and nothing left when it is asked to go.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::place::Place;

const TEXTS: [&str; 2] = ["The keeper of the light is called Mira.", "She lives in the old lighthouse."];
const SMALL: &str = "--batch-size 1 --max-seq-length 32 --threads 1 --memory-budget 200MiB";

/// The built-in model as a file, written by no other means than the repository's own copy of it.
fn model() -> std::path::PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo/model.gguf").into()
}

#[test]
fn training_measuring_planning_generating_and_merging_open_no_socket() {
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
    place.file("plain.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let chat = place.pocketune("chat --max-tokens 2 --threads 1 --chat-template plain.jinja").model(model());
    chat.through(&traced).reading("Where?\n").succeeds();
    calls("chat");
    let merge = place.pocketune("merge --adapter adapter --output merged.gguf --threads 1").model(model());
    merge.through(&traced).succeeds();
    calls("merge");
    place.pocketune("quantize --type q8_0 --output small.gguf").model(model()).through(&traced).succeeds();
    calls("quantize");
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

/// All below `folder` that is not for its owner alone.
fn open_to_others(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let about = entry.metadata().unwrap();
        let (mode, wanted) = (about.permissions().mode() & 0o777, if about.is_dir() { 0o700 } else { 0o600 });
        if mode != wanted {
            found.push((entry.path(), format!("{mode:o}")));
        }
        if about.is_dir() {
            open_to_others(&entry.path(), found);
        }
    }
}

/// With an umask that takes nothing away, what is seen is what was asked for.
#[test]
fn adapters_checkpoints_and_profiles_are_for_their_owner_alone_under_any_umask() {
    let place = Place::new();
    fs::create_dir(place.path("out")).unwrap();
    let messages = r#"[{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Mira."}]"#;
    let data = place.file("data.jsonl", format!("{{\"messages\": {messages}}}\n"));
    place.file("plain.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let anyone = "umask 0; exec \"$@\"";
    let train = |words: &str, out: &str| {
        let run = place.pocketune("train --chat-template plain.jinja --commit-every 1").words(SMALL).words(words);
        run.model(model()).data(&data).into(out).through(anyone)
    };
    train("--iters 1", "out/done").succeeds();
    train("--iters 100000 --time-limit 1s", "out/stopped").stops_early();
    place.pocketune("convert --adapter out/done --to mlx --output out/mlx").through(anyone).succeeds();
    let bench = place.pocketune("bench --threads 1").through(anyone);
    bench.env("XDG_CACHE_HOME", place.path("out/cache").to_str().unwrap()).succeeds();
    for name in
        ["done/chat_template.jinja", "stopped/.pocketune", "mlx/adapters.safetensors", "cache/pocketune/profile.json"]
    {
        assert!(place.path("out").join(name).exists(), "{name}");
    }
    let mut found = Vec::new();
    open_to_others(&place.path("out"), &mut found);
    assert!(found.is_empty(), "{found:?}");
}

/// Tokens and spilled values have no name that one could look at, so the calls that make them are looked at.
#[test]
fn token_and_spill_files_are_for_their_owner_alone_before_their_names_are_gone() {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: there is no strace here");
        return;
    }
    let place = Place::new();
    let data = place.texts("data.jsonl", &TEXTS);
    let trace = place.path("trace");
    let traced =
        format!("umask 0; exec strace -f -e trace=openat,open,creat,mkdir,mkdirat -o '{}' \"$@\"", trace.display());
    let run = place.pocketune("train --iters 1 --batch-size 1 --threads 1 --max-seq-length 32 --memory-budget min");
    run.model(model()).data(&data).into("adapter").through(&traced).succeeds();
    let text = fs::read_to_string(&trace).unwrap();
    let made: Vec<&str> = text.lines().filter(|line| line.contains("O_CREAT") || line.contains("creat(")).collect();
    for what in [".pocketune-tokens-", ".pocketune-spill-", "put-adapter_model.safetensors"] {
        assert!(made.iter().any(|line| line.contains(what)), "{what}: {made:#?}");
    }
    let folders = text.lines().filter(|line| line.contains("mkdir"));
    let wrong: Vec<&str> = made.into_iter().filter(|line| !line.contains(", 0600)")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    let wrong: Vec<&str> = folders.filter(|line| !line.contains(", 0700)")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
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
