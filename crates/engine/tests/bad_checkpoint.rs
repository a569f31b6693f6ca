//! Handmade bad checkpoints, each with the sentence that a user reads. Most bear out their own checksum: whoever can write the file can
//! write that too, so it is no reason to believe the rest.

// Errors of a test are looked at once and dropped.
#![allow(clippy::result_large_err)]

use std::path::Path;

use pocketune::store::{Checkpoints, Files};
use pocketune::train::updates_of;
use sha2::{Digest, Sha256};

const MAGIC: &[u8] = b"pocketune state\n";
const HEADER: &str = r#"{"format":2,"terms":{"seed":"0"},"progress":{"iter":2,"position":8,"trained":588,"skipped":0,"undone":0,"bad_in_a_row":0,"halvings":0,"since":{"losses":0,"counted":2},"spikes":{"mean":0,"variance":0,"count":2},"first_loss":0,"last_loss":0,"valid_before":null,"validated":0,"best":{"lowest":null,"worse":0},"kept":null},"adapter":2,"optimizer":4,"log":0}"#;

/// With the checksum that belongs to it.
fn summed(before: &[u8]) -> Vec<u8> {
    [before, &Sha256::digest(before)[..]].concat()
}

/// A checkpoint that claims a header of `claimed` bytes.
fn claiming(claimed: u64, rest: &[u8]) -> Vec<u8> {
    summed(&[MAGIC, &claimed.to_le_bytes()[..], rest].concat())
}

fn with_header(header: &str) -> Vec<u8> {
    claiming(header.len() as u64, header.as_bytes())
}

/// What is said of the only checkpoint of a run.
fn said(bytes: &[u8]) -> Result<usize, String> {
    let run = tempfile::tempdir().unwrap();
    std::fs::create_dir(run.path().join(".pocketune")).unwrap();
    std::fs::write(run.path().join(".pocketune/0000000001.checkpoint"), bytes).unwrap();
    let mut all = Checkpoints::of(&Files, run.path()).unwrap();
    let updates = match all.newest() {
        Ok(saved) => updates_of(&saved.expect("there is one")),
        Err(error) => Err(error),
    };
    updates.map_err(|error| {
        let error = error.to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
        assert!(error.contains("0000000001.checkpoint"), "{error}");
        error
    })
}

#[test]
fn a_good_one_is_taken() {
    assert_eq!(said(&with_header(HEADER)), Ok(2));
    assert_eq!(said(&with_header(&format!("{HEADER}{}", " ".repeat(4000)))), Ok(2));
}

#[test]
fn files_that_are_no_checkpoints_are_refused() {
    let good = with_header(HEADER);
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let length = HEADER.len() as u64;
    let cases: [(Vec<u8>, &str); 16] = [
        (Vec::new(), "too short"),
        (vec![0; 55], "too short"),
        (MAGIC.to_vec(), "too short"),
        (vec![0; 200], "not a checkpoint"),
        (summed(&[&b"pocketune state\r"[..], &[0; 60]].concat()), "not a checkpoint"),
        (b"PK\x03\x04".repeat(40), "not a checkpoint"),
        (changed(0), "not a checkpoint"),
        (changed(40), "its checksum is another"),
        (changed(good.len() - 1), "its checksum is another"),
        (good[..good.len() - 1].to_vec(), "its"),
        ([&good[..], &[0]].concat(), "its checksum is another"),
        (claiming(length + 1, HEADER.as_bytes()), "its header ends beyond it"),
        (claiming(u64::MAX, HEADER.as_bytes()), "its header ends beyond it"),
        (claiming(u64::MAX - 55, HEADER.as_bytes()), "its header ends beyond it"),
        (claiming((1 << 20) + 1, &vec![b' '; 2 << 20]), "its header ends beyond it"),
        (claiming(1 << 63, HEADER.as_bytes()), "its header ends beyond it"),
    ];
    for (number, (bytes, words)) in cases.into_iter().enumerate() {
        assert!(said(&bytes).is_err_and(|error| error.contains(words)), "case {number}: {:?}", said(&bytes));
    }
}

#[test]
fn headers_that_are_none_are_refused() {
    let replaced = |from: &str, to: &str| {
        assert!(HEADER.contains(from), "{from}");
        HEADER.replace(from, to)
    };
    let cases = [
        (String::new(), "an unknown header"),
        ("{}".into(), "missing field `format`"),
        ("[]".into(), "an unknown header"),
        ("null".into(), "an unknown header"),
        ("\u{0}".into(), "an unknown header"),
        (replaced("\"format\":2", "\"format\":1"), "a checkpoint of format 1, where this program knows 2"),
        (replaced("\"format\":2", "\"format\":-1"), "an unknown header"),
        (replaced("\"format\":2", "\"format\":\"1\""), "an unknown header"),
        (replaced("\"format\":2", "\"format\":4294967296"), "an unknown header"),
        (replaced("\"iter\":2", "\"iter\":-2"), "an unknown header"),
        (replaced("\"iter\":2", "\"iter\":2.5"), "an unknown header"),
        (replaced("\"iter\":2", "\"iter\":1e400"), "an unknown header"),
        (replaced("\"iter\":2,", ""), "missing field `iter`"),
        (replaced("\"iter\":2", "\"iter\":2,\"iter\":3"), "duplicate field `iter`"),
        (replaced("\"position\":8", "\"position\":18446744073709551616"), "an unknown header"),
        (replaced("{\"seed\":\"0\"}", "{\"seed\":0}"), "an unknown header"),
        (replaced("{\"seed\":\"0\"}", "[\"seed\"]"), "an unknown header"),
        (replaced("\"best\":{\"lowest\":null,\"worse\":0}", "\"best\":null"), "an unknown header"),
        (replaced("\"adapter\":2,", ""), "missing field `adapter`"),
        (format!("{HEADER}{HEADER}"), "trailing characters"),
        (format!("{}{}", "[".repeat(5000), "]".repeat(5000)), "an unknown header"),
        (HEADER[..HEADER.len() - 1].into(), "an unknown header"),
    ];
    for (header, words) in cases {
        let answer = said(&with_header(&header));
        assert!(answer.as_ref().is_err_and(|error| error.contains(words)), "{header:.80}: {answer:?}");
    }
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let run = tempfile::tempdir().unwrap();
    let place = run.path().join(".pocketune/0000000001.checkpoint");
    let refused = |what: &str| {
        let error = Checkpoints::of(&Files, run.path()).unwrap().newest().err().map(|error| error.to_string());
        assert!(error.is_some_and(|error| error.contains("0000000001.checkpoint")), "{what}");
    };
    std::fs::create_dir_all(&place).unwrap();
    refused("a folder");
    std::fs::remove_dir(&place).unwrap();
    std::os::unix::fs::symlink(Path::new("/dev/zero"), &place).unwrap();
    refused("a link to a device");
    std::fs::remove_file(&place).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&place).status().unwrap().success());
    refused("a pipe");
}
