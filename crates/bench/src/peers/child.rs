//! A program that runs steps on request, ours or another's, watched from outside: it says what it built in a line of JSON, then answers
//! each number of steps with a line. Wall time is from request to answer; CPU time is what its threads took meanwhile.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::process::{cpu_time, peak_rss};

/// What a program says that it built.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// Numbers that are trained.
    pub trainable: u64,
    /// Numbers that are not.
    pub frozen: u64,
    /// The share of what its products reach alone that a step of a second would be, where it says.
    pub mfu_seconds: Option<f64>,
    /// What it is, in words.
    pub about: String,
}

/// One turn: so many steps in a row.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    /// CPU seconds a step.
    pub cpu: f64,
    /// Seconds a step.
    pub wall: f64,
    /// The last loss.
    pub loss: f64,
}

/// A running program.
pub struct Program {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// What it prints for people.
    words: PathBuf,
    /// What it built.
    pub ready: Ready,
}

impl Program {
    /// Starts `command` and waits until it is set up; what it prints for people goes to `folder`.
    ///
    /// # Errors
    /// When it can't be started or ends, with its own last line.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> Result<Self> {
        let words = folder.join(name);
        let log = File::create(&words).map_err(|error| Failure::io(&words, error))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(|error| Failure::io(command.get_program(), error))?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take().expect("it was asked for"));
        let ready = Ready { trainable: 0, frozen: 0, mfu_seconds: None, about: String::new() };
        let mut program = Self { child, requests, answers: BufReader::new(answers), words, ready };
        let said = program.answer()?;
        let number = |key: &str| {
            said[key].as_u64().ok_or_else(|| Failure::new(format!("a line without a number '{key}': {said}")))
        };
        let about = said["about"].as_str().unwrap_or_default().into();
        let mfu_seconds = said["flops"].as_f64().zip(said["alone"].as_f64()).map(|(flops, alone)| flops / alone);
        program.ready = Ready { trainable: number("trainable")?, frozen: number("frozen")?, mfu_seconds, about };
        Ok(program)
    }

    /// Runs `steps` steps.
    ///
    /// # Errors
    /// When the program ends or its loss is not finite.
    pub fn turn(&mut self, steps: usize) -> Result<Turn> {
        let (pid, count) = (self.child.id(), steps.max(1) as f64);
        let (before, start) = (cpu_time(pid)?, Instant::now());
        let requests = self.requests.as_mut().expect("it is there until the end");
        // A program that has ended says why; a broken pipe does not.
        let asked = writeln!(requests, "{steps}").and_then(|()| requests.flush());
        let said = self.answer()?;
        let wall = start.elapsed().as_secs_f64() / count;
        asked.map_err(|error| Failure::io(&self.words, error))?;
        let cpu = cpu_time(pid)?.saturating_sub(before).as_secs_f64() / count;
        let loss = said["loss"].as_f64().filter(|loss| loss.is_finite());
        let loss = loss.ok_or_else(|| Failure::new(format!("a loss that is not finite: {said}")))?;
        Ok(Turn { cpu, wall, loss })
    }

    /// The most memory that it held so far, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak(&self) -> Result<u64> {
        peak_rss(self.child.id())
    }

    fn answer(&mut self) -> Result<Value> {
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

impl Drop for Program {
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

    fn script(text: &str) -> Result<(tempfile::TempDir, Program)> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        let program = Program::start(command, folder.path(), "sh")?;
        Ok((folder, program))
    }

    const READY: &str = r#"echo '{"trainable": 7, "frozen": 9, "about": "a script"}'"#;

    #[test]
    fn a_turn_is_timed_from_outside_and_waiting_costs_no_cpu() {
        let text = format!(r#"{READY}; while read steps; do sleep 0.2; echo '{{"loss": 1.5}}'; done"#);
        let (_folder, mut program) = script(&text).unwrap();
        assert_eq!((program.ready.trainable, program.ready.frozen), (7, 9));
        let turn = program.turn(2).unwrap();
        assert!(turn.wall >= 0.1 && turn.wall < 5.0, "{turn:?}");
        assert!(turn.cpu < turn.wall, "{turn:?}");
        assert_eq!(turn.loss, 1.5);
        assert!(program.peak().unwrap() > 0);
    }

    #[test]
    fn a_program_that_ends_is_reported_in_its_own_words() {
        let fault = script("echo first >&2; echo out of memory >&2; exit 3").map(|_| ()).unwrap_err().to_string();
        assert!(fault.contains("3") && fault.ends_with("out of memory"), "{fault}");
        let (_folder, mut program) = script(&format!("{READY}; read steps; echo too much >&2; exit 1")).unwrap();
        assert!(program.turn(1).unwrap_err().to_string().ends_with("too much"));
    }

    #[test]
    fn a_loss_that_is_not_finite_is_no_turn() {
        let (_folder, mut program) = script(&format!(r#"{READY}; read steps; echo '{{"loss": null}}'"#)).unwrap();
        assert!(program.turn(1).unwrap_err().to_string().contains("not finite"));
    }
}
