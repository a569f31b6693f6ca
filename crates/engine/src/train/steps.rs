//! The loop: updates one after another, reports, checkpoints, and what to do between two updates when the user or the surroundings want
//! something else. An update that is abandoned has changed nothing.

use std::time::Duration;

use pocketune_kernels::update::{AdaLomo, AdamW, Apollo, Galore, Mlorc, Sgd};

use super::best::Verdict;
use super::control::State;
use super::keeper::Keeper;
use super::numbers::{self, IN_A_ROW, MOST_HALVINGS};
use super::progress::{Progress, Since};
use super::run::Run;
use super::{Control, Event, Host, Optimizer, Pace, Report, TrainOptions};
use crate::backend::{Noise, Outcome, Rule};
use crate::error::{Error, Result};
use crate::memory::Peak;
use crate::plan::Mode;

/// How long a run that waits sleeps before it looks again.
const NAP: Duration = Duration::from_millis(20);

/// A run that steps.
pub(super) struct Steps<'a> {
    pub(super) options: &'a TrainOptions,
    host: &'a mut dyn Host,
    control: &'a Control,
    pub(super) run: &'a mut Run,
    keeper: &'a mut Keeper,
    peak: &'a mut Peak,
    progress: Progress,
    /// Operations a second that products reach by themselves, where that could be measured.
    pub alone: Option<f64>,
    window: Window,
    /// When the run began to prepare.
    pub start: Duration,
    /// How long its last update took.
    took: Duration,
    /// Whether the weights were looked through for what is no number.
    searched: bool,
    /// The last validation.
    found: Option<Outcome>,
}

/// What was worked on since the last report.
#[derive(Default)]
struct Window {
    since: Duration,
    updates: usize,
    tokens: u64,
    flops: f64,
}

/// What an update found and worked on.
#[derive(Default)]
pub(super) struct Work {
    pub outcome: Outcome,
    /// Whether its numbers were bad, so that it was not applied.
    pub bad: bool,
    pub tokens: u64,
    /// Operations of its products.
    pub flops: f64,
}

/// The last validation, where there is a validation set, and where the run ended.
type Finished = (Option<Outcome>, Progress);

impl<'a> Steps<'a> {
    pub fn new(
        options: &'a TrainOptions,
        host: &'a mut dyn Host,
        control: &'a Control,
        run: &'a mut Run,
        keeper: &'a mut Keeper,
        peak: &'a mut Peak,
        progress: Progress,
    ) -> Self {
        let start = host.now();
        Self {
            options,
            host,
            control,
            run,
            keeper,
            peak,
            progress,
            alone: None,
            window: Window { since: start, ..Window::default() },
            start,
            took: Duration::ZERO,
            searched: false,
            found: None,
        }
    }

    /// All updates that are left; `None` where the run was stopped before their end, with its state on disk.
    pub fn all(mut self) -> Result<Option<Finished>> {
        loop {
            if !self.may_go_on()? {
                return Ok(None);
            }
            match self.next() {
                // It is looked at what is wished before anything else is begun.
                Err(Error::Stopped) | Ok(None) => {}
                Ok(Some(finished)) => return Ok(Some(finished)),
                Err(error) => return Err(error),
            }
        }
    }

    /// One thing: a validation, an update, or the end.
    fn next(&mut self) -> Result<Option<Finished>> {
        let Progress { iter, valid_before, validated, .. } = self.progress;
        if iter == 0 && valid_before.is_none() && self.run.data.valid.is_some() {
            self.progress.valid_before = self.validate()?.map(Into::into);
            self.window.since = self.host.now();
            return Ok(None);
        }
        let last = iter == self.options.iters;
        // One that was abandoned, or that a checkpoint does not know of, is made again.
        let enough = self.progress.best.is_enough(self.options.early_stopping);
        let ends_unmeasured = (last || enough) && self.found.is_none() && self.run.data.valid.is_some();
        let due = validated != iter && (last || iter.is_multiple_of(self.options.steps_per_eval));
        if iter > 0 && (due || ends_unmeasured) {
            let begun = self.host.now();
            match self.validate() {
                // The weights were fine before the first update.
                Err(Error::Numbers(fault)) => return self.go_back(Error::Numbers(fault)).map(|()| None),
                found => self.judge(found?)?,
            }
            self.progress.validated = iter;
            self.window.since += self.host.now().saturating_sub(begun);
            return Ok(None);
        }
        if !(last || enough) {
            self.step()?;
            return Ok(None);
        }
        Ok(Some((self.found, self.progress)))
    }

