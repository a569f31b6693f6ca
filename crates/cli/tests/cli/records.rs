//! From records to what is trained on: the end of a text, cutting, records that teach nothing, and a validation set beside them.

use std::path::PathBuf;

use serde_json::json;

use crate::adapters;
use crate::models::Golden;
use crate::place::Place;

fn trained(place: &Place, model: &PathBuf, data: &PathBuf, words: &str) -> (Vec<u8>, String) {
    let run = place.pocketune("train --iters 2 --batch-size 1 --no-shuffle").words(words);
    let said = run.model(model).data(data).into("adapter").succeeds();
    (adapters::bytes(&place.path("adapter")), said.stderr)
}

/// A model whose texts end in `|`.
fn with_an_end(place: &Place) -> PathBuf {
    let folder = Golden::new("llama").folder(place);
    place.file("llama/tokenizer_config.json", json!({ "eos_token": "|" }).to_string());
    folder
}

#[test]
fn a_text_gets_an_end_unless_it_has_one() {
    let place = Place::new();
    let model = with_an_end(&place);
    let open = trained(&place, &model, &place.texts("open.jsonl", &["A text.", "Another."]), "");
    let ended = trained(&place, &model, &place.texts("ended.jsonl", &["A text.|", "Another.|"]), "");
    assert!(open.1.contains("Data: 2 records, 17 tokens, the longest 9"), "{}", open.1);
    assert!(open.0 == ended.0);
    // Without an end to add, the same texts are other sequences.
    std::fs::remove_file(place.path("llama/tokenizer_config.json")).unwrap();
    let bare = trained(&place, &model, &place.path("open.jsonl"), "");
    assert!(bare.1.contains("Data: 2 records, 15 tokens, the longest 8"), "{}", bare.1);
    assert!(trained(&place, &model, &place.path("ended.jsonl"), "").0 == open.0);
}

#[test]
fn long_records_are_cut_and_that_is_said() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let texts = ["0123456789abcdef", "short", "0123456789!"];
    let (cut, said) = trained(&place, &model, &place.texts("long.jsonl", &texts), "--max-seq-length 10");
    assert!(said.contains("Data: 3 records, 25 tokens, the longest 10"), "{said}");
    assert!(said.contains("2 records were longer than 10 tokens and were cut (--max-seq-length"), "{said}");
    let by_hand = place.texts("cut.jsonl", &["0123456789", "short", "0123456789"]);
    let (same, said) = trained(&place, &model, &by_hand, "");
    assert!(cut == same);
    assert!(!said.contains("were cut"), "{said}");
}

#[test]
fn records_that_teach_nothing_are_left_out_and_that_is_said() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let (some, said) = trained(&place, &model, &place.texts("some.jsonl", &["a", "two", "b", "three"]), "");
    assert!(said.contains("Data: 2 records, 8 tokens"), "{said}");
    assert!(said.contains("2 records in which nothing is to be predicted were left out"), "{said}");
    assert!(some == trained(&place, &model, &place.texts("rest.jsonl", &["two", "three"]), "").0);
}

#[test]
fn blank_lines_and_windows_line_ends_do_not_matter() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let plain = place.file("plain.jsonl", "{\"text\": \"one one\"}\n{\"text\": \"two two\"}\n");
    let odd = place.file("odd.jsonl", "\u{FEFF}{\"text\": \"one one\"}\r\n\r\n  \n{\"text\": \"two two\"}");
    assert!(trained(&place, &model, &plain, "").0 == trained(&place, &model, &odd, "").0);
}

#[test]
fn a_validation_set_is_measured_before_and_after_and_never_trained_on() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let train = place.texts("data/train.jsonl", &["aaaa bbbb aaaa", "bbbb aaaa bbbb"]);
    place.texts("data/valid.jsonl", &["aaaa aaaa bbbb bbbb"]);
    let (with, said) = trained(&place, &model, &place.path("data"), "--learning-rate 1e-2");
    assert!(said.contains("Iter 0: Val loss ") && said.contains("Iter 2: Val loss "), "{said}");
    let (without, said) = trained(&place, &model, &train, "--learning-rate 1e-2");
    assert!(!said.contains("Val loss"), "{said}");
    assert!(with == without);
}
