//! A conversation with a model: turns that are kept and replies that are handed over as they come. Every reply is a continuation of the
//! whole history through the chat template, of which only what is new is read. Where the history outgrows its room the oldest turns go;
//! the system's message stays. It refuses models without a chat template.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use pocketune_text::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};

use super::{GenerateOptions, Generator, TemplateChoice, adapter};
use crate::beside::all_ends;
use crate::error::{Error, Result};
use crate::model::Model;

/// The room of a conversation where its user names none; models have more positions than most devices have memory for.
const ROOM: usize = 4096;

/// What a conversation is held with.
#[derive(Clone, Debug)]
pub struct ChatOptions {
    /// The model and how it continues.
    pub generate: GenerateOptions,
    /// What turns messages into text.
    pub template: TemplateChoice,
    /// Most tokens of a reply.
    pub max_tokens: usize,
    /// Most tokens of history and reply together; as many as there is memory for, up to 4096, where it isn't said.
    pub room: Option<usize>,
    /// Anything but zero in it ends the reply.
    pub stop: Arc<AtomicU8>,
}

/// How a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyEnd {
    /// The model ended it.
    Complete,
    /// It has as many tokens as it may.
    Cut,
    /// Its reader ended it.
    Stopped,
}

/// A reply, beside its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// How it ended.
    pub end: ReplyEnd,
    /// Messages that were dropped from the history to make room for it.
    pub dropped: usize,
}

/// A conversation that can be gone on with.
pub struct Conversation {
    options: ChatOptions,
    room: usize,
    vocab: usize,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// Tokens that end a reply.
    ends: Vec<u32>,
    system: Option<String>,
    /// Users' and the model's messages in turn.
    turns: Vec<Value>,
    /// There while its adapter is the one that is wanted.
    generator: Option<Generator>,
}

impl Conversation {
    /// Opens the model, ready for the first message.
    ///
    /// # Errors
    /// Whatever is wrong with options or files; a model without a chat template.
    pub fn begin(options: ChatOptions, system: Option<String>) -> Result<Self> {
        let model = Model::open(&options.generate.model)?;
        model.check_next_token()?;
        let (tokenizer, template) = (model.tokenizer()?, template(&options, &model)?);
        let ends = all_ends(&model, &tokenizer, Some(&template), options.generate.adapter.as_deref())?;
        let vocab = model.config.vocab;
        drop(model);
        let room = match options.room {
            Some(room) => room,
            None => Generator::room(&options.generate, ROOM)?,
        };
        let (turns, generator) = (Vec::new(), None);
        let mut talk = Self { options, room, vocab, tokenizer, template, ends, system, turns, generator };
        talk.generator()?;
        Ok(talk)
    }