    fn validate(&mut self) -> Result<Option<Outcome>> {
        let Some(outcome) = self.run.validate(self.options.val_batches)? else { return Ok(None) };
        if !outcome.loss.is_finite() {
            return Err(self.cause("the validation set", outcome.loss));
        }
        self.host.event(Event::Validated { iter: self.progress.iter, outcome });
        Ok(Some(outcome))
    }

    /// What a validation means; where the best adapter is kept and this is it, it goes to disk.
    fn judge(&mut self, found: Option<Outcome>) -> Result<()> {
        self.found = found;
        let Some(outcome) = found else { return Ok(()) };
        let (options, progress) = (self.options, &mut self.progress);
        let verdict = progress.best.take(progress.iter, outcome.mean_loss(), options.early_stopping);
        if verdict == Verdict::Better && options.keeps_best() {
            self.run.save(options, progress.iter)?;
            progress.kept = Some(outcome.into());
        }
        if verdict == Verdict::Enough && progress.iter < options.iters {
            let (iter, best) = (progress.iter, progress.best.iter().unwrap_or(progress.iter));
            self.host.event(Event::Stopped { iter, best });
        }
        Ok(())
    }

    /// Waits while the run is to pause, rests where it is to be slow, and moves to another plan where the memory changed. Whether to
    /// go on; where not, its state is on disk.
    fn may_go_on(&mut self) -> Result<bool> {
        let mut paused = false;
        loop {
            if self.control.is_cancelled() || self.time_is_up() {
                self.commit()?;
                return Ok(false);
            }
            let advice = self.host.advice();
            if !(self.control.is_paused() || advice.pace == Pace::Pause) {
                if paused {
                    self.control.enter(State::Running);
                    self.host.event(Event::Continued);
                }
                if advice.pace == Pace::Slow {
                    self.rest();
                }
                self.fit(advice.memory)?;
                return Ok(true);
            }
            if !paused {
                self.commit()?;
                self.control.enter(State::Paused);
                self.host.event(Event::Paused { iter: self.progress.iter });
                paused = true;
            }
            std::thread::sleep(NAP);
        }
    }

    /// Whether another update would end after the time limit. The first of a process never does, so that any limit gets somewhere.
    fn time_is_up(&mut self) -> bool {
        let limit = self.options.keeping.time_limit.filter(|_| !self.took.is_zero());
        limit.is_some_and(|limit| self.host.now().saturating_sub(self.start) + self.took > limit)
    }

    /// As long as the last update took.
    fn rest(&mut self) {
        let end = self.host.now() + self.took;
        while self.host.now() < end && !self.control.is_cancelled() {
            std::thread::sleep(NAP.min(end.saturating_sub(self.host.now())));
        }
    }

    /// Goes over to another plan where the memory that the run may take has changed: at once where the plan no longer fits, and back
    /// where there is an eighth more than the plan was made for. The state goes by way of the disk, so that no moment holds two plans.
    fn fit(&mut self, memory: Option<usize>) -> Result<()> {
        let (Some(made_for), Some(budget)) = (self.run.bytes, self.run.budget) else { return Ok(()) };
        let bytes = memory.map_or(budget, |memory| memory.min(budget));
        if self.run.plan.memory.standing() <= bytes && bytes <= made_for + made_for / 8 {
            return Ok(());
        }
        self.commit()?;
        if self.run.move_to(bytes)? {
            let (run, progress) = (&mut *self.run, &self.progress);
            let restored = self.keeper.restore(&mut run.cpu, &run.graph)?;
            debug_assert_eq!(restored.iter, progress.iter);
            self.host.event(Event::Moved { plan: &self.run.plan, bytes });
        }
        Ok(())
    }

    /// Puts the state on disk, unless it is there. A state that is not finite goes back to the last one that was.
    fn commit(&mut self) -> Result<()> {
        if self.keeper.has(self.progress.iter) {
            return Ok(());
        }
        let now = self.host.now();
        match self.keeper.commit(&self.run.cpu, &self.run.graph, &self.progress, now) {
            Err(Error::Numbers(fault)) => self.go_back(Error::Numbers(fault)),
            done => {
                done?;
                self.host.event(Event::Committed { iter: self.progress.iter });
                Ok(())
            }
        }
    }

