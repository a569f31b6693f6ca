//! A run that is killed leaves its checkpoint and no other file: what it wrote for itself has no name, and the next run takes up the rest.

use std::io::{BufRead, BufReader};

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run};

fn train<'a>(place: &'a Place, budget: &str) -> Run<'a> {
    let run =
        place.pocketune("train --iters 12 --batch-size 2 --max-seq-length 48 --steps-per-report 1 --log-format jsonl");
    run.words("--commit-every 2 --resume auto --memory-budget")
        .word(budget)
        .model(demo())
        .data(demo_data())
        .into("adapter")
}

#[test]
fn a_killed_run_leaves_its_checkpoint_alone_and_the_next_goes_on_to_the_same_bytes() {
    let whole = Place::new();
    train(&whole, "50%").succeeds();
    let expected = adapters::bytes(&whole.path("adapter"));
    // With as little memory as possible, values and optimizer states wait on disk.
    for budget in ["50%", "min"] {
        let place = Place::new();
        let before = place.listing();
        let mut child = train(&place, budget).start();
        let mut reports = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..5 {
            assert!(reports.next().unwrap().unwrap().starts_with('{'));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let hidden = place.path("adapter/.pocketune");
        for (path, _) in place.listing().difference(&before) {
            assert!(path.starts_with(&hidden) || *path == place.path("adapter"), "{} was left", path.display());
        }
        let said = train(&place, budget).succeeds();
        assert!(said.stderr.contains("Resuming after update "), "{}", said.stderr);
        assert!(adapters::bytes(&place.path("adapter")) == expected);
        assert!(!hidden.exists(), "a finished run keeps no checkpoint");
    }
}
