//! Files that change or lie elsewhere: a model that becomes shorter while it is in use, and links out of a model's folder.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::place::{Place, wait};

fn repository(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

#[test]
fn a_model_that_becomes_shorter_while_it_is_used_ends_the_run_with_one_line() {
    let place = Place::new();
    let model = place.file("m.gguf", fs::read(repository("demo/model.gguf")).unwrap());
    let data =
        place.texts("data.jsonl", &["The keeper of the light is called Mira.", "She lives in the old lighthouse."]);
    let words = "train --iters 100000 --steps-per-report 1 --batch-size 1 --threads 1 --memory-budget 200MiB";
    let mut run = place.pocketune(words).model(&model).data(data).into("adapter").start();
    // The first report: steps are running.
    let mut byte = [0];
    run.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    OpenOptions::new().write(true).open(&model).unwrap().set_len(4096).unwrap();
    let (status, said) = wait(run);
    assert_eq!(status.code(), Some(1), "{}", said.stderr);
    let last = said.stderr.lines().last().unwrap();
    assert!(last.starts_with("error: a file that is in use became shorter"), "{}", said.stderr);
    assert!(!place.path("adapter/adapter_model.safetensors").exists());
}

#[test]
fn links_out_of_a_models_folder_are_followed_where_its_user_says_so_alone() {
    let place = Place::new();
    let golden = repository("crates/engine/tests/golden/qwen2");
    let folder = place.path("model");
    fs::create_dir(&folder).unwrap();
    for entry in fs::read_dir(&golden).unwrap().map(|entry| entry.unwrap()) {
        symlink(entry.path().canonicalize().unwrap(), folder.join(entry.file_name())).unwrap();
    }
    let plan = "plan --batch-size 1 --max-seq-length 16 --threads 1 --memory-budget 200MiB";
    place.pocketune(plan).model(&folder).refuses(&["config.json: a link that leads out of its folder, to "]);
    place.pocketune(plan).words("--follow-links").model(&folder).succeeds();
    // A link that is named itself is meant.
    let link = place.path("link");
    symlink(&golden, &link).unwrap();
    place.pocketune(plan).model(&link).succeeds();
}
