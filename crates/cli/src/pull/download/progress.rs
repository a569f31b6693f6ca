//! How far a download is, on standard error: a line that moves on a terminal, one line for each file elsewhere.
//!
//! Standard output stays free for what the command answers.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

/// How often the line moves.
const BEAT: Duration = Duration::from_millis(200);

/// The line of one file.
pub struct Progress {
    what: String,
    total: Option<u64>,
    done: u64,
    terminal: bool,
    began: Instant,
    shown: Option<Instant>,
}

impl Progress {
    /// A file of which nothing has come yet.
    pub fn new(what: &str, total: Option<u64>) -> Self {
        let terminal = stderr().is_terminal();
        if !terminal {
            let size = total.map_or(String::new(), |total| format!(" ({})", megabytes(total)));
            eprintln!("fetching {what}{size}");
        }
        Self { what: what.to_owned(), total, done: 0, terminal, began: Instant::now(), shown: None }
    }

    /// `bytes` more have come.
    pub fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        let due = self.shown.is_none_or(|shown| shown.elapsed() >= BEAT);
        if self.terminal && due {
            self.show();
            self.shown = Some(Instant::now());
        }
    }

    fn show(&self) {
        let of = self.total.map_or(String::new(), |total| format!(" of {}", megabytes(total)));
        let rate = megabytes((self.done as f64 / self.began.elapsed().as_secs_f64().max(1e-3)) as u64);
        eprint!("\r\x1b[K{}: {}{of}, {rate}/s", self.what, megabytes(self.done));
        // A terminal that is gone is no reason to stop a download.
        let _ = stderr().flush();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            self.show();
            eprintln!();
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
