//! Conversations in the three ways that data sets write them: `messages` with roles, alpaca's `instruction`, `input`, `output`, and
//! sharegpt's `conversations`. All become messages with `role` and `content`. It refuses messages without either, and speakers that
//! it doesn't know.

use super::record::{Chat, Record, kind, text};
use pocketune_formats::json;
use serde_json::{Map, Value, json};

/// A message.
pub(super) fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// Checks a list of messages that stands in the field `name`, and the tools beside it.
pub(super) fn messages(name: &str, list: Value, tools: Option<Value>, given: usize) -> Result<Chat, String> {
    let Value::Array(messages) = list else {
        return Err(format!("`{name}` is {}, not a list", kind(&list)));
    };
    if messages.is_empty() {
        return Err(format!("`{name}` is empty"));
    }
    for (number, message) in (1..).zip(&messages) {
        check(message).map_err(|reason| format!("message {number}{reason}"))?;
    }
    Ok(Chat { messages, tools: self::tools(tools)?, given })
}

fn check(message: &Value) -> Result<(), String> {
    let Value::Object(fields) = message else {
        return Err(format!(" is {}, not an object", kind(message)));
    };
    match fields.get("role") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(format!(": `role` is {}, not a string", kind(other))),
        None => return Err(" has no `role`".into()),
    }
    match fields.get("content") {
        // A list of parts is for templates that know them; null stands beside a tool call.
        Some(Value::String(_) | Value::Array(_)) => Ok(()),
        Some(Value::Null) | None if fields.contains_key("tool_calls") => Ok(()),
        Some(other) => Err(format!(": `content` is {}, not a string", kind(other))),
        None => Err(" has no `content`".into()),
    }
}

/// Tools are a list, or the text of one; an empty one is none.
fn tools(tools: Option<Value>) -> Result<Option<Value>, String> {
    let tools = match tools {
        Some(Value::String(text)) if text.trim().is_empty() => None,
        Some(Value::String(text)) => {
            Some(json::document(text.as_bytes()).map_err(|error| format!("`tools` is no JSON: {error}"))?)
        }
        other => other,
    };
    match tools {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(Value::Array(list)) => Ok(Some(Value::Array(list))),
        Some(other) => Err(format!("`tools` is {}, not a list", kind(&other))),
    }
}

/// An optional text: absent, null and empty are the same.
fn optional(object: &mut Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() => Ok(None),
        Some(_) => text(object, name).map(Some),
    }
}

/// `instruction`, `input`, `output`, with perhaps a `system` prompt and a `history` of earlier pairs. As text it is what Stanford's
/// Alpaca was trained on.
pub(super) fn alpaca(object: &mut Map<String, Value>) -> Result<Record, String> {
    let (input, system) = (optional(object, "input")?, optional(object, "system")?);
    let (instruction, answer) = (text(object, "instruction")?, text(object, "output")?);
    let mut messages: Vec<Value> = system.iter().map(|system| message("system", system)).collect();
    if let Some(history) = object.remove("history").filter(|history| !history.is_null()) {
        let pairs: Vec<(String, String)> =
            serde_json::from_value(history).map_err(|_| "`history` is no list of pairs of texts")?;
        for (asked, answered) in pairs {
            messages.extend([message("user", &asked), message("assistant", &answered)]);
        }
    }
    let question = input.as_ref().map_or_else(|| instruction.clone(), |input| format!("{instruction}\n{input}"));
    messages.push(message("user", &question));
    let given = messages.len();
    messages.push(message("assistant", &answer));
    let prompt = match &input {
        None => format!(
            "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n\
             ### Instruction:\n{instruction}\n\n### Response:\n"
        ),
        Some(input) => format!(
            "Below is an instruction that describes a task, paired with an input that provides further context. Write a \
             response that appropriately completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n\
             ### Response:\n"
        ),
    };
    Ok(Record::Answer { chat: Chat { messages, tools: None, given }, prompt, answer })
}

