//! A run from outside: pause it, go on, end it, ask how it stands, from any thread. The run looks between instructions, abandons the
//! update it is in unless part of it is applied already, and puts its state on disk before it waits or ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;

use super::{Ending, Host, TrainOptions, train};
use crate::error::{Error, Result};

/// What is wished of a run.
const GO: u8 = 0;
const PAUSE: u8 = 1;
const CANCEL: u8 = 2;

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It reads, plans and measures; nothing was learnt yet in this process.
    Preparing,
    /// It computes.
    Running,
    /// Its state is on disk and it computes nothing until it is resumed or cancelled.
    Paused,
    /// It is over.
    Ended,
}

/// The handle of a run; clones are the same handle. All calls return at once and may come from a signal handler.
#[derive(Clone, Debug, Default)]
pub struct Control {
    wish: Arc<AtomicU8>,
    state: Arc<AtomicU8>,
}

impl Control {
    /// Asks the run to put its state on disk and to wait.
    pub fn pause(&self) {
        // One that is to end does not wait.
        let _ = self.wish.compare_exchange(GO, PAUSE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Lets a paused run go on.
    pub fn resume(&self) {
        let _ = self.wish.compare_exchange(PAUSE, GO, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Asks the run to put its state on disk and to end; another run can go on with it.
    pub fn cancel(&self) {
        self.wish.store(CANCEL, Ordering::Relaxed);
    }

    /// How the run stands.
    pub fn state(&self) -> State {
        match self.state.load(Ordering::Relaxed) {
            0 => State::Preparing,
            1 => State::Running,
            2 => State::Paused,
            _ => State::Ended,
        }
    }

    pub(super) fn enter(&self, state: State) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// What the backend looks at: not zero where the step is to be abandoned.
    pub(super) fn flag(&self) -> Arc<AtomicU8> {
        Arc::clone(&self.wish)
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.wish.load(Ordering::Relaxed) == CANCEL
    }

    pub(super) fn is_paused(&self) -> bool {
        self.wish.load(Ordering::Relaxed) == PAUSE
    }
}

/// A run on a thread of its own.
pub struct Job {
    control: Control,
    thread: JoinHandle<Result<Ending>>,
}

impl Job {
    /// Starts it.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(options: TrainOptions, mut host: impl Host + Send + 'static) -> Result<Self> {
        let control = Control::default();
        let theirs = control.clone();
        let thread = std::thread::Builder::new()
            .name("pocketune-run".into())
            .spawn(move || train(&options, &mut host, &theirs))
            .map_err(|error| Error::System(format!("a thread for the run: {error}")))?;
        Ok(Self { control, thread })
    }

    /// Its handle.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// Those of [`train`].
    pub fn wait(self) -> Result<Ending> {
        self.thread.join().unwrap_or_else(|_| Err(Error::System("the run's thread panicked".into())))
    }
}
