//! Conversations: `messages` records and `generate --chat`, through the model's chat template. What transformers renders of the same
//! messages is the yardstick.

use serde_json::{Value, json};

use crate::adapters;
use crate::models::{Golden, chat_template, chatty, demo};
use crate::place::Place;

/// What the template is known to make of messages, where that is plain ASCII.
fn known_cases(add_generation_prompt: bool) -> Vec<Value> {
    let Value::Array(cases) = chat_template("smollm2.json")["cases"].take() else { panic!("no cases") };
    let ascii = |case: &Value| case["output"].as_str().is_some_and(str::is_ascii);
    let cases: Vec<Value> = cases
        .into_iter()
        .filter(|case| case["add_generation_prompt"] == add_generation_prompt && ascii(case))
        .collect();
    assert!(!cases.is_empty());
    cases
}

#[test]
fn messages_train_like_the_text_that_transformers_renders_of_them() {
    let place = Place::new();
    let model = chatty(&place);
    let cases = known_cases(false);
    let messages: String = cases.iter().map(|case| format!("{}\n", json!({ "messages": case["messages"] }))).collect();
    let texts: Vec<&str> = cases.iter().map(|case| case["output"].as_str().unwrap()).collect();
    let train = |data, out| {
        place.pocketune("train --iters 3 --batch-size 1").model(&model).data(data).into(out).succeeds();
        adapters::bytes(&place.path(out))
    };
    let from_messages = train(place.file("messages.jsonl", messages), "a");
    assert!(from_messages == train(place.texts("texts.jsonl", &texts), "b"));
}

#[test]
fn a_chat_prompt_is_the_text_that_transformers_renders_of_it() {
    let place = Place::new();
    let model = chatty(&place);
    let one_question = |case: &&Value| {
        let messages = case["messages"].as_array().unwrap();
        messages.len() == 1 && messages[0]["role"] == "user"
    };
    let cases = known_cases(true);
    let case = cases.iter().find(one_question).unwrap();
    let generate = |words: &str, prompt: &Value| {
        let run = place.pocketune("generate --max-tokens 12 --precision f32").words(words).model(&model);
        run.with("--prompt", prompt.as_str().unwrap()).succeeds().stdout
    };
    let question = &case["messages"][0]["content"];
    assert_eq!(generate("--chat", question), generate("", &case["output"]));
    assert_ne!(generate("--chat", question), generate("", question));
}

#[test]
fn a_model_without_a_template_refuses_conversations() {
    let place = Place::new();
    let data =
        place.file("data.jsonl", "{\"text\": \"a b\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    place.pocketune("train").model(demo()).data(data).into("out").refuses(&["data.jsonl", "line 2", "chat template"]);
    place.pocketune("generate --chat -p Hi").model(demo()).refuses(&["--chat", "no chat template"]);
}

#[test]
fn a_templates_own_refusal_is_passed_on_with_the_line() {
    let place = Place::new();
    let folder = Golden::new("llama").folder(&place);
    let template = "{{ raise_exception('only questions here') }}";
    place.file("llama/tokenizer_config.json", json!({ "chat_template": template }).to_string());
    let data = place.file("data.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    place.pocketune("train").model(folder).data(data).into("out").refuses(&["line 1", "only questions here"]);
}
