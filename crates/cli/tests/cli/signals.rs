//! SIGINT and SIGTERM: the run puts its state on disk, says how to go on and ends; a second signal ends it at once, and neither loses
//! anything.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command};

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run, wait};

fn train<'a>(place: &'a Place, more: &str) -> Run<'a> {
    let run =
        place.pocketune("train --iters 40 --batch-size 2 --max-seq-length 48 --steps-per-report 1 --log-format jsonl");
    run.words("--resume auto").words(more).model(demo()).data(demo_data().join("train.jsonl")).into("adapter")
}

fn send(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// Starts, and sends a signal after some reports.
fn signalled(run: Run, signals: &[&str], reports: usize) -> (Option<i32>, String) {
    let mut child = run.start();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..reports {
        lines.next().unwrap().unwrap();
    }
    signals.iter().for_each(|signal| send(&child, signal));
    let (status, said) = wait(child);
    (status.code(), said.stderr)
}

#[test]
fn a_signal_stops_a_run_that_goes_on_to_the_same_bytes() {
    let whole = Place::new();
    train(&whole, "").succeeds();
    let place = Place::new();
    for (at, signal) in ["-INT", "-TERM", "-INT"].into_iter().enumerate() {
        let more = ["", "--memory-budget min", "--grad-accumulation-steps 1 --threads 1"][at];
        let (code, said) = signalled(train(&place, more), &[signal], 2 + at);
        assert_eq!(code, Some(75), "{said}");
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("Stopped after update ") && last.contains("--resume auto"), "{said}");
    }
    train(&place, "").succeeds();
    assert!(adapters::bytes(&place.path("adapter")) == adapters::bytes(&whole.path("adapter")));
}

#[test]
fn two_signals_end_a_run_at_once_and_what_was_on_disk_is_gone_on_with() {
    let whole = Place::new();
    train(&whole, "--commit-every 1").succeeds();
    let place = Place::new();
    let (code, said) = signalled(train(&place, "--commit-every 1"), &["-INT", "-INT"], 3);
    // The first may have been enough.
    assert!(matches!(code, Some(130 | 75)), "{code:?}: {said}");
    let said = train(&place, "--commit-every 1").succeeds();
    assert!(said.stderr.contains("Resuming after update "), "{}", said.stderr);
    assert!(adapters::bytes(&place.path("adapter")) == adapters::bytes(&whole.path("adapter")));
}

#[test]
fn a_signal_before_the_first_update_leaves_nothing() {
    let place = Place::new();
    let mut child = train(&place, "").start();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    while !said.next().unwrap().unwrap().starts_with("Data: ") {}
    send(&child, "-TERM");
    let (status, _) = wait(child);
    // Ended while it prepared, or stopped as soon as it ran.
    assert!(matches!(status.code(), Some(143 | 75)), "{status}");
    if status.code() == Some(143) {
        assert!(!place.path("adapter").exists(), "something was left");
    }
    train(&place, "").succeeds();
}
