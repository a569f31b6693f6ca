//! `tokenizer_config.json` beside a small tokenizer: the ends of a text and the chat template that it names.

use pocketune_text::{ChatTemplate, Tokenizer};

use super::{JSON, Target, accepted, chat_template, folder, tokenizer_json};
use crate::seeds::Seed;

pub const TARGET: Target = Target { name: "tokenizer_config", run, seeds, words: JSON };

fn run(bytes: &[u8]) -> bool {
    let tokenizer = tokenizer_json::small("");
    let files = folder(&[("tokenizer.json", tokenizer.as_bytes()), ("tokenizer_config.json", bytes)]);
    let Some(template) = accepted(ChatTemplate::from_folder(&files)) else { return false };
    template.iter().for_each(chat_template::exercise);
    accepted(Tokenizer::from_folder(&files)).is_some()
}

fn seeds() -> Vec<Seed> {
    vec![
        Seed::common(
            r#"{"bos_token":"<s>","eos_token":{"content":"b","lstrip":false},"chat_template":"{{ bos_token }}{{ messages[0].content }}"}"#,
        ),
        Seed::common(
            r#"{"bos_token":null,"eos_token":"a","chat_template":[{"name":"default","template":"{{ eos_token }}"},{"name":"tool_use","template":"x"}]}"#,
        ),
        Seed::common(r#"{"added_tokens_decoder":{"8":{"content":"<s>"}},"model_max_length":1e30,"eos_token":"<s>"}"#),
    ]
}
