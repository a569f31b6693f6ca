//! A short slice of every target's inputs breaks no rule, and good files are accepted; the long runs are made by hand (SECURITY.md).

use pocketune_fuzz::drive::{drive, judge};
use pocketune_fuzz::measure::Counting;
use pocketune_fuzz::targets;

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn every_seed_but_the_bad_one_is_a_good_file() {
    for target in &targets::ALL {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let leads_out = target.name == "index" && number == 1;
            let (verdict, _) = judge(target, &seed.bytes);
            assert_eq!(verdict, Ok(!leads_out), "seed {number} of {}", target.name);
        }
    }
}

#[test]
fn damaged_files_break_no_rule() {
    let folder = tempfile::tempdir().unwrap();
    for target in &targets::ALL {
        let report = drive(target, 2026, 4000, folder.path()).unwrap();
        assert!(report.faults.is_empty(), "{}: {:?}", target.name, report.faults);
        assert!(report.accepted > 0, "{}: nothing was accepted, so little was tested", target.name);
    }
}
