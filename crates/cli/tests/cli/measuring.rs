//! `pocketune eval`: what it reads, and how it says what it found.

use serde_json::Value;

use crate::models::{Golden, demo, demo_data};
use crate::place::{Place, Run};

/// What an `eval --log-format jsonl` found.
pub fn measured(run: Run) -> Value {
    let said = run.succeeds();
    assert_eq!(said.stdout.lines().count(), 1, "{}", said.stdout);
    serde_json::from_str(&said.stdout).unwrap()
}

fn loss(run: Run) -> f64 {
    measured(run)["loss"].as_f64().unwrap()
}

#[test]
fn perplexity_is_the_exponential_of_the_loss_and_words_agree_with_json() {
    let place = Place::new();
    let eval = |words: &str| place.pocketune(&format!("eval {words}")).model(demo()).data(demo_data());
    let found = measured(eval("--log-format jsonl"));
    let value = |name: &str| found[name].as_f64().unwrap();
    assert!((value("perplexity") - value("loss").exp()).abs() < 1e-9);
    assert_eq!(
        eval("").succeeds().stdout,
        format!(
            "loss {:.4}, perplexity {:.3}, next-token accuracy {:.2} %, over {} tokens\n",
            value("loss"),
            value("perplexity"),
            100.0 * value("accuracy"),
            found["tokens"]
        )
    );
}

#[test]
fn the_loss_of_a_set_is_the_mean_over_its_tokens_whatever_the_batches() {
    let (place, golden) = (Place::new(), Golden::new("llama"));
    let model = golden.folder(&place);
    let texts = ["A short one.", "Another, somewhat longer one.", "Three!"];
    let eval = |words: &str| place.pocketune(&format!("eval --log-format jsonl --precision f32 {words}")).model(&model);
    let sum: f64 =
        texts.iter().map(|text| loss(eval("").data(place.texts("one.jsonl", &[text]))) * (text.len() - 1) as f64).sum();
    let mean = sum / texts.iter().map(|text| text.len() - 1).sum::<usize>() as f64;
    let all = place.texts("all.jsonl", &texts);
    for words in ["--batch-size 1", "--batch-size 2", "--batch-size 3", "--batch-size 9"] {
        let found = loss(eval(words).data(&all));
        assert!((found - mean).abs() < 1e-6, "{words}: {found}, not {mean}");
    }
}

#[test]
fn of_a_folder_the_validation_set_is_measured_and_nothing_else_is_needed() {
    let (place, golden) = (Place::new(), Golden::new("llama"));
    let model = golden.folder(&place);
    let eval = || place.pocketune("eval --log-format jsonl").model(&model);
    let valid = place.texts("both/valid.jsonl", &["What is measured."]);
    let train = place.texts("train/train.jsonl", &["What is trained on."]);
    let (want_valid, want_train) = (loss(eval().data(valid)), loss(eval().data(&train)));
    assert_ne!(want_valid, want_train);
    assert_eq!(loss(eval().data(place.path("both"))), want_valid);
    place.file("both/train.jsonl", "not a record, and none of eval's business");
    assert_eq!(loss(eval().data(place.path("both"))), want_valid);
    assert_eq!(loss(eval().data(place.path("train"))), want_train);
}

#[test]
fn a_plain_text_file_is_as_many_records_as_it_takes() {
    let (place, golden) = (Place::new(), Golden::new("llama"));
    let model = golden.folder(&place);
    let text = "The quick brown fox\njumps over the lazy dog.";
    let found = |words: &str, data| {
        measured(place.pocketune(&format!("eval --log-format jsonl {words}")).model(&model).data(data))
    };
    let whole = found("", place.file("text.txt", text));
    assert_eq!(whole, found("", place.texts("text.jsonl", &[text])));
    let cut = found("--max-seq-length 10", place.path("text.txt"));
    let pieces: Vec<&str> = (0..text.len()).step_by(10).map(|at| &text[at..(at + 10).min(text.len())]).collect();
    assert_eq!(cut, found("", place.texts("cut.jsonl", &pieces)));
    assert_eq!(cut["tokens"], text.len() - pieces.len());
}
