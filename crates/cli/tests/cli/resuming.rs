//! `--resume`: a run that stopped anywhere and goes on ends with the bytes of one that never stopped; one that starts anew from the adapter
//! does not. With whatever else differs, it says so and touches nothing.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run};

/// A short run of the built-in model; words replace those that stand for the same.
fn train<'a>(place: &'a Place, words: &str, more: &str) -> Run<'a> {
    let given: Vec<&str> = words.split_whitespace().chain(more.split_whitespace()).collect();
    let mut run = place.pocketune("train --log-format jsonl --lr-scheduler cosine").words(words).words(more);
    let usual = ["--iters 6", "--batch-size 2", "--max-seq-length 40", "--learning-rate 1e-2", "--steps-per-report 1"];
    for option in usual.into_iter().filter(|option| !given.contains(&option.split(' ').next().unwrap())) {
        run = run.words(option);
    }
    run.model(demo()).data(data()).into("adapter")
}

fn data() -> PathBuf {
    demo_data().join("train.jsonl")
}

/// Stops after the first update: no other fits into the time.
const BRIEF: &str = "--time-limit 1ms";

/// A run that has done one update, with these words.
fn stopped(place: &Place, words: &str) {
    // The first update of a process is done whatever the limit, so that runs get on.
    train(place, words, BRIEF).stops_early();
}

fn bytes(place: &Place) -> Vec<u8> {
    adapters::bytes(&place.path("adapter"))
}

#[test]
fn stopped_after_every_update_it_ends_with_the_same_bytes_under_any_plan_and_a_cold_start_does_not() {
    let methods = [
        "--optimizer adamw",
        "--optimizer adamw8bit",
        "--optimizer sgd",
        "--optimizer adamw --grad-accumulation-steps 2",
        "--optimizer adamw8bit --max-grad-norm 0.1",
        "--optimizer adamw --no-shuffle --weight-decay 0.1",
    ];
    // What changes from process to process and must not matter.
    let plans = [
        "--threads 1",
        "--memory-budget min",
        "--threads 2 --grad-checkpoint block",
        "--memory-budget 50%",
        "--memory-budget min --threads 2",
    ];
    for method in methods {
        let whole = Place::new();
        train(&whole, method, "").succeeds();
        let place = Place::new();
        for (at, plan) in plans.into_iter().enumerate() {
            let said = train(&place, method, plan).words(BRIEF).words("--resume auto").stops_early();
            assert!(said.stderr.contains(&format!("Stopped after update {} of 6", at + 1)), "{}", said.stderr);
            assert_eq!(said.stdout.lines().count(), 1, "more than one update: {}", said.stdout);
            let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
            let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
            assert!(held <= planned, "{method} {plan}: {held} bytes held, {planned} planned");
        }
        train(&place, method, "--resume auto").succeeds();
        assert!(bytes(&place) == bytes(&whole), "{method}");
        assert!(!place.path("adapter/.pocketune").exists(), "a finished run keeps no checkpoint");
        // From the adapter alone, without the optimizer's state, the position and the schedule.
        let cold = Place::new();
        let half =
            cold.pocketune("train --iters 3 --batch-size 2 --max-seq-length 40 --learning-rate 1e-2").words(method);
        half.model(demo()).data(data()).into("half").succeeds();
        let rest =
            cold.pocketune("train --iters 3 --batch-size 2 --max-seq-length 40 --learning-rate 1e-2").words(method);
        rest.with("--init-adapter", cold.path("half")).model(demo()).data(data()).into("adapter").succeeds();
        assert!(bytes(&cold) != bytes(&whole), "{method}: a cold start is the same");
    }
}

