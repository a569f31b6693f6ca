//! `pocketune chat`: a conversation line by line. Replies, and nothing else, go to standard output; where a person types, there is a
//! prompt to type at. What is wrong with a line is said, and the conversation goes on.

mod line;

use std::io::{BufRead, IsTerminal, Read, Write};

use pocketune::Error;
use pocketune::store::append_line;
use pocketune::train::{ChatOptions, Conversation, GenerateOptions, ReplyEnd};

use crate::args::ChatArgs;
use crate::signals::Interrupts;
use crate::{Failure, note, say};
use line::{HELP, Line};

/// The longest line, in bytes: more than any room holds.
const LONGEST: u64 = 1 << 20;

/// Talks until the end of input.
pub fn run(args: ChatArgs) -> Result<(), Failure> {
    let typed = std::io::stdin().is_terminal();
    let interrupts = Interrupts::heeded();
    let options = ChatOptions {
        generate: GenerateOptions {
            model: args.run.source(args.model),
            adapter: args.adapter,
            sampling: args.sampling.sampling(),
            budget: args.run.budget()?,
            run: args.run.options(),
        },
        template: args.template.choice(),
        max_tokens: args.max_tokens,
        room: args.max_kv_size,
        stop: interrupts.flag(),
    };
    let mut talk = Conversation::begin(options, args.system).map_err(Failure::new)?;
    if typed {
        note(&format!("Room for {} tokens. /help lists what can be typed; Ctrl-D ends.", talk.room()));
    }
    while let Some(text) = next_line(typed)? {
        match Line::read(&text) {
            Ok(Line::Quit) => break,
            Ok(Line::Message(message)) => {
                interrupts.during(|| reply(&mut talk, message, args.max_tokens))?;
            }
            Ok(line) => obey(&mut talk, line),
            Err(fault) => note(&fault),
        }
    }
    Ok(())
}

/// The next line, where there is one.
fn next_line(typed: bool) -> Result<Option<String>, Failure> {
    if typed {
        // The line that is typed ends what stands there.
        let _ = write!(std::io::stderr(), "> ");
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(LONGEST + 1).read_until(b'\n', &mut bytes);
    if read.map_err(|error| Failure(format!("standard input: {error}")))? == 0 {
        return Ok(None);
    }
    if bytes.len() as u64 > LONGEST {
        return Err(Failure(format!("standard input: a line has more than {LONGEST} bytes")));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_string()))
}

/// Prints the reply to a message as it comes. Only a fault that the next message would meet again ends the conversation.
fn reply(talk: &mut Conversation, message: &str, max_tokens: usize) -> Result<(), Failure> {
    let reply = match talk.say(message, &mut |piece| say(piece)) {
        Ok(reply) => reply,
        Err(error @ Error::Numbers(_)) => return Err(Failure::new(error)),
        Err(error) => {
            note(&format!("not sent: {error}"));
            return Ok(());
        }
    };
    say("\n");
    if reply.dropped > 0 {
        note(&format!("(the oldest {} messages were dropped: the room is {} tokens)", reply.dropped, talk.room()));
    }
    match reply.end {
        ReplyEnd::Complete => {}
        ReplyEnd::Cut => note(&format!("(cut: --max-tokens {max_tokens}, or the room's {} tokens)", talk.room())),
        ReplyEnd::Stopped => note("(stopped)"),
    }
    Ok(())
}

fn obey(talk: &mut Conversation, line: Line) {
    match line {
        Line::Adapter(path) => {
            let name = path.as_ref().map_or("no adapter".into(), |path| path.display().to_string());
            match talk.set_adapter(path) {
                Ok(()) => note(&format!("(now with {name})")),
                Err(error) => note(&format!("/adapter: {error}; the adapter is as before")),
            }
        }
        Line::System(text) => talk.set_system(text.map(String::from)),
        Line::Save(path) => {
            let record = talk.record();
            let messages = record["messages"].as_array().map_or(0, Vec::len);
            if !talk.has_turns() {
                return note("/save: nothing has been said yet");
            }
            match append_line(&path, &record.to_string()) {
                Ok(()) => note(&format!("({messages} messages added to {})", path.display())),
                Err(error) => note(&format!("/save: {error}")),
            }
        }
        Line::Reset => talk.reset(),
        Line::Help => note(HELP.trim_end()),
        Line::Nothing | Line::Message(_) | Line::Quit => {}
    }
}
