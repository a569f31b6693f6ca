//! What a run is handed by its surroundings, and what it tells them.

use std::path::Path;
use std::time::Duration;

use super::{Advice, Budget, Prepared};
use crate::backend::{Alone, Outcome};
use crate::memory::Resident;
use crate::plan::{Machine, Plan};

/// What a run is handed by its surroundings.
pub trait Host {
    /// Time since some fixed moment.
    fn now(&mut self) -> Duration;
    /// Something happened that a person or an app may want to know.
    fn event(&mut self, event: Event);
    /// What the surroundings advise, asked between two updates.
    fn advice(&mut self) -> Advice {
        Advice::GO
    }
}

/// What happens in a run.
#[derive(Clone, Copy)]
pub enum Event<'a> {
    /// The data is ready.
    Prepared(&'a Prepared),
    /// Records are laid out in passes.
    Laid {
        /// Whether they are packed.
        packed: bool,
        /// Passes of the first epoch.
        passes: u64,
        /// The share of the rows that a plan has room for which they fill.
        filled: f64,
    },
    /// The plan stands; the first step comes next.
    Planned {
        /// What the run will hold and how.
        plan: &'a Plan,
        /// What it was made for.
        budget: Budget,
        /// How many bytes that was, unless as few as possible.
        bytes: Option<usize>,
        /// What it runs with.
        machine: Machine,
        /// Trainable numbers.
        trainable: usize,
    },
    /// The largest product of the step was run alone; what the step reaches is compared with it.
    Measured(Alone),
    /// The validation loss has not fallen for as long as was allowed; no update comes after this.
    Stopped {
        /// Updates done.
        iter: usize,
        /// Updates after which it was lowest.
        best: usize,
    },
    /// The validation set was measured.
    Validated {
        /// Updates done.
        iter: usize,
        /// What was found.
        outcome: Outcome,
    },
    /// An update begins.
    Step {
        /// Its number, from 1.
        iter: usize,
        /// Updates to do in all.
        iters: usize,
    },
    /// Time for a report.
    Report(Report),
    /// An earlier run is gone on with.
    Resumed {
        /// Updates that it had done.
        iter: usize,
        /// The file it came from.
        from: &'a Path,
    },
    /// The state of the run is on disk.
    Committed {
        /// Updates done.
        iter: usize,
    },
    /// Nothing is computed until the run may go on; its state is on disk.
    Paused {
        /// Updates done.
        iter: usize,
    },
    /// It goes on after a pause.
    Continued,
    /// The run goes on under another plan, because the memory that it may take has changed.
    Moved {
        /// What it holds now.
        plan: &'a Plan,
        /// What it may take now.
        bytes: usize,
    },
    /// An update was skipped because its numbers are bad.
    Skipped {
        /// Its number.
        iter: usize,
        /// Its mean loss.
        loss: f64,
    },
    /// After bad updates in a row the run is back at its last checkpoint.
    WentBack {
        /// Updates done there.
        iter: usize,
        /// What learning rates are multiplied by from now on.
        scale: f32,
    },
    /// The adapter is on disk, in this folder.
    Saved(&'a Path),
    /// The model that was trained itself is on disk, in this file or folder.
    SavedModel(&'a Path),
}

/// The state of a run.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Updates done.
    pub iter: usize,
    /// Updates to do in all.
    pub iters: usize,
    /// Mean loss of the updates since the last report, each before its update.
    pub loss: f64,
    /// The learning rate of the last update.
    pub lr: f32,
    /// Updates a second since the last report.
    pub iters_per_second: f64,
    /// Tokens a second since the last report.
    pub tokens_per_second: f64,
    /// Operations a second of the step's products, as a share of what the largest of them reaches alone, where that could be
    /// measured in the memory of the step.
    pub mfu: Option<f64>,
    /// Tokens of all updates so far.
    pub trained_tokens: u64,
    /// Peaks of the process so far.
    pub peak: Resident,
    /// The peak that was planned.
    pub planned_peak: usize,
}

/// What came out.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Updates that were made.
    pub iters: usize,
    /// The first report's loss.
    pub first_loss: f64,
    /// The last report's loss.
    pub last_loss: f64,
    /// Validation before, and of the adapter that was kept, where there is a validation set.
    pub valid: Option<(Outcome, Outcome)>,
    /// Updates after which the adapter was kept, where the best one was to be.
    pub best: Option<usize>,
    /// What the test set gave after the last update, where it was asked for.
    pub test: Option<Outcome>,
    /// Peaks of the process.
    pub peak: Resident,
    /// What was planned.
    pub plan: Plan,
    /// Updates that were skipped because their numbers were bad.
    pub skipped: usize,
}

/// How a run ended without an error.
#[derive(Clone, Debug)]
pub enum Ending {
    /// It did all of its updates.
    Done(Box<Summary>),
    /// It was stopped before, and can be gone on with.
    Stopped {
        /// Updates done, all of them on disk.
        iter: usize,
        /// Updates to do in all.
        iters: usize,
    },
}
