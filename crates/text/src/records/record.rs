//! One record, and how an object becomes one: by which of the known fields it has. It refuses objects that have none of them, or those of
//! two kinds.

use super::chat;
use crate::recipes::Question;
use serde_json::{Map, Value};

/// One training record.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// Plain text.
    Text(String),
    /// A stretch of a longer text, to be cut into as many examples as it takes; `last` where that text ends.
    Passage {
        /// The stretch.
        text: String,
        /// Whether the text ends with it.
        last: bool,
    },
    /// A conversation.
    Chat(Chat),
    /// Something asked and its answer: a conversation where the model has a chat template, else the two texts joined.
    Answer {
        /// As a conversation.
        chat: Chat,
        /// As text, up to the answer.
        prompt: String,
        /// The answer.
        answer: String,
    },
    /// A question with its possible answers.
    Question(Question),
}

/// A conversation, as templates read it.
#[derive(Clone, Debug, PartialEq)]
pub struct Chat {
    /// Objects with `role` and `content`.
    pub messages: Vec<Value>,
    /// Functions that the assistant may call, as JSON schemas.
    pub tools: Option<Value>,
    /// Messages that were given as the prompt: no loss is taken on them where prompts are masked.
    pub given: usize,
}

/// The names of a record's fields, where a file has names of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Plain text.
    pub text: String,
    /// A list of messages.
    pub chat: String,
    /// What is asked.
    pub prompt: String,
    /// What is answered.
    pub completion: String,
}

impl Default for Fields {
    fn default() -> Self {
        let [text, chat, prompt, completion] = ["text", "messages", "prompt", "completion"].map(String::from);
        Self { text, chat, prompt, completion }
    }
}

/// Fields that are shown of an object that is no record.
const MOST_SHOWN: usize = 8;

impl Record {
    /// Makes a record of an object; the error is its fault in words.
    pub(super) fn from_json(value: Value, fields: &Fields) -> Result<Self, String> {
        let Value::Object(mut object) = value else {
            return Err(format!("a record is an object, not {}", kind(&value)));
        };
        let has = |name: &str| object.contains_key(name);
        let kinds: Vec<&str> = [
            (has(&fields.text), fields.text.as_str()),
            (has(&fields.chat), &fields.chat),
            (has(&fields.prompt) && has(&fields.completion), &fields.prompt),
            (has("instruction") && has("output"), "instruction"),
            (has("conversations"), "conversations"),
        ]
        .into_iter()
        .filter_map(|(has, name)| has.then_some(name))
        .collect();
        match kinds[..] {
            [] => Err(unknown(&object, fields)),
            [one] if one == fields.text => Ok(Self::Text(text(&mut object, one)?)),
            [one] if one == fields.prompt => answer(&mut object, fields),
            ["instruction"] => chat::alpaca(&mut object),
            ["conversations"] => chat::sharegpt(&mut object).map(Self::Chat),
            [one] => {
                let (messages, tools) = (object.remove(one), object.remove("tools"));
                chat::messages(one, messages.unwrap_or_default(), tools, 0).map(Self::Chat)
            }
            [one, other, ..] => Err(format!("the record has both `{one}` and `{other}`")),
        }
    }
}

fn unknown(object: &Map<String, Value>, fields: &Fields) -> String {
    let mut found: Vec<String> = object.keys().take(MOST_SHOWN).map(|name| format!("`{name}`")).collect();
    if object.len() > MOST_SHOWN {
        found.push("…".into());
    }
    format!(
        "no record: it has {}, and none of `{}`, `{}`, `{}` with `{}`, `instruction` with `output`, `conversations`",
        if found.is_empty() { "no field".into() } else { found.join(", ") },
        fields.text,
        fields.chat,
        fields.prompt,
        fields.completion
    )
}

/// Takes a field that holds text with something in it.
pub(super) fn text(object: &mut Map<String, Value>, name: &str) -> Result<String, String> {
    match object.remove(name) {
        Some(Value::String(text)) if text.is_empty() => Err(format!("`{name}` is empty")),
        Some(Value::String(text)) => Ok(text),
        other => Err(format!("`{name}` is {}, not a string", kind(&other.unwrap_or_default()))),
    }
}

