//! The way through a program: its instructions in order, pieces of rows in their regions, blocks that rest or are passed by, weights asked for ahead, and where it may stop.

use pocketune_kernels::cross_entropy;

use super::{Batch, Cpu, LOGITS_PIECE, Outcome, Rule};
use crate::error::Result;
use crate::plan::{Instr, Mode, Program};

impl Cpu {
    /// Runs `program` on `batch`, `past` tokens of which are in the cache already, applying gradients with `rule`.
    ///
    /// # Errors
    /// When the disk fails, or when it was asked to stop.
    pub fn run(&mut self, program: &Program, batch: Batch, past: usize, rule: Option<Rule>) -> Result<Outcome> {
        self.run_watched(program, batch, past, rule, &mut |_| {})
    }

    /// As [`Cpu::run`], calling `done` after every instruction.
    ///
    /// # Errors
    /// When the disk fails, or when it was asked to stop.
    pub fn run_watched(
        &mut self,
        program: &Program,
        batch: Batch,
        past: usize,
        rule: Option<Rule>,
        done: &mut dyn FnMut(&Instr),
    ) -> Result<Outcome> {
        let result = self.walk(program, batch, past, rule, done);
        // Whatever ended it early, the disk's thread no longer reads or writes what the next run will use.
        if let Some(disk) = &self.disk {
            disk.settle();
        }
        result
    }

    fn walk(
        &mut self,
        program: &Program,
        batch: Batch,
        past: usize,
        rule: Option<Rule>,
        done: &mut dyn FnMut(&Instr),
    ) -> Result<Outcome> {
        let n = batch.ids.len();
        assert!(n <= program.tokens, "{n} tokens in a program for {}", program.tokens);
        let mut outcome = Outcome::default();
        let mut regions = program.regions.iter();
        let mut region = regions.next();
        let mut passages = program.passages.iter().peekable();
        let trains = matches!(program.mode, Mode::TrainAndUpdate | Mode::Accumulate);
        let mut updated = false;
        // Up to where the block at hand rests.
        let (last, mut rests) = (self.end_of(program), 0);
        let mut at = 0;
        while at < last {
            let passage = passages.next_if(|passage| passage.instrs.start == at);
            if let Some(passage) = passage.filter(|passage| self.rests(passage.block)) {
                rests = passage.instrs.end;
            }
            if let Some(passage) = passage.filter(|passage| self.dropped[passage.block]) {
                self.pass_by(program, *passage, n);
                at = passage.instrs.end;
                while region.is_some_and(|region| region.start < at) {
                    region = regions.next();
                }
                continue;
            }
            let (end, rows) = match region {
                Some(of) if of.start == at => {
                    region = regions.next();
                    (of.end, program.rows)
                }
                _ => (at + 1, n.max(1)),
            };
            let mut start = 0;
            while start < n || (start == 0 && n == 0) {
                let window = start..(start + rows).min(n);
                for (index, instr) in (at..).zip(&program.instrs[at..end]) {
                    if index < rests && instr.teaches() {
                        continue;
                    }
                    if !updated {
                        self.unless_stopping()?;
                    }
                    if program.stream && start == 0 && instr.weight().is_some() {
                        self.read_ahead(&program.instrs[index + 1..]);
                    }
                    self.step(program, instr, batch, window.clone(), past, rule, &mut outcome)?;
                    done(instr);
                    updated |= instr.updates() && !self.is_measuring();
                    // A loss that is no number is not below either.
                    let fine = outcome.loss / (outcome.targets.max(1) as f64) < self.loss_limit;
                    if trains && instr.loss().is_some() && !fine {
                        return Ok(outcome);
                    }
                }
                start += rows;
            }
            at = end;
        }
        Ok(outcome)
    }

    /// The next weight is asked for while this one is computed with, so that a file that is not cached is read meanwhile. Which rows of an
    /// embedding are needed is up to the tokens.
    fn read_ahead(&self, instrs: &[Instr]) {
        match instrs.iter().find(|instr| instr.weight().is_some()) {
            Some(Instr::CrossEntropy { weight, .. } | Instr::LearnTable { weight, .. }) => {
                self.weights.read_ahead(*weight, 0..cross_entropy::STRIP);
            }
            Some(Instr::Logits { weight, .. }) => self.weights.read_ahead(*weight, 0..LOGITS_PIECE),
            None | Some(Instr::Embed { .. }) => {}
            Some(next) => next.weight().into_iter().for_each(|weight| self.weights.read_ahead(weight, 0..usize::MAX)),
        }
    }
}
