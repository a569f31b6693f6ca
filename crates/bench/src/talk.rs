//! A program of ours or of others that is asked line by line and answers each line with one of JSON, so that it can stay alive and
//! wait while others run. One that ends is reported in its own last words.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::Value;

use crate::failure::{Failure, Result};

/// A running program.
pub struct Talk {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// What it prints for people.
    words: PathBuf,
}

impl Talk {
    /// Starts `command`; what it prints for people goes to a file `name` in `folder`.
    ///
    /// # Errors
    /// When it can't be started.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self> {
        let words = folder.join(name);
        let log = File::create(&words).map_err(|error| Failure::io(&words, error))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| Failure::io(command.get_program(), error))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().expect("it was asked for"));
        Ok(Self { child, requests, answers: BufReader::new(answers), words })
    }

    /// Its number as a process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it answers to `line`.
    ///
    /// # Errors
    /// When it ends, with its own last line, or answers with anything but JSON.
    pub fn ask(&mut self, line: &str) -> Result<Value> {
        let requests = self.requests.as_mut().expect("it is there until the end");
        // A program that has ended says why; a broken pipe does not.
        let asked = writeln!(requests, "{line}").and_then(|()| requests.flush());
        let said = self.answer()?;
        asked.map_err(|error| Failure::io(&self.words, error))?;
        Ok(said)
    }

    /// Its next line, where it has one to say unasked.
    ///
    /// # Errors
    /// As [`Talk::ask`].
    pub fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.answers.read_line(&mut line).map_err(|error| Failure::io(&self.words, error))?;
        if read == 0 {
            let ended = self.child.wait().map_err(|error| Failure::io(&self.words, error))?;
            let said = std::fs::read_to_string(&self.words).unwrap_or_default();
            let last = said.lines().rfind(|line| !line.trim().is_empty());
            return Err(Failure::new(format!("it ended ({ended}): {}", last.unwrap_or("without a word"))));
        }
        serde_json::from_str(&line).map_err(|_| Failure::new(format!("a line that is not understood: {}", line.trim())))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // The end of its requests ends it; one that does not see it is ended here.
        drop(self.requests.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_answered_by_a_line_and_other_words_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", r#"while read x; do echo "$x"; done"#]);
        let mut talk = Talk::start(command, folder.path(), "sh").unwrap();
        assert_eq!(talk.ask("[1, 2]").unwrap()[1], 2);
        assert!(talk.ask("who is there").unwrap_err().to_string().ends_with("who is there"));
    }
}