/// `conversations` of `from` and `value`, with perhaps a `system` prompt and `tools`; some files write `role` and `content` there.
pub(super) fn sharegpt(object: &mut Map<String, Value>) -> Result<Chat, String> {
    const NAME: &str = "conversations";
    let (system, tools) = (optional(object, "system")?, object.remove("tools"));
    let Value::Array(turns) = object.remove(NAME).unwrap_or_default() else {
        return Err(format!("`{NAME}` is no list"));
    };
    let mut list: Vec<Value> = system.iter().map(|system| message("system", system)).collect();
    for (number, turn) in (1..).zip(turns) {
        list.push(spoken(turn).map_err(|reason| format!("message {number}{reason}"))?);
    }
    messages(NAME, Value::Array(list), tools, 0)
}

fn spoken(turn: Value) -> Result<Value, String> {
    let (Some(from), Some(value)) = (turn.get("from"), turn.get("value")) else {
        return check(&turn).map(|()| turn);
    };
    let (Some(from), Some(value)) = (from.as_str(), value.as_str()) else {
        return Err(": `from` and `value` are texts".into());
    };
    Ok(match from {
        "human" | "user" => message("user", value),
        "gpt" | "chatgpt" | "assistant" | "bot" => message("assistant", value),
        "system" => message("system", value),
        "observation" | "tool" => message("tool", value),
        "function_call" => {
            let call: Value =
                json::document(value.as_bytes()).map_err(|error| format!(": no JSON of a call: {error}"))?;
            json!({ "role": "assistant", "content": "", "tool_calls": [{ "type": "function", "function": call }] })
        }
        other => {
            return Err(format!(
                ": nobody is known as `{other}`; human, gpt, system, observation and function_call are"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::record::Fields;
    use super::*;

    fn record(value: Value) -> Result<Record, String> {
        Record::from_json(value, &Fields::default())
    }

    #[test]
    fn alpaca_is_a_conversation_and_stanfords_text() {
        let found = record(json!({
            "instruction": "Add.", "input": "2 and 2", "output": "4", "system": "Be brief.", "history": [["Hi", "Hello"]]
        }));
        let Ok(Record::Answer { chat, prompt, answer }) = found else { panic!("{found:?}") };
        let roles: Vec<&str> = chat.messages.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
        assert_eq!((chat.messages[3]["content"].as_str(), chat.given), (Some("Add.\n2 and 2"), 4));
        assert!(prompt.ends_with("### Instruction:\nAdd.\n\n### Input:\n2 and 2\n\n### Response:\n"), "{prompt}");
        assert_eq!(answer, "4");
        let without = record(json!({"instruction": "Add.", "input": "", "output": "4"})).unwrap();
        assert!(matches!(without, Record::Answer { prompt, .. } if !prompt.contains("Input")));
    }

    #[test]
    fn sharegpt_is_a_conversation_with_its_tools() {
        let call = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
        let found = record(json!({
            "conversations": [
                {"from": "human", "value": "a"}, {"from": "function_call", "value": call},
                {"from": "observation", "value": "b"}, {"from": "gpt", "value": "c"}
            ],
            "system": "s", "tools": "[{\"name\": \"f\"}]"
        }));
        let Ok(Record::Chat(chat)) = found else { panic!("{found:?}") };
        let roles: Vec<&str> = chat.messages.iter().filter_map(|message| message["role"].as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
        assert_eq!(chat.messages[2]["tool_calls"][0]["function"]["arguments"]["x"], 1);
        assert_eq!((chat.tools, chat.given), (Some(json!([{"name": "f"}])), 0));
    }

    #[test]
    fn faults_of_both_are_named() {
        for (value, reason) in [
            (json!({"conversations": [{"from": "cat", "value": "a"}]}), "message 1: nobody is known as `cat`"),
            (json!({"conversations": [{"from": "gpt", "value": 1}]}), "message 1: `from` and `value` are texts"),
            (json!({"conversations": []}), "`conversations` is empty"),
            (json!({"conversations": 1}), "`conversations` is no list"),
            (json!({"conversations": [{"from": "function_call", "value": "{"}]}), "message 1: no JSON of a call"),
            (json!({"conversations": [{"from": "gpt", "value": "a"}], "tools": "{"}), "`tools` is no JSON"),
            (json!({"instruction": "", "output": "a"}), "`instruction` is empty"),
            (json!({"instruction": "a", "output": "a", "history": [1]}), "`history` is no list of pairs"),
        ] {
            let found = record(value.clone()).unwrap_err();
            assert!(found.starts_with(reason), "{value}: {found}");
        }
    }
}