#[test]
fn packed_runs_those_that_keep_the_best_adapter_and_every_kind_go_on_to_the_same_bytes() {
    let methods = [
        ("--pack --max-seq-length 120", 2),
        ("--val-split 0.2 --save-best --steps-per-eval 2", 3),
        ("--val-split 0.2 --early-stopping 1 --steps-per-eval 1 --learning-rate 0.5", 1),
        ("--epochs 0.3 --pack --max-seq-length 120", 1),
        ("--lora-dropout 0.2 --lora-plus 4 --use-rslora", 3),
        ("--fine-tune-type dora --lora-rank-pattern q_proj=2", 3),
        ("--lora-targets embed_tokens,lm_head,q_proj --grad-accumulation-steps 2", 2),
    ];
    for (method, stops) in methods {
        let (whole, place) = (Place::new(), Place::new());
        let run = |place, more| match method.contains("--epochs") {
            true => place_with_epochs(place, method, more),
            false => train(place, method, more),
        };
        run(&whole, "").succeeds();
        for plan in ["--threads 2", "--memory-budget min", "--threads 1"].into_iter().take(stops) {
            run(&place, BRIEF).words(plan).words("--resume auto").stops_early();
        }
        run(&place, "--resume auto").succeeds();
        assert!(bytes(&place) == bytes(&whole), "{method}");
    }
}

/// As [`train`], by epochs.
fn place_with_epochs<'a>(place: &'a Place, words: &str, more: &str) -> Run<'a> {
    let run = place.pocketune("train --log-format jsonl --batch-size 2 --learning-rate 1e-2").words(words).words(more);
    run.model(demo()).data(data()).into("adapter")
}

#[test]
fn gradients_that_wait_for_each_other_to_stop_in_time_give_the_same_bytes() {
    let (usual, waiting) = (Place::new(), Place::new());
    assert!(!train(&usual, "--commit-within 10m", "").succeeds().stderr.contains("\n  gradients "));
    let said = train(&waiting, "--commit-within 1ms", "").succeeds();
    assert!(said.stderr.contains("\n  gradients "), "{}", said.stderr);
    assert!(bytes(&usual) == bytes(&waiting));
}

#[test]
fn reports_go_on_as_if_nothing_had_happened() {
    let losses = |said: &str| -> Vec<String> {
        let lines = said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines.map(|line| format!("{} {} {}", line["iter"], line["loss"], line["trained_tokens"])).collect()
    };
    let whole = Place::new();
    let expected = train(&whole, "--steps-per-report 2", "").succeeds().stdout;
    let place = Place::new();
    let mut found = String::new();
    for _ in 0..5 {
        found += &train(&place, "--steps-per-report 2 --resume auto", BRIEF).stops_early().stdout;
    }
    found += &train(&place, "--steps-per-report 2 --resume auto", "").succeeds().stdout;
    assert_eq!(losses(&found), losses(&expected));
}

#[test]
fn another_folder_can_be_gone_on_with_and_stays_as_it_is() {
    let whole = Place::new();
    train(&whole, "", "").succeeds();
    let place = Place::new();
    stopped(&place, "");
    std::fs::rename(place.path("adapter"), place.path("earlier")).unwrap();
    let before = place.listing();
    train(&place, "", "").with("--resume", place.path("earlier")).succeeds();
    assert!(bytes(&place) == bytes(&whole));
    assert!(before.is_subset(&place.listing()), "the earlier run was touched");
}

#[test]
fn a_run_that_waits_is_not_overwritten_and_none_is_named_where_none_waits() {
    let place = Place::new();
    train(&place, "", "").with("--resume", place.path("nowhere")).refuses(&["nowhere", "no run waits here"]);
    stopped(&place, "");
    train(&place, "", "").refuses(&["--adapter-path", "stopped after update 1", "--resume auto"]);
    std::fs::remove_dir_all(place.path("adapter/.pocketune")).unwrap();
    train(&place, "", "").succeeds();
}

