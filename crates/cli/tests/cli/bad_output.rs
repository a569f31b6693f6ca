//! A place for the adapter that can't be written to: refused before the first step, not after the last.

use crate::models::{demo, demo_data};
use crate::place::{Place, Run};

fn train_into<'a>(place: &'a Place, folder: &str) -> Run<'a> {
    place.pocketune("train --iters 2").model(demo()).data(demo_data()).into(folder)
}

#[test]
fn a_file_in_the_folders_place_is_refused_and_kept() {
    let place = Place::new();
    place.file("taken", "precious");
    train_into(&place, "taken").refuses(&["taken", "not a directory"]);
    train_into(&place, "taken/adapter").refuses(&["taken", "not a directory"]);
    assert_eq!(std::fs::read(place.path("taken")).unwrap(), b"precious");
}

#[cfg(unix)]
#[test]
fn a_link_to_nowhere_is_refused() {
    let place = Place::new();
    std::os::unix::fs::symlink(place.path("nowhere"), place.path("link")).unwrap();
    train_into(&place, "link").refuses(&["link", "not a directory"]);
    train_into(&place, "link/adapter").refuses(&["link", "not a directory"]);
}

#[cfg(unix)]
#[test]
fn a_folder_that_may_not_be_written_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    std::fs::create_dir(place.path("locked")).unwrap();
    std::fs::set_permissions(place.path("locked"), PermissionsExt::from_mode(0o555)).unwrap();
    if std::fs::write(place.path("locked/probe"), "").is_ok() {
        println!("skipped: this user writes where nobody may");
        return;
    }
    for folder in ["locked", "locked/adapter", "locked/some/adapter"] {
        train_into(&place, folder).refuses(&["locked", "denied"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_folder_in_which_nobody_can_make_a_file_is_named() {
    train_into(&Place::new(), "/proc/adapter").refuses(&["error: /proc: nothing can be written there"]);
}

#[test]
fn folders_on_the_way_are_made_and_other_files_in_them_are_kept() {
    let place = Place::new();
    place.file("some/where/notes.txt", "precious");
    train_into(&place, "some/where").succeeds();
    train_into(&place, "some/where/else/entirely").succeeds();
    assert_eq!(std::fs::read(place.path("some/where/notes.txt")).unwrap(), b"precious");
    for folder in ["some/where", "some/where/else/entirely"] {
        assert!(place.path(folder).join("adapter_model.safetensors").is_file());
    }
}

#[test]
fn a_run_that_fails_keeps_the_adapter_that_was_there() {
    let place = Place::new();
    train_into(&place, "adapter").succeeds();
    train_into(&place, "adapter")
        .words("--learning-rate 1e38 --batch-size 1 --max-seq-length 16")
        .stops(&["the loss of "]);
}

#[test]
fn a_spill_folder_that_is_not_there_is_refused() {
    let place = Place::new();
    train_into(&place, "adapter").words("--spill-dir nowhere").refuses(&["--spill-dir nowhere", "not a folder"]);
}
