//! Chat templates of real models write what `transformers` writes, and refuse what it refuses.

use pocketune_text::ChatTemplate;
use serde_json::Value;

fn compare(golden: &str) {
    let golden: Value = serde_json::from_str(golden).unwrap();
    let text = |value: &Value, key: &str| value[key].as_str().map(str::to_owned);
    let template = ChatTemplate::new(&text(&golden, "template").unwrap()).unwrap();
    let (bos, eos) = (text(&golden, "bos").unwrap(), text(&golden, "eos").unwrap());
    for case in golden["cases"].as_array().unwrap() {
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let rendered = template.render(&case["messages"], prompt, &bos, &eos);
        match (rendered, text(case, "output"), text(case, "refusal")) {
            (Ok(rendered), Some(output), _) => assert_eq!(rendered, output, "{}", case["name"]),
            (Err(error), None, Some(refusal)) => assert!(error.to_string().contains(&refusal), "{error}"),
            (other, ..) => panic!("{}: {other:?}", case["name"]),
        }
    }
}

#[test]
fn smollm2_conversations_are_written_alike() {
    compare(include_str!("templates/smollm2.json"));
}

#[test]
fn qwen_conversations_are_written_alike() {
    compare(include_str!("templates/qwen2_5.json"));
}

#[test]
fn llama_conversations_are_written_alike() {
    compare(include_str!("templates/llama3_2.json"));
}

#[test]
fn gemma_conversations_are_written_alike_and_the_same_ones_refused() {
    compare(include_str!("templates/gemma3.json"));
}
