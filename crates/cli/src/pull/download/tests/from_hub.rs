//! Model folders, from a Hub that is made up.

use std::fs;

use super::server::{Reply, Server};
use super::{names, settings, sha256};
use crate::pull::download::hub;

const LISTING: &str = "/api/models/some/model/revision/main?blobs=true";
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn at(file: &str) -> String {
    format!("/some/model/resolve/{COMMIT}/{file}")
}

/// A listing of these files; those with a hash are kept outside git.
fn listing(files: &[(&str, usize, Option<String>)]) -> Reply {
    let siblings: Vec<String> = files
        .iter()
        .map(|(name, size, hash)| {
            let lfs = hash.as_ref().map_or(String::new(), |hash| format!(r#", "lfs": {{"sha256": "{hash}"}}"#));
            format!(r#"{{"rfilename": "{name}", "size": {size}{lfs}}}"#)
        })
        .collect();
    Reply::of(format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, siblings.join(",")))
}

/// The outcome of pulling `hf:some/model` from `server`, and the names its folder then has.
fn pulled(server: &Server) -> (Result<(), String>, Vec<String>) {
    let into = tempfile::tempdir().expect("a folder");
    let settings = settings(&[("HF_ENDPOINT", &server.address), ("HF_TOKEN", "hf_secret")]);
    let outcome = hub::pull("some", "model", &settings, into.path());
    let folder = into.path().join("some--model");
    if let Ok(path) = &outcome {
        assert_eq!(*path, folder);
    }
    (outcome.map(|_| ()).map_err(|error| error.to_string()), names(&folder))
}

#[test]
fn a_model_in_one_file_is_pulled_and_nothing_that_is_no_part_of_it() {
    let weights = b"weights".as_slice();
    let server = Server::new([
        (
            LISTING,
            listing(&[
                ("config.json", 2, None),
                ("README.md", 9, None),
                ("model.safetensors", 7, Some(sha256(weights))),
                ("model.safetensors.index.json", 2, None),
                ("pytorch_model.bin", 9, Some(sha256(b""))),
                ("tokenizer.json", 2, None),
                ("chat_template.jinja", 3, None),
            ]),
        ),
        (&at("config.json"), Reply::of("{}")),
        (&at("tokenizer.json"), Reply::of("{}")),
        (&at("chat_template.jinja"), Reply::of("{{}")),
        (&at("model.safetensors"), Reply::of(weights)),
    ]);
    let (outcome, names) = pulled(&server);
    assert_eq!(outcome, Ok(()));
    assert_eq!(names, ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(server.asked().last(), Some(&at("config.json")), "a folder with a configuration is complete");
    assert!(server.saw_a_token());
}

#[test]
fn a_model_in_shards_is_pulled_and_shards_that_are_there_are_not_asked_for_again() {
    let table =
        r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#;
    let (one, two) = (b"one".as_slice(), b"second".as_slice());
    let server = Server::new([
        (
            LISTING,
            listing(&[
                ("config.json", 2, None),
                ("model.safetensors.index.json", table.len(), None),
                ("model-1.safetensors", 3, Some(sha256(one).to_uppercase())),
                ("model-2.safetensors", 6, Some(sha256(two))),
            ]),
        ),
        (&at("config.json"), Reply::of("{}")),
        (&at("model.safetensors.index.json"), Reply::of(table)),
        (&at("model-1.safetensors"), Reply::of(one)),
        (&at("model-2.safetensors"), Reply::of(two)),
    ]);
    let into = tempfile::tempdir().expect("a folder");
    let settings = settings(&[("HF_ENDPOINT", &server.address)]);
    let folder = hub::pull("some", "model", &settings, into.path()).expect("fetched");
    let all = ["config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json"];
    assert_eq!(names(&folder), all);
    assert!(!server.saw_a_token());
    let before = server.asked().len();
    fs::write(folder.join("model-2.safetensors"), b"broken").expect("spoilt");
    hub::pull("some", "model", &settings, into.path()).expect("fetched again");
    let asked = server.asked().split_off(before);
    let again = ["model.safetensors.index.json", "model-2.safetensors", "config.json"].map(at);
    assert_eq!(asked[1..], again, "what has a hash and has it right is left alone");
    assert_eq!(
        (names(&folder), fs::read(folder.join("model-2.safetensors")).expect("a shard").as_slice()),
        (all.map(str::to_owned).to_vec(), two)
    );
}

#[test]
fn a_hash_on_the_redirect_is_checked_and_the_token_stays_at_home() {
    for (body, right) in [("weights", true), ("WEIGHTS", false)] {
        let elsewhere = Server::new([("/blob?sig=1", Reply::of(body))]);
        let redirect = Reply::redirect(&format!("{}/blob?sig=1", elsewhere.address))
            .with("X-Linked-Size", "7")
            .with("X-Linked-ETag", format!("\"{}\"", sha256(b"weights")));
        let server = Server::new([
            (
                LISTING,
                Reply::of(format!(
                    r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "config.json"}}, {{"rfilename": "model.safetensors"}}]}}"#
                )),
            ),
            (&at("model.safetensors"), redirect),
            (&at("config.json"), Reply::redirect("/cache/config.json").with("X-Linked-ETag", "\"0123\"")),
            ("/cache/config.json", Reply::of("{}")),
        ]);
        let (outcome, names) = pulled(&server);
        assert!(server.saw_a_token() && !elsewhere.saw_a_token());
        match right {
            true => assert_eq!((outcome, names.len()), (Ok(()), 2)),
            false => {
                let error = outcome.expect_err("another hash");
                assert!(error.starts_with("model.safetensors: its SHA-256 is "), "{error}");
                assert!(names.is_empty(), "{names:?}");
            }
        }
    }
}

