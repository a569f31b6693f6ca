//! SIGINT and SIGTERM as a wish to stop: the first asks the run to put its state on disk and end, a second ends the process at once, which
//! is safe at any moment. Before a run has begun to train there is nothing to keep, and the first ends it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

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