#[test]
fn what_differs_is_named_and_goes_on_only_where_that_makes_sense() {
    let place = Place::new();
    stopped(&place, "--lora-rank 4");
    let go_on = |words: &str| train(&place, "--lora-rank 4 --resume auto", words);
    for (words, named) in [
        ("--seed 1", "seed 0, not 1"),
        ("--batch-size 3", "batch-size 2, not 3"),
        ("--learning-rate 2e-2", "learning-rate 0.01, not 0.02"),
        ("--max-seq-length 30", "other data"),
        ("--precision f32", "precision bf16"),
    ] {
        if named.starts_with("precision") && !has_bf16() {
            continue;
        }
        go_on(words).stops(&[named, "--allow-changed"]);
    }
    for (words, named) in [("--optimizer sgd", "optimizer AdamW, not Sgd"), ("--lora-alpha 3", "lora-alpha 8, not 3")] {
        go_on(words).words("--allow-changed").stops(&[named, "can't be gone on with"]);
    }
    let other = place.file("other.gguf", flipped(&demo()));
    let run = place
        .pocketune("train --iters 6 --batch-size 2 --max-seq-length 40 --learning-rate 1e-2 --lr-scheduler cosine");
    run.words("--lora-rank 4 --resume auto --allow-changed")
        .model(other)
        .data(data())
        .into("adapter")
        .stops(&["another model"]);
    let said = go_on("--iters 3 --learning-rate 2e-2 --allow-changed").succeeds();
    assert!(said.stdout.lines().last().unwrap().contains("\"iter\":3"), "{}", said.stdout);
}

/// The file with one bit of its first tensor changed.
fn flipped(model: &std::path::Path) -> Vec<u8> {
    let files = pocketune_formats::ModelFiles::open(model).unwrap();
    let mut bytes = files.files()[0].bytes().to_vec();
    bytes[files.tensors().next().unwrap().offset + 17] ^= 1;
    bytes
}

fn has_bf16() -> bool {
    let place = Place::new();
    place.pocketune("train --iters 1").model(demo()).data(data()).into("a").succeeds().stderr.contains(" in Bf16")
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_one_before() {
    let whole = Place::new();
    train(&whole, "", "").succeeds();
    let place = Place::new();
    let generations = |place: &Place| {
        let hidden = std::fs::read_dir(place.path("adapter/.pocketune")).unwrap().map(|entry| entry.unwrap().path());
        let mut found: Vec<PathBuf> = hidden.filter(|path| path.extension().is_some()).collect();
        found.sort();
        found
    };
    for _ in 0..3 {
        train(&place, "--resume auto", BRIEF).stops_early();
    }
    let found = generations(&place);
    assert_eq!(found.len(), 2, "two generations are kept: {found:?}");
    let spoil = |path: &PathBuf| {
        let mut bytes = std::fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle..].fill(0);
        std::fs::write(path, bytes).unwrap();
    };
    spoil(&found[1]);
    let said = train(&place, "--resume auto", BRIEF).stops_early();
    assert!(said.stderr.contains("Resuming after update 2"), "{}", said.stderr);
    let found = generations(&place);
    assert_eq!(found.len(), 2, "the damaged one is replaced first: {found:?}");
    found.iter().for_each(spoil);
    train(&place, "--resume auto", "").refuses(&[".checkpoint", "damaged"]);
    generations(&place).iter().for_each(|path| std::fs::remove_file(path).unwrap());
    train(&place, "--resume auto", "").succeeds();
    assert!(bytes(&place) == bytes(&whole));
}

#[cfg(unix)]
#[test]
fn only_their_owner_reads_checkpoints_and_adapters() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    stopped(&place, "");
    for entry in std::fs::read_dir(place.path("adapter/.pocketune")).unwrap().map(|entry| entry.unwrap()) {
        assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o077, 0, "{}", entry.path().display());
    }
    train(&place, "--resume auto", "").succeeds();
    for file in adapters::FILES {
        let mode = std::fs::metadata(place.path("adapter").join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file}");
    }
}

#[test]
fn two_runs_do_not_write_to_one_folder() {
    let place = Place::new();
    let mut first = train(&place, "--iters 100000", "").start();
    let mut reports = BufReader::new(first.stdout.take().unwrap()).lines();
    reports.next().unwrap().unwrap();
    train(&place, "--resume auto", "").fails(&["--adapter-path", "another run writes here"]);
    first.kill().unwrap();
    first.wait().unwrap();
}
