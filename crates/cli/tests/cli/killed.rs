//! A run that is killed leaves nothing behind: what it wrote for itself has no name.

use std::io::{BufRead, BufReader};

use crate::models::{demo, demo_data};
use crate::place::Place;

#[test]
fn a_killed_run_leaves_no_file() {
    // With as little memory as possible, values and optimizer states wait on disk.
    for budget in ["50%", "min"] {
        let place = Place::new();
        let before = place.listing();
        let train = place.pocketune("train --iters 100000 --steps-per-report 1 --log-format jsonl --memory-budget");
        let mut child = train.word(budget).model(demo()).data(demo_data()).into("adapter").start();
        let mut reports = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..2 {
            assert!(reports.next().unwrap().unwrap().starts_with('{'));
        }
        assert_eq!(place.listing(), before, "while it runs");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(place.listing(), before);
    }
}
