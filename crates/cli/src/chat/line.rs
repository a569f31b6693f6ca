//! What a line of a conversation asks for: a message, or a command that begins with `/`. It refuses commands that it does not know and
//! those that lack a word or have one too many.

use std::path::PathBuf;

/// What can be typed, one line each.
pub const HELP: &str = "\
/adapter PATH   use another adapter from now on; none for the model alone
/system TEXT    set the system's message; without a text, have none
/save FILE      add this conversation to FILE, as a record that train reads
/reset          begin anew; adapter and system's message stay
/quit           end, as the end of input does
Ctrl-C ends a reply. To send a message that begins with /, put a space before it.
";

/// A line, understood.
#[derive(Debug, PartialEq)]
pub enum Line<'a> {
    Nothing,
    Message(&'a str),
    Adapter(Option<PathBuf>),
    System(Option<&'a str>),
    Save(PathBuf),
    Reset,
    Help,
    Quit,
}

impl<'a> Line<'a> {
    /// Understands a line; else what is wrong with it.
    pub fn read(line: &'a str) -> Result<Self, String> {
        let Some(words) = line.strip_prefix('/') else {
            let message = line.trim();
            return Ok(if message.is_empty() { Line::Nothing } else { Line::Message(message) });
        };
        let (command, rest) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        let rest = rest.trim();
        let path =
            |what| if rest.is_empty() { Err(format!("/{command}: which {what}?")) } else { Ok(PathBuf::from(rest)) };
        let alone = |line| match rest {
            "" => Ok(line),
            _ => Err(format!("/{command} {rest}: nothing goes behind /{command}")),
        };
        match command.trim() {
            "adapter" if rest == "none" => Ok(Line::Adapter(None)),
            "adapter" => path("folder, or none").map(|path| Line::Adapter(Some(path))),
            "system" => Ok(Line::System(Some(rest).filter(|text| !text.is_empty()))),
            "save" => path("file").map(Line::Save),
            "reset" => alone(Line::Reset),
            "help" => alone(Line::Help),
            "quit" | "exit" => alone(Line::Quit),
            _ => Err(format!("/{command}: no such command; /help lists them")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_messages_or_commands() {
        assert_eq!(Line::read("  "), Ok(Line::Nothing));
        assert_eq!(Line::read(" Who is there? "), Ok(Line::Message("Who is there?")));
        assert_eq!(Line::read(" /etc/hosts is a file"), Ok(Line::Message("/etc/hosts is a file")));
        assert_eq!(Line::read("/adapter  my notes "), Ok(Line::Adapter(Some("my notes".into()))));
        assert_eq!(Line::read("/adapter none"), Ok(Line::Adapter(None)));
        assert_eq!(Line::read("/system Be brief."), Ok(Line::System(Some("Be brief."))));
        assert_eq!(Line::read("/system"), Ok(Line::System(None)));
        assert_eq!(Line::read("/save a.jsonl"), Ok(Line::Save("a.jsonl".into())));
        assert_eq!(Line::read("/quit"), Ok(Line::Quit));
    }

    #[test]
    fn commands_that_can_not_be_meant_are_refused_by_name() {
        for line in ["/adapter", "/save  ", "/reset now", "/help me", "/", "/sistem x"] {
            let fault = Line::read(line).unwrap_err();
            assert!(fault.starts_with(line.split(' ').next().unwrap()), "{line}: {fault}");
        }
    }
}
