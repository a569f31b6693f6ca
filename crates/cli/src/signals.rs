//! SIGINT and SIGTERM as a wish to stop: the first asks the run to put its state on disk and end, a second ends the process at once, which
//! is safe at any moment. Before a run has begun to train there is nothing to keep, and the first ends it. In a conversation SIGINT ends
//! the reply that is being written, and the program where there is none.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use pocketune::train::{Control, State};

static CONTROL: OnceLock<Control> = OnceLock::new();
static ASKED: AtomicBool = AtomicBool::new(false);

/// The handle of this process's run, which signals act on from now on.
pub fn heeded() -> Control {
    let control = CONTROL.get_or_init(Control::default).clone();
    let handler = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: the handler makes atomic loads and stores and two system calls that a handler may make.
        unsafe { libc::signal(signal, handler) };
    }
    control
}

extern "C" fn on_signal(signal: libc::c_int) {
    let Some(control) = CONTROL.get() else { return };
    if ASKED.swap(true, Ordering::Relaxed) || control.state() == State::Preparing {
        // SAFETY: ends the process without running anything else of it.
        unsafe { libc::_exit(128 + signal) };
    }
    control.cancel();
    let words = b"Stopping: the state goes to disk (a second signal ends at once)\n";
    // SAFETY: a plain system call on bytes that live for ever; nobody is told whether it fails.
    let _ = unsafe { libc::write(2, words.as_ptr().cast(), words.len()) };
}

static END_REPLY: OnceLock<Arc<AtomicU8>> = OnceLock::new();
static REPLYING: AtomicBool = AtomicBool::new(false);

/// SIGINT while a conversation runs.
pub struct Interrupts(Arc<AtomicU8>);

impl Interrupts {
    /// From now on the signal ends replies.
    pub fn heeded() -> Self {
        let flag = END_REPLY.get_or_init(Arc::default);
        let handler = on_interrupt as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: the handler makes atomic loads and stores and one system call that a handler may make.
        unsafe { libc::signal(libc::SIGINT, handler) };
        Self(Arc::clone(flag))
    }

    /// Not zero once the reply is to end.
    pub fn flag(&self) -> Arc<AtomicU8> {
        Arc::clone(&self.0)
    }

    /// Runs `reply`, which a signal ends.
    pub fn during<T>(&self, reply: impl FnOnce() -> T) -> T {
        self.0.store(0, Ordering::Relaxed);
        REPLYING.store(true, Ordering::Relaxed);
        let result = reply();
        REPLYING.store(false, Ordering::Relaxed);
        // What is made between two replies is not to be stopped by a signal that came at the end of one.
        self.0.store(0, Ordering::Relaxed);
        result
    }
}

extern "C" fn on_interrupt(signal: libc::c_int) {
    match END_REPLY.get() {
        // A second signal finds no reply any more.
        Some(flag) if REPLYING.swap(false, Ordering::Relaxed) => flag.store(1, Ordering::Relaxed),
        // SAFETY: ends the process without running anything else of it.
        _ => unsafe { libc::_exit(128 + signal) },
    }
}