#[test]
fn new_weights_never_stand_beside_an_old_configuration() {
    let server = Server::new([
        (LISTING, listing(&[("config.json", 2, None), ("model.safetensors", 3, Some(sha256(b"new")))])),
        (&at("model.safetensors"), Reply::of("new")),
    ]);
    let into = tempfile::tempdir().expect("a folder");
    let folder = into.path().join("some--model");
    fs::create_dir(&folder).expect("created");
    fs::write(folder.join("config.json"), "old").expect("written");
    fs::write(folder.join("model.safetensors"), "old").expect("written");
    let settings = settings(&[("HF_ENDPOINT", &server.address)]);
    let error = hub::pull("some", "model", &settings, into.path()).expect_err("no configuration").to_string();
    assert!(error.ends_with("config.json: the server answered 404: no such model, or no such file in it"), "{error}");
    assert_eq!(names(&folder), ["model.safetensors"]);
}

#[test]
fn a_file_that_breaks_off_is_refused_and_nothing_stays() {
    let server = Server::new([
        (LISTING, listing(&[("config.json", 2, None), ("model.safetensors", 7, None)])),
        (&at("model.safetensors"), Reply { promised: Some(7), ..Reply::of("wei") }),
    ]);
    let (outcome, names) = pulled(&server);
    let error = outcome.expect_err("cut");
    assert!(error.starts_with("model.safetensors: broke off after 3 bytes"), "{error}");
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn a_repository_that_is_no_model_is_refused_before_anything_is_fetched() {
    for (listing, fault) in [
        (listing(&[("model.safetensors", 7, None)]), "the repository has no config.json"),
        (
            listing(&[("config.json", 2, None), ("pytorch_model.bin", 7, None)]),
            "the repository has no model.safetensors",
        ),
        (Reply::of(r#"{"sha": "../x", "siblings": []}"#), "the commit it names is none"),
        (Reply::of("{}"), "missing field `sha`"),
        (Reply::of("<html>"), "expected value at line 1"),
        (Reply::status(401), "the server answered 401: HF_TOKEN is not valid, or"),
        (Reply::status(404), "the server answered 404: no such model"),
        (Reply::status(429), "the server answered 429: too many requests"),
        (Reply::status(503), "the server answered 503"),
    ] {
        let server = Server::new([(LISTING, listing)]);
        let (outcome, names) = pulled(&server);
        let error = outcome.expect_err(fault);
        let start = format!("{}/api/models/some/model/revision/main: ", server.address);
        assert!(error.starts_with(&start) && error.contains(fault) && !error.contains('\n'), "{error}");
        assert!(names.is_empty() && server.asked().len() == 1, "{names:?}");
    }
}

#[test]
fn a_table_of_shards_can_not_name_files_elsewhere() {
    for (shard, fault) in [
        ("../x.safetensors", "is no name of a safetensors file"),
        ("a/b.safetensors", "is no name of a safetensors file"),
        ("weights.bin", "is no name of a safetensors file"),
        ("absent.safetensors", "absent.safetensors is not in the repository"),
    ] {
        let table = format!(r#"{{"weight_map": {{"a": "{shard}"}}}}"#);
        let server = Server::new([
            (
                LISTING,
                listing(&[
                    ("config.json", 2, None),
                    ("model.safetensors.index.json", table.len(), None),
                    ("../x.safetensors", 1, None),
                    ("a/b.safetensors", 1, None),
                    ("weights.bin", 1, None),
                ]),
            ),
            (&at("model.safetensors.index.json"), Reply::of(table)),
        ]);
        let (outcome, names) = pulled(&server);
        let error = outcome.expect_err(fault);
        assert!(error.contains("model.safetensors.index.json: ") && error.contains(fault), "{error}");
        assert_eq!(names, ["model.safetensors.index.json"]);
    }
}