    /// Most tokens of history and reply together.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Says `text` to the model and hands its reply over piece by piece, each of whole characters. A reply that was stopped stays in the
    /// history as far as it came.
    ///
    /// # Errors
    /// When the message does not fit or the template refuses it: the history is as before then.
    pub fn say(&mut self, text: &str, each: &mut dyn FnMut(&str)) -> Result<Reply> {
        let mut turns = self.turns.clone();
        turns.push(json!({ "role": "user", "content": text }));
        let (prompt, dropped) = self.fitting(&mut turns)?;
        let (mut reply, mut piece) = (String::new(), String::new());
        let (mut left, mut end) = (self.options.max_tokens, ReplyEnd::Cut);
        self.generator()?;
        let Self { generator, tokenizer, ends, .. } = self;
        let mut decoder = tokenizer.decoder(true);
        let mut hand_over = |piece: &mut String| {
            each(piece);
            reply.push_str(piece);
            piece.clear();
        };
        let Some(generator) = generator else { unreachable!("it was made above") };
        let said = generator.generate(&prompt, &mut |token| {
            if ends.contains(&token) {
                end = ReplyEnd::Complete;
                return false;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            decoder.push(token, &mut piece);
            hand_over(&mut piece);
            left > 0
        });
        match said {
            Err(Error::Stopped) => end = ReplyEnd::Stopped,
            other => other?,
        }
        decoder.finish(&mut piece);
        hand_over(&mut piece);
        if end != ReplyEnd::Stopped || !reply.is_empty() {
            turns.push(json!({ "role": "assistant", "content": reply }));
            self.turns = turns;
        }
        Ok(Reply { end, dropped })
    }

    /// Begins anew; the system's message stays.
    pub fn reset(&mut self) {
        self.turns.clear();
    }

    /// Replaces the system's message from the next reply on, for the whole history.
    pub fn set_system(&mut self, system: Option<String>) {
        self.system = system;
    }

    /// Replaces the adapter from the next reply on.
    ///
    /// # Errors
    /// When it can't be used; the conversation has the old one then.
    pub fn set_adapter(&mut self, folder: Option<PathBuf>) -> Result<()> {
        if let Some(folder) = &folder {
            // A slip is found before anything is given up.
            adapter::spec(folder, &adapter::open(folder)?)?;
        }
        let generate = GenerateOptions { adapter: folder, ..self.options.generate.clone() };
        let options = ChatOptions { generate, ..self.options.clone() };
        let model = Model::open(&options.generate.model)?;
        let template = template(&options, &model)?;
        let ends = all_ends(&model, &self.tokenizer, Some(&template), options.generate.adapter.as_deref())?;
        drop(model);
        // Two arenas at once would be more than the budget has.
        self.generator = None;
        let generator = Generator::new(&options.generate, self.room)?;
        (self.options, self.template, self.ends) = (options, template, ends);
        self.heed(generator);
        Ok(())
    }

    /// Whether anything has been said.
    pub fn has_turns(&self) -> bool {
        !self.turns.is_empty()
    }

    /// The conversation as a record that can be trained on.
    pub fn record(&self) -> Value {
        json!({ "messages": self.messages(&self.turns) })
    }

    fn messages(&self, turns: &[Value]) -> Vec<Value> {
        let system = self.system.iter().map(|text| json!({ "role": "system", "content": text }));
        system.chain(turns.iter().cloned()).collect()
    }

    /// The tokens of the history with room for a reply, and how many of its oldest messages had to go for that.
    fn fitting(&self, turns: &mut Vec<Value>) -> Result<(Vec<u32>, usize)> {
        let all = turns.len();
        // A quarter of the room for the reply, or what it may have, where that is less.
        let reply = self.options.max_tokens.clamp(1, self.room.div_ceil(4));
        loop {
            let mut prompt = Vec::new();
            let ends = self.tokenizer.ends();
            let rendered = self.template.render(&self.messages(turns), None, true, ends)?.text;
            self.tokenizer.encode(&rendered, false, &mut prompt);
            if prompt.len() + reply > self.room && turns.len() > 1 {
                // With the oldest question goes all that was said to it.
                let next = turns.iter().skip(1).position(|message| message["role"] == "user");
                turns.drain(..next.map_or(1, |at| at + 1));
                continue;
            }
            if prompt.len() >= self.room {
                let fault =
                    format!("the message has {} tokens with its template, and the room is {}", prompt.len(), self.room);
                return Err(Error::System(fault));
            }
            if let Some(id) = prompt.iter().find(|&&id| id as usize >= self.vocab) {
                let fault = format!("the message has token {id}, and the model's embedding {} tokens", self.vocab);
                return Err(Error::System(fault));
            }
            return Ok((prompt, all - turns.len()));
        }
    }

    /// Makes the generator, where there is none.
    fn generator(&mut self) -> Result<()> {
        if self.generator.is_none() {
            let generator = Generator::new(&self.options.generate, self.room)?;
            self.heed(generator);
        }
        Ok(())
    }

    fn heed(&mut self, mut generator: Generator) {
        generator.heed(Arc::clone(&self.options.stop));
        self.generator = Some(generator);
    }
}

fn template(options: &ChatOptions, model: &Model) -> Result<ChatTemplate> {
    let found = options.template.find(model, options.generate.adapter.as_deref())?;
    found.ok_or_else(|| Error::Model {
        path: model.files.path().into(),
        fault: "the model has no chat template; --chat-template FILE names one, and generate continues plain text"
            .into(),
    })
}