fn answer(object: &mut Map<String, Value>, fields: &Fields) -> Result<Record, String> {
    let (prompt, completion) = (&fields.prompt, &fields.completion);
    match (object.get(prompt), object.get(completion)) {
        (Some(Value::Array(_)), Some(Value::Array(_))) => {
            let tools = object.remove("tools");
            let mut lists = [prompt, completion].map(|name| object.remove(name.as_str()).unwrap_or_default());
            let Value::Array(given) = lists[0].take() else { unreachable!("looked at above") };
            let Value::Array(answers) = lists[1].take() else { unreachable!("looked at above") };
            if answers.is_empty() {
                return Err(format!("`{completion}` is empty"));
            }
            let count = given.len();
            let all: Vec<Value> = given.into_iter().chain(answers).collect();
            chat::messages(prompt, Value::Array(all), tools, count).map(Record::Chat)
        }
        (Some(Value::Array(_)), Some(_)) | (Some(_), Some(Value::Array(_))) => {
            Err(format!("`{prompt}` and `{completion}` are either both texts or both lists of messages"))
        }
        _ => {
            let (prompt, answer) = (text(object, prompt)?, text(object, completion)?);
            let messages = vec![chat::message("user", &prompt), chat::message("assistant", &answer)];
            Ok(Record::Answer { chat: Chat { messages, tools: None, given: 1 }, prompt, answer })
        }
    }
}

/// What a value is, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn record(value: Value) -> Result<Record, String> {
        Record::from_json(value, &Fields::default())
    }

    #[test]
    fn each_fault_is_named() {
        let long = "no record: it has `texts`, and none of `text`, `messages`, `prompt` with `completion`, \
                    `instruction` with `output`, `conversations`";
        for (value, reason) in [
            (json!({"text": 3}), "`text` is a number, not a string"),
            (json!({"text": ""}), "`text` is empty"),
            (json!({"texts": "a"}), long),
            (json!(["a"]), "a record is an object, not a list"),
            (json!({"text": "a", "messages": []}), "the record has both `text` and `messages`"),
            (json!({"messages": []}), "`messages` is empty"),
            (json!({"messages": "a"}), "`messages` is a string, not a list"),
            (json!({"messages": [{"content": "a"}]}), "message 1 has no `role`"),
            (json!({"messages": [{"role": "user"}]}), "message 1 has no `content`"),
            (json!({"messages": [{"role": "user", "content": 1}]}), "message 1: `content` is a number, not a string"),
            (json!({"messages": [{"role": "user", "content": "a"}], "tools": 1}), "`tools` is a number, not a list"),
            (json!({"prompt": "a", "completion": ""}), "`completion` is empty"),
            (json!({"prompt": "a", "completion": [1]}), "`prompt` and `completion` are either both"),
            (json!({"prompt": [], "completion": []}), "`completion` is empty"),
        ] {
            let found = record(value.clone()).unwrap_err();
            assert!(found.starts_with(reason), "{value}: {found}");
        }
    }

    #[test]
    fn a_prompt_and_its_completion_are_texts_or_messages() {
        let (user, assistant) = (chat::message("user", "a"), chat::message("assistant", "b"));
        let chat = Chat { messages: vec![user.clone(), assistant.clone()], tools: None, given: 1 };
        let strings = record(json!({"prompt": "a", "completion": "b"})).unwrap();
        assert_eq!(strings, Record::Answer { chat: chat.clone(), prompt: "a".into(), answer: "b".into() });
        assert_eq!(record(json!({"prompt": [user], "completion": [assistant]})).unwrap(), Record::Chat(chat));
    }

    #[test]
    fn fields_may_have_other_names() {
        let fields = Fields { prompt: "question".into(), completion: "answer".into(), ..Fields::default() };
        let found = Record::from_json(json!({"question": "2 + 2?", "answer": "4"}), &fields).unwrap();
        assert!(matches!(found, Record::Answer { prompt, answer, .. } if prompt == "2 + 2?" && answer == "4"));
    }
}
