//! The store on a disk that fails: at every operation, in every way, what is found afterwards is the old or the new, whole.

// Errors of a test are looked at once and dropped.
#![allow(clippy::result_large_err)]

mod disk;

use std::io::ErrorKind;
use std::path::Path;

use disk::{Disk, Fate, Trouble};
use pocketune::store::{Checkpoints, FolderWriter, settle};

const RUN: &str = "/run";
/// Sectors, and a bit.
const BODY: usize = 2100;
/// Enough that every generation is used again.
const COMMITS: u64 = 5;
/// Draws of what survives of files.
const DRAWS: u64 = 30;

fn body(number: u64) -> Vec<u8> {
    (0..BODY).map(|at| (number as usize * 37 + at * at) as u8).collect()
}

/// Commits until something fails; how many were reported as durable.
fn commits(disk: &Disk, from: u64) -> (u64, Option<pocketune::Error>) {
    let mut done = from;
    let mut all = || {
        let mut checkpoints = Checkpoints::of(disk, Path::new(RUN))?;
        for number in from + 1..=from + COMMITS {
            let header = format!("{{\"number\": {number:4}}}");
            checkpoints.reserve(header.len(), BODY as u64)?;
            checkpoints
                .commit(header.as_bytes(), &mut |out| body(number).chunks(700).try_for_each(|part| out.write(part)))?;
            done = number;
        }
        Ok(())
    };
    let failed = all().err();
    (done, failed)
}

/// The number of the newest checkpoint, which must be whole; 0 where there is none.
fn newest(disk: &Disk) -> u64 {
    let Some(mut saved) = Checkpoints::of(disk, Path::new(RUN)).unwrap().newest().unwrap() else { return 0 };
    let header: serde_json::Value = serde_json::from_slice(&saved.header).unwrap();
    let number = header["number"].as_u64().unwrap();
    let mut bytes = vec![0; BODY];
    saved.read(&mut bytes).unwrap();
    assert!(bytes == body(number), "checkpoint {number} is another's");
    number
}

#[test]
fn a_crash_at_any_operation_leaves_the_last_checkpoint_or_the_next() {
    let whole = Disk::new(Trouble::Never);
    assert_eq!(commits(&whole, 0).0, COMMITS);
    let mut cases = 0;
    for at in 0..whole.operations() {
        let disk = Disk::new(Trouble::Crash(at));
        let (done, failed) = commits(&disk, 0);
        assert!(failed.is_some());
        for data in Fate::all(DRAWS) {
            for names in disk.fates_of_names() {
                let after = disk.after_crash(data, names);
                let found = newest(&after);
                assert!(
                    found == done || found == done + 1,
                    "operation {at}, data {data:?}, names {names:?}: {found} after {done}"
                );
                // And a run goes on from there.
                if cases % 7 == 0 {
                    assert_eq!(commits(&after, found).0, found + COMMITS);
                    assert_eq!(newest(&after), found + COMMITS);
                }
                cases += 1;
            }
        }
    }
    println!("{cases} crashes at {} operations", whole.operations());
}

#[test]
fn a_second_crash_after_the_first_loses_nothing_either() {
    let whole = Disk::new(Trouble::Never);
    commits(&whole, 0);
    let operations = whole.operations();
    for at in (0..operations).step_by(3) {
        let disk = Disk::new(Trouble::Crash(at));
        commits(&disk, 0);
        for seed in 0..6 {
            let fate = if seed % 2 == 0 { Fate::Some(seed) } else { Fate::Torn(seed) };
            let between = disk.after_crash(fate, Fate::Some(seed + 40));
            let found = newest(&between);
            for again in (0..operations).step_by(5) {
                let second = disk.after_crash(fate, Fate::Some(seed + 40));
                second.troubled(Trouble::Crash(again));
                let (done, _) = commits(&second, found);
                let left = newest(&second.after_crash(Fate::Torn(seed + 80), Fate::Some(seed + 120)));
                assert!(
                    left == done || left == done + 1,
                    "operations {at} and {again}, seed {seed}: {left} after {done}"
                );
            }
        }
    }
}

