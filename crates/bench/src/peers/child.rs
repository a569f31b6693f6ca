//! A program that runs steps on request, ours or another's, watched from outside: it says what it built in a line of JSON, then answers
//! each number of steps with a line. Wall time is from request to answer; CPU time is what its threads took meanwhile.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::failure::{Failure, Result};
use crate::process::{cpu_time, peak_rss};
use crate::talk::Talk;

/// What a program says that it built.
#[derive(Clone, Debug, PartialEq)]
pub struct Ready {
    /// Numbers that are trained.
    pub trainable: u64,
    /// Numbers that are not.
    pub frozen: u64,
    /// Operations of the products of a step, where it says.
    pub flops: Option<f64>,
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
    talk: Talk,
    /// What it built.
    pub ready: Ready,
    /// Operations a second that its largest product reached alone, at best.
    alone: f64,
}

impl Program {
    /// Starts `command` and waits until it is set up; what it prints for people goes to `folder`.
    ///
    /// # Errors
    /// When it can't be started or ends, with its own last line.
    pub fn start(command: Command, folder: &Path, name: &str) -> Result<Self> {
        let mut talk = Talk::start(command, folder, name)?;
        let said = talk.answer()?;
        let number = |key: &str| {
            said[key].as_u64().ok_or_else(|| Failure::new(format!("a line without a number '{key}': {said}")))
        };
        let about = said["about"].as_str().unwrap_or_default().into();
        let flops = said["flops"].as_f64();
        let ready = Ready { trainable: number("trainable")?, frozen: number("frozen")?, flops, about };
        Ok(Self { talk, ready, alone: 0.0 })
    }

    /// Runs `steps` steps.
    ///
    /// # Errors
    /// When the program ends or its loss is not finite.
    pub fn turn(&mut self, steps: usize) -> Result<Turn> {
        let (pid, count) = (self.talk.id(), steps.max(1) as f64);
        let (before, start) = (cpu_time(pid)?, Instant::now());
        let said = self.talk.ask(&steps.to_string())?;
        let wall = start.elapsed().as_secs_f64() / count;
        let cpu = cpu_time(pid)?.saturating_sub(before).as_secs_f64() / count;
        let loss = said["loss"].as_f64().filter(|loss| loss.is_finite());
        let loss = loss.ok_or_else(|| Failure::new(format!("a loss that is not finite: {said}")))?;
        Ok(Turn { cpu, wall, loss })
    }

    /// Has it run its largest product by itself, where it counts operations. What counts is the best of all times: a moment in which
    /// something else disturbs the machine must not make steps look better.
    ///
    /// # Errors
    /// When the program ends.
    pub fn look_at_products(&mut self) -> Result<()> {
        if self.ready.flops.is_some() {
            self.alone = self.talk.ask("alone")?["alone"].as_f64().unwrap_or(0.0).max(self.alone);
        }
        Ok(())
    }

    /// The share of what its products reach alone that a step of a second would be, where it counts operations.
    pub fn mfu_seconds(&self) -> Option<f64> {
        self.ready.flops.filter(|_| self.alone > 0.0).map(|flops| flops / self.alone)
    }

    /// The most memory that it held so far, in bytes.
    ///
    /// # Errors
    /// When it has ended.
    pub fn peak(&self) -> Result<u64> {
        peak_rss(self.talk.id())
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
    fn the_best_rate_of_products_alone_counts_and_programs_that_count_nothing_are_not_asked() {
        let text = r#"echo '{"trainable": 7, "frozen": 9, "flops": 30.0}'
            for rate in 5 15 10; do read asked; echo "{\"alone\": $rate}"; done"#;
        let (_folder, mut program) = script(text).unwrap();
        assert_eq!(program.mfu_seconds(), None);
        (0..3).for_each(|_| program.look_at_products().unwrap());
        assert_eq!(program.mfu_seconds(), Some(2.0));
        let (_folder, mut program) = script(READY).unwrap();
        program.look_at_products().unwrap();
        assert_eq!(program.mfu_seconds(), None);
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
