//! Data that can't be used: one line with the file, the line and what is wrong with it, and nothing left behind.

use crate::models::{Golden, demo};
use crate::place::{Place, Run};

/// Both commands that read data.
fn readers(place: &Place) -> [Run<'_>; 2] {
    [place.pocketune("train --iters 2").model(demo()).into("out"), place.pocketune("eval").model(demo())]
}

fn refused(place: &Place, name: &str, content: impl AsRef<[u8]>, words: &[&str]) {
    let path = place.file(name, content);
    for run in readers(place) {
        run.data(&path).refuses(&[&[name], words].concat());
    }
}

#[test]
fn a_data_set_without_records_is_refused() {
    let place = Place::new();
    refused(&place, "empty.jsonl", "", &["no record"]);
    refused(&place, "blank.jsonl", "\n  \n\r\n", &["no record"]);
    refused(&place, "empty.txt", "", &["empty"]);
    let short = place.texts("short.jsonl", &["a", "b"]);
    let model = Golden::new("llama").folder(&place);
    let words = ["short.jsonl", "all of its 2 records", "have nothing to predict"];
    place.pocketune("train").model(&model).data(&short).into("out").refuses(&words);
    place.pocketune("eval").model(&model).data(&short).refuses(&words);
}

#[test]
fn every_bad_line_is_named_by_its_number_and_its_fault() {
    let place = Place::new();
    let third = |line: &str| format!("{{\"text\": \"one\"}}\n\n{line}\n{{\"text\": \"four\"}}\n");
    for (line, fault) in [
        ("{\"text\": \"no end", "not JSON"),
        ("not JSON at all", "not JSON"),
        ("{\"prompt\": \"a\", \"reply\": \"b\"}", "it has `prompt`, `reply`, and none of `text`"),
        ("{\"text\": 7}", "`text` is a number"),
        ("{\"text\": \"\"}", "`text` is empty"),
        ("{\"text\": \"a\", \"messages\": []}", "both `text` and `messages`"),
        ("{\"messages\": [{\"role\": \"user\"}]}", "no `content`"),
        ("[1, 2]", "a record is an object"),
        ("null", "a record is an object"),
    ] {
        refused(&place, "data.jsonl", third(line), &["line 3", fault]);
    }
}

#[test]
fn bytes_that_are_no_text_are_refused_with_their_line() {
    let place = Place::new();
    refused(&place, "data.jsonl", b"{\"text\": \"one\"}\n{\"text\": \"\xFF\xFE\"}\n", &["line 2", "not UTF-8"]);
    refused(&place, "data.txt", b"one \xC0\x80 two", &["line 1", "not UTF-8"]);
    refused(&place, "data.jsonl", &demo_bytes()[..200], &["line 1"]);
}

fn demo_bytes() -> Vec<u8> {
    std::fs::read(demo()).unwrap()
}

#[test]
fn data_that_is_not_there_is_refused() {
    let place = Place::new();
    for run in readers(&place) {
        run.data("nowhere.jsonl").refuses(&["nowhere.jsonl", "No such file"]);
    }
    std::fs::create_dir(place.path("folder")).unwrap();
    for run in readers(&place) {
        run.data(place.path("folder")).refuses(&["train.jsonl", "No such file"]);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_that_nobody_writes_to_does_not_hold_the_program_up() {
    let place = Place::new();
    let pipe = place.fifo("pipe.jsonl");
    for run in readers(&place) {
        run.data(&pipe).refuses(&["pipe.jsonl", "not a regular file"]);
    }
    for run in readers(&place) {
        run.data("/dev/null").refuses(&["/dev/null", "not a regular file"]);
    }
}

#[test]
fn a_fault_in_the_validation_set_is_named_with_its_file() {
    let place = Place::new();
    place.texts("data/train.jsonl", &["A good record."]);
    place.file("data/valid.jsonl", "{\"text\": \"one\"}\n{\n");
    for run in readers(&place) {
        run.data(place.path("data")).refuses(&["valid.jsonl", "line 2"]);
    }
}

#[test]
fn a_token_that_the_model_does_not_know_is_refused_with_its_line() {
    let place = Place::new();
    let model = Golden::new("llama3").folder(&place);
    // A tokenizer may know more than the model: here all of ASCII beside an embedding of 96 tokens.
    Golden::new("llama").folder(&place);
    std::fs::copy(place.path("llama/tokenizer.json"), model.join("tokenizer.json")).unwrap();
    let train = || place.pocketune("train --iters 1").model(&model);
    train().data(place.texts("known.jsonl", &["ONLY CAPITALS"])).into("fine").succeeds();
    let data = place.texts("data.jsonl", &["ONLY CAPITALS", "and others"]);
    train().data(data).into("out").refuses(&["line 2", "token 97", "96"]);
    place.pocketune("generate -p small").model(&model).refuses(&["--prompt", "token 115", "96"]);
}

/// A file of 30 bad lines and two good ones.
fn mostly_bad(place: &Place) -> std::path::PathBuf {
    let bad: String = (0..30).map(|number| format!("{{\"text\": {number}}}\n")).collect();
    place.file("bad.jsonl", format!("{{\"text\": \"good\"}}\n{bad}{{\"text\": \"good too\"}}\n"))
}

#[test]
fn many_bad_lines_are_counted_and_the_first_twenty_named() {
    let place = Place::new();
    let path = mostly_bad(&place);
    for run in readers(&place) {
        let said = run.data(&path).stops(&["bad.jsonl", "30 bad lines", "of 32", "line 2", "--skip-bad-lines"]);
        let named: Vec<&str> = said.lines().filter(|line| line.starts_with("  line ")).collect();
        assert_eq!(named.len(), 20, "{said}");
        assert_eq!(named[19], "  line 21: `text` is a number, not a string");
        assert!(said.contains("\n  and 10 more\n"), "{said}");
    }
}

#[test]
fn bad_lines_are_left_out_where_that_is_asked_for() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let train = |data, out| {
        let run = place.pocketune("train --iters 2 --skip-bad-lines").model(&model).data(data).into(out);
        (run.succeeds().stderr, crate::adapters::bytes(&place.path(out)))
    };
    let (said, with) = train(mostly_bad(&place), "a");
    assert!(said.contains("  line 2: ") && said.contains("Data: 30 bad lines were left out"), "{said}");
    let (said, without) = train(place.texts("good.jsonl", &["good", "good too"]), "b");
    assert!(!said.contains("bad lines"), "{said}");
    assert!(with == without);
    let none = place.file("none.jsonl", "x\ny\n");
    place
        .pocketune("train --skip-bad-lines")
        .model(&model)
        .data(none)
        .into("c")
        .refuses(&["none.jsonl", "2 bad lines"]);
}

#[test]
fn faults_of_a_folder_are_named() {
    let place = Place::new();
    place.texts("two/train.jsonl", &["one"]);
    place.file("two/train.csv", "text\none\n");
    for run in readers(&place) {
        run.data(place.path("two")).refuses(&["train.jsonl", "train.csv", "both"]);
    }
    let train = |words: &str| place.pocketune("train").words(words).model(demo()).into("out");
    train("--test").data(place.texts("one/train.jsonl", &["a b c"]).parent().unwrap()).refuses(&["--test", "no test"]);
    place.texts("one/dev.jsonl", &["a b c"]);
    train("--val-split 0.1").data(place.path("one")).refuses(&["--val-split", "dev.jsonl already"]);
}
