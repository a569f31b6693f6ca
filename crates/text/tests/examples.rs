//! Records become examples: the right tokens around them, cut where asked, the first token never predicted.

use pocketune_formats::folder::Folder;
use pocketune_text::{ChatTemplate, ExampleMaker, Record, Tokenizer};
use serde_json::json;
use std::fs;
use tempfile::TempDir;

fn folder(fixture: &str, config: &serde_json::Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), fixture).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

fn qwen_like() -> TempDir {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let config = json!({"eos_token": "<|im_end|>", "bos_token": null, "chat_template": template});
    folder(include_str!("fixtures/qwen_like.json"), &config)
}

#[test]
fn text_ends_with_the_end_token_once() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let eos = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.bos()), (Some(eos), None));
    let maker = ExampleMaker::new(&tokenizer, None, 100);
    let example = maker.example(&Record::Text("the dog".into())).unwrap();
    assert_eq!(example.ids.last(), Some(&eos));
    assert_eq!(maker.example(&Record::Text("the dog<|im_end|>".into())).unwrap(), example);
    assert_eq!(example.loss.iter().filter(|&&on| !on).count(), 1);
    assert!(!example.loss[0]);
    assert_eq!(example.loss.len(), example.ids.len());
}

#[test]
fn a_beginning_token_is_added_to_text_but_not_to_a_rendered_conversation() {
    let config = json!({
        "bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|eot_id|>",
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}]
    });
    let folder = folder(include_str!("fixtures/llama3_like.json"), &config);
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let template = ChatTemplate::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().unwrap();
    let maker = ExampleMaker::new(&tokenizer, Some(&template), 100);
    let text = maker.example(&Record::Text("the fox".into())).unwrap();
    let chat = maker.example(&Record::Messages(json!([{"role": "user", "content": "the fox"}]))).unwrap();
    assert_eq!(Some(text.ids[0]), tokenizer.bos());
    assert_eq!(text, chat);
}

#[test]
fn a_long_example_is_cut_and_says_from_what() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let template = ChatTemplate::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let record = Record::Messages(json!([{"role": "user", "content": "fox ".repeat(50)}]));
    let whole = ExampleMaker::new(&tokenizer, template.as_ref(), 1000).example(&record).unwrap();
    let cut = ExampleMaker::new(&tokenizer, template.as_ref(), 16).example(&record).unwrap();
    assert_eq!(whole.cut_from, None);
    assert_eq!(cut.cut_from, Some(whole.ids.len()));
    assert_eq!((&cut.ids[..], cut.loss.len()), (&whole.ids[..16], 16));
}

#[test]
fn a_conversation_without_a_template_is_refused() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let record = Record::Messages(json!([{"role": "user", "content": "a"}]));
    let line = ExampleMaker::new(&tokenizer, None, 9).example(&record).unwrap_err().to_string();
    assert!(line.contains("the model has none"), "{line}");
}

#[test]
fn the_end_of_a_text_is_also_found_in_config_json() {
    let folder = folder(include_str!("fixtures/qwen_like.json"), &json!({}));
    let id = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().token_id("<|endoftext|>").unwrap();
    fs::write(folder.path().join("config.json"), json!({"eos_token_id": [id, 3]}).to_string()).unwrap();
    assert_eq!(Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().eos(), Some(id));
}
