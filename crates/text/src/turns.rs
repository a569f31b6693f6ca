//! Which part of a rendered conversation the assistant wrote, by position. Where the template marks it (`{% generation %}`), the marks
//! say it. Else a turn begins where the conversation before it, with the prompt for an answer, ends, and ends where the conversation up
//! to it ends; both must be beginnings of the whole. Templates that write earlier turns otherwise than the last (Qwen3 leaves their
//! thoughts out) break that: then the turn is where the whole changes when something is put before or behind its content, or behind the
//! last call of a tool. It refuses conversations where none of this gives a place, and it never searches a text for what it says.

use crate::chat::{ChatTemplate, Ends};
use crate::error::{Result, TextError};
use crate::records::Chat;
use serde_json::Value;
use std::ops::Range;

/// A conversation as text, with what the assistant wrote.
pub(crate) struct Conversation {
    /// The text.
    pub text: String,
    /// What the assistant wrote, in order; of messages that were not given as the prompt.
    pub turns: Vec<Turn>,
}

/// What the assistant wrote in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The place in the text.
    pub range: Range<usize>,
    /// Where the place ends.
    pub end: End,
}

/// Where a turn's place ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Exactly there: the template says so.
    Marked,
    /// Before the next message: blanks behind the token that ends the turn are no part of what is learned.
    Message,
    /// Behind the content: the token that ends the turn comes next, blanks aside.
    Content,
    /// Inside the last call of a tool: the next special token ends the turn.
    Call,
}

/// A character that no text has: it makes a difference to any content.
const DIFFERENCE: char = '\u{FDD2}';

/// Renders a conversation and finds the assistant's turns.
pub(crate) fn conversation(template: &ChatTemplate, chat: &Chat, ends: Ends) -> Result<Conversation> {
    let rendered = template.render(&chat.messages, chat.tools.as_ref(), false, ends)?;
    let is_assistant = |message: &&Value| message["role"] == "assistant";
    let mut turns = Vec::new();
    if template.marks_assistant() {
        let given = chat.messages[..chat.given].iter().filter(is_assistant).count();
        let marked = rendered.marked.into_iter().skip(given);
        turns.extend(marked.map(|range| Turn { range, end: End::Marked }));
    } else {
        let whole = Whole { template, chat, ends, text: &rendered.text };
        for at in chat.given..chat.messages.len() {
            if !is_assistant(&&chat.messages[at]) {
                continue;
            }
            let done = turns.last().map_or(0, |turn: &Turn| turn.range.end);
            turns.push(whole.turn(at).filter(|turn| turn.range.start >= done).ok_or_else(|| lost(at))?);
        }
    }
    Ok(Conversation { text: rendered.text, turns })
}

fn lost(at: usize) -> TextError {
    TextError::Template(format!(
        "it writes message {} so that its place can't be told from the rest; use --mask-prompt none, or a template that marks the \
         assistant's words with {{% generation %}}",
        at + 1
    ))
}

struct Whole<'a> {
    template: &'a ChatTemplate,
    chat: &'a Chat,
    ends: Ends<'a>,
    text: &'a str,
}

impl Whole<'_> {
    fn turn(&self, at: usize) -> Option<Turn> {
        let start = self.beginning(at, true).or_else(|| self.content(at, |text| format!("{DIFFERENCE}{text}")))?;
        let calls = self.chat.messages[at]["tool_calls"].as_array().is_some_and(|calls| !calls.is_empty());
        let message = match at + 1 == self.chat.messages.len() {
            true => Some(self.text.len()),
            false => self.beginning(at + 1, false).filter(|&end| end > start),
        };
        let (last, end) = match message {
            Some(end) => (end, End::Message),
            None if calls => (self.last_call(at)?, End::Call),
            None => (self.content(at, |text| format!("{text}{DIFFERENCE}"))?, End::Content),
        };
        (start <= last).then_some(Turn { range: start..last, end })
    }

    /// How long the first `count` messages are, where the whole begins with them.
    fn beginning(&self, count: usize, add_generation_prompt: bool) -> Option<usize> {
        let first = &self.chat.messages[..count];
        // A template may refuse a conversation that stops here; the whole is still good.
        let rendered = self.template.render(first, self.chat.tools.as_ref(), add_generation_prompt, self.ends).ok()?;
        self.text.starts_with(&rendered.text).then_some(rendered.text.len())
    }

    /// Where the whole differs first when a message's content does.
    fn content(&self, at: usize, other: impl Fn(&str) -> String) -> Option<usize> {
        self.difference(at, |message| {
            let content = message.get_mut("content")?;
            *content = Value::String(other(content.as_str()?));
            Some(())
        })
    }

    /// Where the whole differs first when the last argument of a message's last call is followed by another.
    fn last_call(&self, at: usize) -> Option<usize> {
        self.difference(at, |message| {
            let call = message["tool_calls"].as_array_mut()?.last_mut()?;
            let function = if call.get("function").is_some() { &mut call["function"] } else { call };
            match function.get_mut("arguments")? {
                Value::String(text) => text.push(DIFFERENCE),
                Value::Object(arguments) => drop(arguments.insert(DIFFERENCE.into(), Value::Null)),
                _ => return None,
            }
            Some(())
        })
    }

    /// Where the whole differs first when a message does.
    fn difference(&self, at: usize, change: impl FnOnce(&mut Value) -> Option<()>) -> Option<usize> {
        let mut messages = self.chat.messages.clone();
        change(&mut messages[at])?;
        let other = self.template.render(&messages, self.chat.tools.as_ref(), false, self.ends).ok()?.text;
        let (mine, theirs) = (self.text.as_bytes(), other.as_bytes());
        let mut same = mine.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        while !self.text.is_char_boundary(same) {
            same -= 1;
        }
        (mine != theirs).then_some(same)
    }
}