    /// One update, with everything that follows from it.
    fn step(&mut self) -> Result<()> {
        let begun = self.host.now();
        let mut next = Progress { iter: self.progress.iter + 1, ..self.progress };
        let iter = next.iter;
        self.host.event(Event::Step { iter, iters: self.options.iters });
        let lr = self.options.schedule.rate(iter, self.options.iters) * 0.5_f32.powi(next.halvings as i32);
        let zeroth = self.options.method.zeroth();
        if iter == 1 && zeroth.is_none() && self.options.drop_backward == 0.0 && self.options.method.turns().is_none() {
            self.run.cpu.watch();
        }
        let work = match zeroth {
            Some(zeroth) => self.along_directions(zeroth, &mut next, lr)?,
            None => self.update(&mut next, lr)?,
        };
        let loss = work.outcome.loss / work.outcome.targets.max(1) as f64;
        if work.bad {
            if !loss.is_finite() && !self.searched {
                self.searched = true;
                self.run.cpu.weights().find_not_finite().map_or(Ok(()), Err)?;
            }
            next.skipped += 1;
            next.bad_in_a_row += 1;
            self.host.event(Event::Skipped { iter, loss });
        } else {
            next.bad_in_a_row = 0;
            next.spikes.take(loss);
            next.since.losses += loss;
            next.since.counted += 1;
        }
        if let Some(sums) = self.run.cpu.watched().filter(|_| loss.is_finite()) {
            numbers::check_first_gradients(&sums, &self.run.graph)?;
        }
        next.trained += work.tokens;
        self.progress = next;
        self.window.updates += 1;
        self.window.tokens += work.tokens;
        self.window.flops += work.flops;
        let last = iter == self.options.iters;
        if next.bad_in_a_row >= IN_A_ROW || (last && work.bad && !loss.is_finite()) {
            let cause = self.cause(&format!("update {iter}"), loss);
            return self.go_back(cause);
        }
        if last && let Err(cause) = self.keeper.check_finite(&self.run.cpu, &self.run.graph) {
            return self.go_back(cause);
        }
        if iter.is_multiple_of(self.options.steps_per_report) || last {
            self.report(lr);
        }
        self.took = self.host.now().saturating_sub(begun);
        // While numbers are bad, nothing replaces what was good.
        let due = self.keeper.is_due(self.options.keeping.every, iter, begun + self.took);
        if due && !last && !work.bad {
            self.commit()?;
        }
        Ok(())
    }

    fn report(&mut self, lr: f32) {
        let now = self.host.now();
        let seconds = now.saturating_sub(self.window.since).as_secs_f64().max(1e-9);
        let progress = &mut self.progress;
        progress.last_loss = progress.since.losses / progress.since.counted as f64;
        if progress.first_loss.is_nan() {
            progress.first_loss = progress.last_loss;
        }
        progress.since = Since::default();
        let report = Report {
            iter: progress.iter,
            iters: self.options.iters,
            loss: progress.last_loss,
            lr,
            iters_per_second: self.window.updates as f64 / seconds,
            tokens_per_second: self.window.tokens as f64 / seconds,
            mfu: self.alone.map(|alone| self.window.flops / seconds / alone),
            trained_tokens: progress.trained,
            peak: self.peak.look(),
            planned_peak: self.run.plan.peak(),
        };
        self.host.event(Event::Report(report));
        self.window = Window { since: self.host.now(), ..Window::default() };
    }

    /// Back to the last checkpoint, with half the learning rate of the last attempt. One that bad updates followed at once is itself bad, and
    /// gives way to the one before.
    ///
    /// # Errors
    /// `cause`, where that was done too often.
    fn go_back(&mut self, cause: Error) -> Result<()> {
        let halvings = self.progress.halvings + 1;
        if halvings > MOST_HALVINGS {
            return Err(cause);
        }
        if self.keeper.has(self.progress.iter - self.progress.bad_in_a_row) {
            self.keeper.discard();
        }
        let restored = self.keeper.restore(&mut self.run.cpu, &self.run.graph)?;
        let undone = self.progress.undone + self.progress.skipped - restored.skipped;
        // The best adapter stays on disk, whichever way led there.
        let Progress { valid_before, best, kept, .. } = self.progress;
        self.progress = Progress { halvings, undone, valid_before, best, kept, bad_in_a_row: 0, ..restored };
        self.host.event(Event::WentBack { iter: self.progress.iter, scale: 0.5_f32.powi(halvings as i32) });
        Ok(())
    }