#[test]
fn an_error_at_any_operation_is_named_and_leaves_the_last_checkpoint() {
    let whole = Disk::new(Trouble::Never);
    commits(&whole, 0);
    for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
        for at in 0..whole.operations() {
            for trouble in [Trouble::Once(at, kind), Trouble::From(at, kind)] {
                let disk = Disk::new(trouble);
                let (done, failed) = commits(&disk, 0);
                let Some(error) = failed else {
                    assert!(done == COMMITS, "{trouble:?}");
                    continue;
                };
                let message = error.to_string();
                assert!(message.starts_with("/run/.pocketune") && !message.contains('\n'), "{message}");
                let found = newest(&disk.repaired());
                assert!(found == done || found == done + 1, "{trouble:?}: {found} after {done}");
                // The same error, and then the power goes too.
                let found = newest(&disk.after_crash(Fate::Torn(at as u64), Fate::Some(at as u64)));
                assert!(found == done || found == done + 1, "{trouble:?} and a crash: {found} after {done}");
            }
        }
    }
}

#[test]
fn a_damaged_checkpoint_gives_way_to_the_one_before_and_is_refused_when_it_is_alone() {
    let disk = Disk::new(Trouble::Never);
    commits(&disk, 0);
    let path = |number: u64| format!("/run/.pocketune/{number:010}.checkpoint");
    let spoil = |number: u64, at: usize| {
        let mut file = pocketune::store::Storage::open(&disk, Path::new(&path(number))).unwrap();
        let byte = disk.read(&path(number)).unwrap()[at];
        file.write_at(at as u64, &[byte ^ 1]).unwrap();
    };
    let len = disk.read(&path(COMMITS)).unwrap().len();
    for at in 0..len {
        spoil(COMMITS, at);
        assert_eq!(newest(&disk), COMMITS - 1, "byte {at}");
        spoil(COMMITS, at);
    }
    assert_eq!(newest(&disk), COMMITS);
    (COMMITS - 2..=COMMITS).for_each(|number| spoil(number, len / 2));
    let fault = Checkpoints::of(&disk, Path::new(RUN)).unwrap().newest().err().unwrap().to_string();
    assert!(fault.contains("damaged"), "{fault}");
}

const FILES: [&str; 2] = ["adapter_model.safetensors", "adapter_config.json"];
/// What only adapters of odd content have beside them.
const ODD: &str = "chat_template.jinja";

/// Puts both files in place; whether that was reported as done.
fn put(disk: &Disk, content: u8) -> bool {
    let all = || {
        let mut writer = FolderWriter::over(disk, Path::new(RUN))?;
        for (at, name) in FILES.into_iter().enumerate() {
            writer.file(name, |out| out.write_all(&vec![content; 1300 + at]))?;
        }
        match content % 2 {
            1 => writer.file(ODD, |out| out.write_all(&[content]))?,
            _ => writer.without(ODD),
        }
        writer.commit()
    };
    all().is_ok()
}

/// Whose files are in place, 0 where there are none: all of one writer, whole.
fn in_place(disk: &Disk) -> u8 {
    settle(disk, Path::new(RUN)).unwrap();
    let files = FILES.map(|name| disk.read(&format!("{RUN}/{name}")));
    let content = files[0].as_ref().map_or(0, |bytes| bytes[0]);
    for (at, file) in files.iter().enumerate() {
        let expected = (content != 0).then(|| vec![content; 1300 + at]);
        assert!(*file == expected, "half of an adapter");
    }
    let beside = (content % 2 == 1).then(|| vec![content]);
    assert!(disk.read(&format!("{RUN}/{ODD}")) == beside, "an adapter with another's template");
    content
}

#[test]
fn a_crash_at_any_operation_leaves_both_files_of_an_adapter_old_or_both_new() {
    let mut cases = 0;
    for old in [0, 1] {
        let begun = || {
            let disk = Disk::new(Trouble::Never);
            assert!(old == 0 || put(&disk, old));
            disk
        };
        let whole = begun();
        whole.troubled(Trouble::Never);
        assert!(put(&whole, 2));
        for at in 0..whole.operations() {
            for trouble in
                [Trouble::Crash(at), Trouble::Once(at, ErrorKind::Other), Trouble::From(at, ErrorKind::StorageFull)]
            {
                let disk = begun();
                disk.troubled(trouble);
                let done = put(&disk, 2);
                for data in Fate::all(DRAWS) {
                    for names in disk.fates_of_names() {
                        let after = disk.after_crash(data, names);
                        let found = in_place(&after);
                        cases += 1;
                        assert!(found == 2 || (found == old && !done), "{trouble:?}, {data:?}, {names:?}: {found}");
                        assert!(put(&after, 3) && in_place(&after) == 3);
                    }
                }
                let found = in_place(&disk.repaired());
                assert!(found == 2 || (found == old && !done), "{trouble:?}: {found}");
            }
        }
    }
    println!("{cases} crashes and errors");
}
