//! Labelled data: a task is trained on as questions with their answers, and measured by how many are answered right.

use serde_json::json;

use crate::adapters;
use crate::measuring::measured;
use crate::models::{Golden, demo};
use crate::place::Place;

const REVIEWS: &str = "sentence\tlabel\na fine film . \t1\na dull film . \t0\nfine , fine . \t1\ndull and long . \t0\n";

#[test]
fn a_task_is_trained_on_as_its_prompt_with_the_loss_on_the_answer() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let train = |words: &str, data, out: &str| {
        let run = place.pocketune("train --iters 2 --no-shuffle").words(words).model(&model).data(data).into(out);
        run.succeeds();
        adapters::bytes(&place.path(out))
    };
    let with = train("--task sst2", place.file("reviews.tsv", REVIEWS), "task");
    let pairs = [
        ("a fine film .", " great"),
        ("a dull film .", " terrible"),
        ("fine , fine .", " great"),
        ("dull and long .", " terrible"),
    ];
    let lines: Vec<String> = pairs
        .map(|(review, answer)| json!({ "prompt": format!("{review} It was"), "completion": answer }).to_string())
        .to_vec();
    let by_hand = train("--mask-prompt --chat-template none", place.file("pairs.jsonl", lines.join("\n")), "pairs");
    assert!(with == by_hand);
}

#[test]
fn a_model_that_learned_a_task_answers_more_of_it() {
    let place = Place::new();
    let data = place.file("reviews.tsv", REVIEWS);
    let score = |adapter: Option<&str>| {
        let run = place.pocketune("eval --task sst2 --log-format jsonl").model(demo()).data(&data);
        measured(match adapter {
            Some(folder) => run.with("--adapter", place.path(folder)),
            None => run,
        })
    };
    let before = score(None);
    assert_eq!(
        (&before["asked"], &before["by_chance"], &before["most_frequent"]),
        (&json!(4), &json!(0.5), &json!(0.5))
    );
    place
        .pocketune("train --task sst2 --iters 60 --learning-rate 3e-3")
        .model(demo())
        .data(&data)
        .into("adapter")
        .succeeds();
    assert_eq!(score(Some("adapter"))["right"], 4, "{before} before");
}

#[test]
fn rows_that_are_none_of_the_task_are_refused_with_their_line() {
    let place = Place::new();
    let both = |path: std::path::PathBuf, words: &[&str]| {
        place.pocketune("train --task sst2").model(demo()).data(&path).into("out").refuses(words);
        place.pocketune("eval --task sst2").model(demo()).data(&path).refuses(words);
    };
    both(place.file("a.tsv", "sentence\tlabel\nfine\t7\n"), &["a.tsv", "line 2", "sst2 has 0, 1"]);
    both(place.texts("b.jsonl", &["fine"]), &["line 1", "no `sentence`"]);
    both(place.file("c.txt", "fine"), &["line 1", "plain text has no labels"]);
    both(place.file("d.tsv", "sentence\tlabel\n"), &["d.tsv", "no record"]);
    place.pocketune("eval --task mnli").model(demo()).data("a.tsv").misused(&["sst2"]);
}

#[test]
fn a_question_that_is_too_long_loses_its_beginning_and_keeps_its_answer() {
    let place = Place::new();
    let model = Golden::new("llama").folder(&place);
    let long = format!("sentence\tlabel\n{}fine\t1\n", "very ".repeat(20));
    let train = |data, out: &str| {
        let run = place.pocketune("train --task sst2 --iters 1 --max-seq-length 20").model(&model).data(data);
        let said = run.into(out).succeeds().stderr;
        assert!(said.contains("1 records were longer than 20 tokens and were cut"), "{said}");
        adapters::bytes(&place.path(out))
    };
    let whole = train(place.file("long.tsv", &long), "a");
    let other = format!("sentence\tlabel\n{}fine\t1\n", "rather very ".repeat(20));
    assert!(whole == train(place.file("other.tsv", other), "b"));
}
