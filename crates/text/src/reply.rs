//! Which tokens end a reply: the one that ends a text, and the one that a chat template writes behind the assistant's words, which many
//! models end their turns with instead. The latter is the token that training on the template's conversations teaches as the end. A
//! template that writes no special token there adds none.

use crate::chat::ChatTemplate;
use crate::example::{ExampleMaker, Mask};
use crate::records::{Chat, Record};
use crate::tokenizer::Tokenizer;
use serde_json::json;

/// The tokens that end a reply, ascending.
pub fn reply_ends(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Vec<u32> {
    let mut ends: Vec<u32> = tokenizer.eos().into_iter().chain(turn_end(tokenizer, template)).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The special token that ends the assistant's turn.
fn turn_end(tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Option<u32> {
    let message = |role, content| json!({ "role": role, "content": content });
    let messages = vec![message("user", "a"), message("assistant", "b")];
    let record = Record::Chat(Chat { messages, tools: None, given: 0 });
    let mut end = None;
    let maker = ExampleMaker::new(tokenizer, Some(template?), usize::MAX, Mask::Last);
    let made = maker.examples(&record, &mut |example| {
        let last = example.loss.iter().rposition(|&counts| counts);
        end = last.map(|last| example.ids[last]).filter(|&id| tokenizer.is_special(id));
    });
    // A template that refuses these two messages ends replies by the end of a text alone.
    made.ok().and(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Tokenizer {
        let special = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true });
        let letters: serde_json::Map<_, _> = ('a'..='z').zip(0..).map(|(c, id)| (c.to_string(), json!(id))).collect();
        let file = json!({
            "added_tokens": [special(26, "<end>"), special(27, "<turn>")],
            "model": { "type": "BPE", "vocab": letters, "merges": [] },
        });
        let mut tokenizer = Tokenizer::from_json_reader(file.to_string().as_bytes()).unwrap();
        tokenizer.set_ends(None, Some(26));
        tokenizer
    }

    fn ends(source: &str) -> Vec<u32> {
        reply_ends(&tokenizer(), Some(&ChatTemplate::new(source).unwrap()))
    }

    #[test]
    fn a_reply_ends_with_the_text_or_with_the_turn() {
        let each = |behind: &str| {
            format!("{{% for m in messages %}}{{{{ m.role }}}} {{{{ m.content }}}}{behind}{{% endfor %}}")
        };
        assert_eq!(reply_ends(&tokenizer(), None), [26]);
        assert_eq!(ends(&each("<turn>\n")), [26, 27]);
        assert_eq!(ends(&each("<end>")), [26]);
        assert_eq!(ends(&each("\n")), [26], "a line's end is a character like others");
        assert_eq!(ends("{{ raise_exception('no') }}"), [26]);
    }
}
