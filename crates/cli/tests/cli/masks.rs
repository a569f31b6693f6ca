//! `data preview` shows what the loss is taken on, and what all records come to.

use serde_json::json;

use crate::models::chatty;
use crate::place::Place;

fn preview(place: &Place, words: &str, data: &str) -> String {
    let path = place.file("data.jsonl", data);
    place.pocketune("data preview").words(words).model(place.path("llama")).data(path).succeeds().stdout
}

/// What stands between the marks, without the borders of tokens.
fn counted(shown: &str) -> Vec<String> {
    let pieces = shown.split('⟦').skip(1);
    pieces.map(|piece| piece.split('⟧').next().unwrap().replace(['|', '\n'], "")).collect()
}

#[test]
fn the_words_that_count_are_between_marks() {
    let place = Place::new();
    chatty(&place);
    let chat = json!({"messages": [
        {"role": "user", "content": "A"}, {"role": "assistant", "content": "B c"},
        {"role": "user", "content": "D"}, {"role": "assistant", "content": "E"}
    ]})
    .to_string();
    // In this model no token ends a turn: the words behind an answer belong to it.
    let answers = ["B c<im_end>\\n", "E<im_end>\\n"];
    let shown = |mask: &str| counted(&preview(&place, mask, &chat));
    assert_eq!(shown("--mask-prompt"), answers);
    assert_eq!(shown("--assistant-loss-only"), answers);
    assert_eq!(shown("--mask-prompt all"), answers);
    assert_eq!(shown("--mask-prompt last"), answers[1..]);
    let all = shown("--mask-prompt none");
    assert!(all.len() == 1 && all[0].starts_with("im_start>system"), "{all:?}");
}

#[test]
fn records_are_counted_and_measured() {
    let place = Place::new();
    chatty(&place);
    let texts: String = (1..=9).map(|length| format!("{}\n", json!({ "text": "x".repeat(length) }))).collect();
    let said = preview(&place, "--records 2 --max-seq-length 8 --batch-size 2", &texts);
    assert_eq!(said.matches("line ").count(), 2, "{said}");
    assert!(said.contains("line 2: 2 tokens, loss on 1\nx⟦x⟧\n"), "{said}");
    for words in [
        "8 records, 43 tokens, loss on 35 of them (81.4 %); 1 cut, 1 with nothing to predict",
        "lengths 2 to 8, median 6, mean 5.4",
        "a batch of 2 has room for 16 tokens and fills 67.2 % of it; nothing is padded.",
    ] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
}

#[test]
fn nothing_that_a_record_holds_reaches_the_terminal_as_a_command() {
    let place = Place::new();
    chatty(&place);
    let said = preview(&place, "", &json!({ "text": "a\u{1b}[31m\r b" }).to_string());
    assert!(!said.contains('\u{1b}') && said.contains("\\u{1b}"), "{said}");
}
