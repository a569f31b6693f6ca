//! The disk that values and states wait on: when it is full, closed to writing, shared with another run or taken away, a run ends with
//! the right bytes or with one line and nothing left behind.

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::{Place, Run, wait};

/// A short run that keeps as little as possible in memory.
fn train<'a>(place: &'a Place, adapter: &str) -> Run<'a> {
    let run = place.pocketune("train --iters 4 --batch-size 2 --threads 2 --memory-budget min --log-format jsonl");
    run.words("--steps-per-report 1 --lora-rank 64").model(demo()).data(demo_data()).into(adapter)
}

fn spill_folder(place: &Place) -> std::path::PathBuf {
    let folder = place.path("spill");
    std::fs::create_dir(&folder).unwrap();
    folder
}

/// What a run that nothing happens to gives.
fn undisturbed(words: &str) -> Vec<u8> {
    let place = Place::new();
    let said = train(&place, "adapter").words(words).succeeds();
    assert!(said.stderr.contains("optimizer on disk"), "nothing waits on disk: {}", said.stderr);
    adapters::bytes(&place.path("adapter"))
}

/// No file of the run may become larger than this: room for the tokens, not for what is spilled, nor for an adapter.
const SMALL_FILES: &str = "ulimit -f 128; exec \"$@\"";

#[test]
fn a_spill_file_that_finds_no_space_stops_the_run_before_its_first_step() {
    let place = Place::new();
    let folder = spill_folder(&place);
    let said = train(&place, "adapter")
        .with("--spill-dir", &folder)
        .through(SMALL_FILES)
        .stops(&[&folder.display().to_string(), "bytes for the spill file"]);
    assert!(said.contains("Data: "), "{said}");
}

#[test]
fn a_run_that_finds_no_space_for_its_state_leaves_the_adapter_that_was_there() {
    let place = Place::new();
    let train = || place.pocketune("train --iters 1 --batch-size 1").model(demo()).data(demo_data()).into("adapter");
    train().through(SMALL_FILES).stops(&["bytes for a checkpoint"]);
    train().succeeds();
    let before = adapters::bytes(&place.path("adapter"));
    train().words("--learning-rate 1e-2").through(SMALL_FILES).stops(&["bytes for a checkpoint"]);
    assert!(adapters::bytes(&place.path("adapter")) == before);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_the_run_before_its_first_step() {
    let place = Place::new();
    let folder = spill_folder(&place);
    let Some(script) = on_a_small_disk(&folder, "128k", "exec \"$@\"") else { return };
    let run = train(&place, "adapter").with("--spill-dir", &folder);
    run.through(&script).stops(&["bytes for the spill file", "No space left"]);
}

/// Runs `script` with a file system of `size` in `folder` that only it sees; `None` where none can be mounted.
#[cfg(target_os = "linux")]
fn on_a_small_disk(folder: &std::path::Path, size: &str, script: &str) -> Option<String> {
    let mount = format!("mount -t tmpfs -o size={size} none '{}'", folder.display());
    let unshared = |script: &str| format!("exec unshare --mount sh -c '{}' sh \"$@\"", script.replace('\'', "'\\''"));
    let probe = std::process::Command::new("sh").arg("-c").arg(unshared(&mount)).output().unwrap();
    if !probe.status.success() {
        println!("skipped: no file system can be mounted here: {}", String::from_utf8_lossy(&probe.stderr));
        return None;
    }
    Some(unshared(&format!("{mount} || exit 7; {script}")))
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_for_the_state_stops_the_run_before_its_first_step() {
    let place = Place::new();
    std::fs::create_dir(place.path("adapter")).unwrap();
    // One checkpoint of 1.3 MB fits, and not the space for the next.
    let Some(script) = on_a_small_disk(&place.path("adapter"), "2m", "exec \"$@\"") else { return };
    let run = place.pocketune("train --iters 4 --batch-size 1").model(demo()).data(demo_data()).into("adapter");
    run.through(&script).stops(&["bytes for a checkpoint", "No space left"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_up_while_a_run_goes_on_does_not_stop_it() {
    fn train(place: &Place) -> Run<'_> {
        let run = place.pocketune("train --iters 150 --batch-size 1 --max-seq-length 32 --commit-every 1");
        run.model(demo()).data(demo_data().join("train.jsonl")).into("adapter")
    }
    let (place, whole) = (Place::new(), Place::new());
    std::fs::create_dir(place.path("adapter")).unwrap();
    // Once three files of state are there, all that comes is written into one of them.
    let script = "\"$@\" & cd adapter; while ! ls .pocketune/*[1-9]?.checkpoint; do kill -0 $! || exit 9; done >/dev/null 2>&1; \
        dd if=/dev/zero of=rest bs=4k; echo full; wait $! || exit 8; cp adapter_model.safetensors ..";
    let Some(script) = on_a_small_disk(&place.path("adapter"), "6m", script) else { return };
    let said = train(&place).through(&script).succeeds();
    assert!(said.stdout.contains("full"), "{}", said.stderr);
    let survived = std::fs::read(place.path("adapter_model.safetensors")).unwrap();
    train(&whole).succeeds();
    assert!(survived == adapters::bytes(&whole.path("adapter")));
}

#[cfg(target_os = "linux")]
#[test]
fn a_spill_folder_that_nobody_can_write_to_is_refused() {
    let place = Place::new();
    // Not even the system's administrator makes files here.
    train(&place, "adapter").words("--spill-dir /proc").refuses(&["/proc/"]);
}

#[test]
fn two_runs_at_once_share_a_spill_folder() {
    let place = Place::new();
    let folder = spill_folder(&place);
    let runs = [("one", "--seed 1"), ("two", "--seed 2")];
    let children = runs.map(|(name, seed)| train(&place, name).words(seed).with("--spill-dir", &folder).start());
    for (child, (name, seed)) in children.into_iter().zip(runs) {
        let (status, said) = wait(child);
        assert!(status.success(), "{name}: {}", said.stderr);
        assert!(adapters::bytes(&place.path(name)) == undisturbed(seed), "{name} was disturbed");
    }
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
}

#[test]
fn a_spill_folder_that_is_removed_meanwhile_does_not_matter() {
    use std::io::{BufRead, BufReader, Read};
    let place = Place::new();
    let folder = spill_folder(&place);
    let mut child = train(&place, "adapter").with("--spill-dir", &folder).start();
    let mut reports = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    // The validation before the first update comes before the first report.
    while !line.contains("\"iter\":1") {
        assert!(reports.read_line(&mut line).unwrap() > 0, "{line}");
    }
    // It is empty, because the files in it have no names.
    std::fs::remove_dir(&folder).unwrap();
    reports.read_to_string(&mut line).unwrap();
    let (status, said) = wait(child);
    assert!(status.success(), "{}", said.stderr);
    assert!(adapters::bytes(&place.path("adapter")) == undisturbed(""));
}
