//! The chat template of a run and the token that ends a reply go where its adapter goes, and are used wherever the adapter is.

use serde_json::{Value, json};

use crate::measuring::measured;
use crate::models::{chat_template, chatty};
use crate::place::{Place, Run};

/// Not the model's, and not like it.
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}~{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";

/// A chatty model whose texts end with `~`, a template in `mine.jinja`, the model's own in `models.jinja`, and an adapter in `adapter` that was
/// trained through the former.
fn trained() -> Place {
    let place = Place::new();
    chatty(&place);
    let models = &chat_template("smollm2.json")["template"];
    place.file("llama/tokenizer_config.json", json!({ "chat_template": models, "eos_token": "~" }).to_string());
    place.file("models.jinja", models.as_str().unwrap());
    place.file("mine.jinja", TEMPLATE);
    let messages = json!([{ "role": "user", "content": "Who?" }, { "role": "assistant", "content": "Mira." }]);
    place.file("talk.jsonl", json!({ "messages": messages }).to_string());
    place.file("text.jsonl", json!({ "text": "The light is old." }).to_string());
    train(&place, "talk.jsonl", "--chat-template mine.jinja");
    place
}

fn train(place: &Place, data: &str, words: &str) {
    let run = place.pocketune("train --iters 2 --batch-size 1").words(words).model(place.path("llama"));
    run.data(place.path(data)).into("adapter").succeeds();
}

fn read(place: &Place, name: &str) -> Option<String> {
    std::fs::read_to_string(place.path(name)).ok()
}

#[test]
fn an_adapter_takes_along_the_template_and_the_end_that_it_was_trained_with() {
    let place = trained();
    assert_eq!(read(&place, "adapter/chat_template.jinja").as_deref(), Some(TEMPLATE));
    let ends: Value = serde_json::from_str(&read(&place, "adapter/generation_config.json").unwrap()).unwrap();
    assert_eq!(ends, json!({ "eos_token_id": [126] }));
    // A run without conversations in the same folder has no template, so the old one's must not stay.
    train(&place, "text.jsonl", "");
    assert_eq!(read(&place, "adapter/chat_template.jinja"), None);
    assert_eq!(read(&place, "adapter/generation_config.json"), None);
    train(&place, "talk.jsonl", "");
    assert_eq!(read(&place, "adapter/chat_template.jinja"), read(&place, "models.jinja"));
    // Adapter, configuration, template, ends, and how it was made.
    assert_eq!(place.pocketune("erase --adapter adapter").succeeds().stdout, "Erased 5 files\n");
    assert!(!place.path("adapter").exists());
}

#[test]
fn an_adapters_template_is_used_before_the_models_and_after_what_is_typed() {
    let place = trained();
    let with =
        |run: Run, words: &str| run.words("--adapter adapter --precision f32").words(words).model("llama").succeeds();
    let generate = |words: &str| with(place.pocketune("generate --chat --prompt Who? --max-tokens 9"), words).stdout;
    let chat = |words: &str| with(place.pocketune("chat --max-tokens 9").reading("Who?\n"), words).stdout;
    assert_eq!(generate(""), generate("--chat-template mine.jinja"));
    assert_ne!(generate(""), generate("--chat-template models.jinja"));
    assert_eq!(chat(""), generate(""));
    assert_eq!(chat("--chat-template models.jinja"), generate("--chat-template models.jinja"));
    let loss = |words: &str| {
        let run = place.pocketune("eval --adapter adapter --precision f32 --log-format jsonl").words(words);
        measured(run.model("llama").data("talk.jsonl"))
    };
    assert_eq!(loss(""), loss("--chat-template mine.jinja"));
    assert_ne!(loss(""), loss("--chat-template models.jinja"));
    // And a run that starts from the adapter goes on with its template.
    let run = place.pocketune("train --iters 1 --batch-size 1 --init-adapter adapter").model("llama");
    run.data("talk.jsonl").into("further").succeeds();
    assert_eq!(read(&place, "further/chat_template.jinja").as_deref(), Some(TEMPLATE));
}

#[test]
fn a_conversation_changes_its_template_with_its_adapter() {
    let place = trained();
    let chat = |lines: &str| {
        let run = place.pocketune("chat --max-tokens 9 --precision f32").model("llama");
        run.reading(lines).succeeds().stdout
    };
    let plain = place.pocketune("generate --chat --prompt Who? --max-tokens 9 --precision f32").model("llama");
    let adapted = place.pocketune("generate --chat --prompt Who? --max-tokens 9 --precision f32 --adapter adapter");
    let said = [adapted.model("llama").succeeds().stdout, plain.succeeds().stdout].concat();
    assert_eq!(chat("/adapter adapter\nWho?\n/reset\n/adapter none\nWho?\n"), said);
}

#[test]
fn converting_carries_the_template_through_every_kind() {
    let place = trained();
    let convert = |from: &str, to: &str, out: &str| {
        place
            .pocketune("convert")
            .words(&format!("--adapter {from} --to {to} --output {out}"))
            .model("llama")
            .succeeds();
    };
    convert("adapter", "mlx", "mlx");
    convert("mlx", "gguf", "lora.gguf");
    convert("lora.gguf", "peft", "back");
    for name in ["mlx/chat_template.jinja", "back/chat_template.jinja"] {
        assert_eq!(read(&place, name).as_deref(), Some(TEMPLATE), "{name}");
    }
    assert_eq!(read(&place, "mlx/generation_config.json"), read(&place, "adapter/generation_config.json"));
}

#[test]
fn a_bad_template_or_end_beside_an_adapter_is_refused_by_name() {
    let place = trained();
    let generate = || place.pocketune("generate --chat --prompt Who? --adapter adapter").model("llama");
    for ends in [r#"{"eos_token_id": "x"}"#, "[", r#"{"eos_token_id": -1}"#] {
        place.file("adapter/generation_config.json", ends);
        generate().refuses(&["generation_config.json"]);
    }
    let many: Vec<u32> = (0..65).collect();
    place.file("adapter/generation_config.json", json!({ "eos_token_id": many }).to_string());
    generate().refuses(&["generation_config.json", "64"]);
    place.file("adapter/generation_config.json", "{}");
    place.file("adapter/chat_template.jinja", "{% for %}");
    generate().refuses(&["template"]);
}
