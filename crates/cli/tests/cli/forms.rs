//! The same records in every form that is read give the same adapter, and a file can be split.

use std::path::PathBuf;

use serde_json::json;

use crate::adapters;
use crate::models::chatty;
use crate::place::Place;

/// The adapter after two updates in the file's order.
fn trained(place: &Place, words: &str, data: PathBuf) -> Vec<u8> {
    let model = place.path("llama");
    let run = place.pocketune("train --iters 2 --batch-size 2 --no-shuffle").words(words);
    run.model(model).data(data).into("adapter").succeeds();
    adapters::bytes(&place.path("adapter"))
}

#[test]
fn texts_are_read_from_every_form_alike() {
    let place = Place::new();
    chatty(&place);
    let texts = ["one, \"two\"", "three four"];
    let want = trained(&place, "", place.texts("a.jsonl", &texts));
    let array = serde_json::to_string_pretty(&texts.map(|text| json!({ "text": text }))).unwrap();
    assert!(want == trained(&place, "", place.file("b.json", array)));
    let csv = "id,text\n1,\"one, \"\"two\"\"\"\n2,three four\n";
    assert!(want == trained(&place, "", place.file("c.csv", csv)));
    let tsv = "words\tid\none, \"two\"\t1\nthree four\t2\n";
    assert!(want == trained(&place, "--text-feature words", place.file("d.tsv", tsv)));
    place.file("folder/train.csv", csv);
    assert!(want == trained(&place, "", place.path("folder")));
}

#[test]
fn questions_are_read_from_every_kind_of_record_alike() {
    let place = Place::new();
    chatty(&place);
    let (user, assistant) =
        (json!({"role": "user", "content": "2 + 2?"}), json!({"role": "assistant", "content": "4"}));
    let mut number = 0;
    let mut each = |words: &str, record: serde_json::Value| {
        number += 1;
        trained(&place, words, place.file(&format!("{number}.jsonl"), format!("{record}\n{record}\n")))
    };
    for mask in ["", "--mask-prompt", "--mask-prompt last"] {
        let want = each(mask, json!({ "messages": [user, assistant] }));
        for record in [
            json!({"prompt": "2 + 2?", "completion": "4"}),
            json!({"prompt": [user], "completion": [assistant]}),
            json!({"instruction": "2 + 2?", "input": "", "output": "4"}),
            json!({"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]}),
        ] {
            assert!(want == each(mask, record.clone()), "{mask} {record}");
        }
        let named = format!("{mask} --prompt-feature question --completion-feature answer");
        assert!(want == each(&named, json!({"question": "2 + 2?", "answer": "4"})));
    }
    assert!(
        each("", json!({"messages": [user, assistant]}))
            != each("--mask-prompt", json!({"messages": [user, assistant]}))
    );
}

#[test]
fn without_a_template_a_prompt_and_its_completion_are_one_text() {
    let place = Place::new();
    chatty(&place);
    let record = |prompt: &str, answer: &str| json!({ "prompt": prompt, "completion": answer }).to_string();
    let pairs = place.file("pairs.jsonl", [record("a b", " c d"), record("e", " f")].join("\n"));
    let texts = place.texts("texts.jsonl", &["a b c d", "e f"]);
    assert!(trained(&place, "--chat-template none", pairs.clone()) == trained(&place, "", texts));
    assert!(trained(&place, "", pairs.clone()) != trained(&place, "--chat-template none", pairs));
}

#[test]
fn a_template_from_a_file_takes_the_place_of_the_models_own() {
    let place = Place::new();
    chatty(&place);
    let template = place.file("own.jinja", "{% for m in messages %}<{{ m.content }}>{% endfor %}");
    let data = place.file("data.jsonl", json!({ "messages": [{"role": "user", "content": "hi"}] }).to_string());
    let words = format!("--chat-template {}", template.display());
    assert!(trained(&place, &words, data) == trained(&place, "", place.texts("text.jsonl", &["<hi>"])));
}

#[test]
fn a_share_of_a_file_is_kept_for_validation() {
    let place = Place::new();
    chatty(&place);
    let texts: Vec<String> = (0..40).map(|number| format!("record number {number}")).collect();
    let data = place.texts("data.jsonl", &texts);
    let run = |seed: &str| {
        let run = place.pocketune("train --iters 1 --val-split 0.25").with("--seed", seed).model(place.path("llama"));
        run.data(&data).into("adapter").succeeds().stderr
    };
    let said = run("1");
    assert!(said.contains("Data: 30 records, ") && said.contains("Data: 10 records for validation, "), "{said}");
    assert!(said.contains("Iter 0: Val loss "), "{said}");
    let loss = |said: &str| said.lines().find(|line| line.starts_with("Iter 0: Val loss")).unwrap().to_owned();
    assert_eq!(loss(&said), loss(&run("1")));
}

#[test]
fn a_test_set_is_measured_at_the_end() {
    let place = Place::new();
    chatty(&place);
    place.texts("set/train.jsonl", &["some words to train on"]);
    place.texts("set/test.jsonl", &["some words to test with"]);
    let run = place.pocketune("train --iters 1 --test").model(place.path("llama")).data(place.path("set"));
    let said = run.into("adapter").succeeds();
    assert!(said.stderr.contains("Data: 1 records for test, "), "{}", said.stderr);
    assert!(said.stdout.contains("  test    loss "), "{}", said.stdout);
}