    /// One update over `accumulation` passes. Gradients are those of the mean over all targets of the update, however it is cut into
    /// passes. Where the numbers are bad nothing is applied; where gradients are applied as they come, only those that are finite.
    fn update(&mut self, next: &mut Progress, lr: f32) -> Result<Work> {
        let (options, run) = (self.options, &mut *self.run);
        let rule = rule(options, next.iter - next.skipped, lr);
        let file = &run.data.train.tokens;
        let (step, passes) = (run.passes.step(), options.accumulation as u64);
        let sums = run.plan.program.mode == Mode::Accumulate;
        let limit = next.spikes.limit(options.max_loss_z);
        if options.drop_backward > 0.0 {
            run.cpu.drop_blocks(options.drop_backward, options.seed, next.iter as u64);
        }
        if let Some(shifts) = options.shifts() {
            let (update, blocks) = (next.iter - next.skipped, run.graph.blocks);
            run.cpu.take_turn(|block| shifts.learns(update, block, blocks), shifts.age(update))?;
        }
        run.cpu.limit_loss(if passes > 1 { f64::INFINITY } else { limit });
        let first = next.position;
        next.position += passes * step;
        let mut targets = 0;
        if passes > 1 {
            for pass in 0..passes {
                for &record in run.passes.records(first + pass * step, file) {
                    targets += run.rows.targets_of(file, record as usize)?;
                }
            }
        }
        if sums {
            run.cpu.clear_grads();
        }
        let mut work = Work::default();
        for pass in 0..passes {
            let records = run.passes.records(first + pass * step, file);
            run.rows.fill(file, records.iter().map(|&record| record as usize))?;
            let targets = if passes > 1 { targets } else { run.rows.targets() };
            let noise = Noise { seed: options.seed, pass: first + pass * step };
            let batch = run.rows.batch(targets, noise);
            let flops = run.flops.run(batch.segments.iter().map(|record| record.q_len), run.rows.targets());
            if let Some(limit) = options.max_grad_norm.filter(|_| run.graph.whole) {
                let (norm, outcome) = run.cpu.measure(&run.plan.program, batch)?;
                work.flops += flops;
                if !norm.is_finite() {
                    return Ok(Work { outcome, bad: true, tokens: run.rows.tokens() as u64, ..work });
                }
                run.cpu.scale_gradients((f64::from(limit) / (norm + 1e-6)).min(1.0) as f32);
            }
            let outcome = run.cpu.run(&run.plan.program, batch, 0, Some(rule))?;
            work.outcome.loss += outcome.loss;
            work.outcome.hits += outcome.hits;
            work.outcome.targets += outcome.targets;
            work.tokens += run.rows.tokens() as u64;
            work.flops += flops;
        }
        // A loss that is no number is not below either.
        let fine = work.outcome.loss / (work.outcome.targets.max(1) as f64) < limit;
        work.bad = !fine;
        if sums {
            work.bad |= !run.cpu.grads_are_finite();
            if !work.bad {
                let limit = options.max_grad_norm.map_or(f64::INFINITY, f64::from);
                // PyTorch's rule: the norm is never divided by exactly.
                let scale = (limit / (if limit.is_finite() { run.cpu.grad_norm() } else { 0.0 } + 1e-6)).min(1.0);
                run.cpu.apply_grads(rule, scale as f32)?;
            }
        }
        work.bad |= run.cpu.refused() > 0;
        Ok(work)
    }

    /// A loss that is not finite has a cause that can be named.
    fn cause(&self, place: &str, loss: f64) -> Error {
        let unknown = || Error::Numbers(format!("the loss of {place} is {loss}; a lower --learning-rate may help"));
        self.run.cpu.weights().find_not_finite().unwrap_or_else(unknown)
    }
}

fn rule(options: &TrainOptions, step: usize, lr: f32) -> Rule {
    let weight_decay = options.decay();
    let adamw = AdamW { lr, weight_decay, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: step as u64 };
    match options.optimizer {
        Optimizer::AdamW => Rule::AdamW(adamw),
        Optimizer::AdamW8bit => Rule::AdamW8bit(adamw),
        Optimizer::Sgd => Rule::Sgd(Sgd { lr, weight_decay }),
        Optimizer::AdaLomo => Rule::AdaLomo(AdaLomo { lr, weight_decay, step: step as u64 }),
        Optimizer::Apollo { mini } => {
            let (rank, scale) = if mini { (1, 128.0) } else { (Optimizer::APOLLO_RANK, 16.0) };
            let adamw = AdamW { eps: 1e-6, ..adamw };
            Rule::Apollo(Apollo { adamw, rank, scale, tensor: mini, seed: options.seed })
        }
        Optimizer::Mlorc => Rule::Mlorc(Mlorc { adamw, seed: options.seed }),
        Optimizer::Galore => {
            let adamw = AdamW { eps: 1e-6, ..adamw };
            Rule::Galore(Galore { adamw, rank: Optimizer::GALORE_RANK, scale: 0.25, seed: options.seed })
        }
    }
}
