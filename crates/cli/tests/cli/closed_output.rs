//! A reader that goes away is no reason to fail: nothing panics, and a trained adapter is still written.

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run, wait};

/// Runs with nobody at the other end of standard output.
fn unread(run: Run) {
    let mut child = run.start();
    drop(child.stdout.take());
    let (status, said) = wait(child);
    assert!(status.success(), "{status}: {}", said.stderr);
}

#[test]
fn train_goes_on_and_saves() {
    let place = Place::new();
    let train = |out| place.pocketune("train --iters 3 --steps-per-report 1").model(demo()).data(demo_data()).into(out);
    unread(train("unread"));
    train("read").succeeds();
    assert!(adapters::bytes(&place.path("unread")) == adapters::bytes(&place.path("read")));
}

#[test]
fn nothing_else_minds_either() {
    let place = Place::new();
    unread(place.pocketune("generate --prompt Hi --max-tokens 20").model(demo()));
    unread(place.pocketune("eval").model(demo()).data(demo_data()));
    unread(place.pocketune("inspect").word(demo()));
    unread(place.pocketune("train --help"));
}

#[test]
fn errors_without_a_reader_are_errors_still() {
    let place = Place::new();
    let mut child = place.pocketune("inspect nothing-here").start();
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(wait(child).0.code(), Some(1));
}
