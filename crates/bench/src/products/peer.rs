//! PyTorch's side: `torch.mm` of ready floats, in a process of its own that waits while ours run.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use super::Direction;
use crate::failure::{Failure, Result};
use crate::peers::python;
use crate::talk::Talk;

/// The program that multiplies.
const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/mm.py");

/// A PyTorch that multiplies on request.
pub struct Peer {
    talk: Talk,
    /// What it is, in words.
    pub about: String,
}

impl Peer {
    /// Starts it; what it prints for people goes to `folder`.
    ///
    /// # Errors
    /// When it can't be started, with its own last line.
    pub fn start(path: Option<&Path>, threads: usize, precision: &str, folder: &Path) -> Result<Self> {
        let mut command = Command::new(python(path));
        command.arg(PEER).args(["--threads", &threads.to_string(), "--precision", precision]);
        let mut talk = Talk::start(command, folder, "torch-mm")?;
        let said = talk.answer().map_err(|error| Failure::new(format!("PyTorch (--alone does without): {error}")))?;
        Ok(Self { talk, about: said["about"].as_str().unwrap_or_default().into() })
    }

    /// Seconds of its shortest product within `each`.
    ///
    /// # Errors
    /// When it ends, or says no number.
    pub fn least(
        &mut self,
        direction: Direction,
        (rows, cols): (usize, usize),
        tokens: usize,
        each: Duration,
    ) -> Result<f64> {
        let forward = direction == Direction::Forward;
        let asked =
            json!({ "tokens": tokens, "rows": rows, "cols": cols, "forward": forward, "seconds": each.as_secs_f64() });
        let said = self.talk.ask(&asked.to_string())?;
        said["seconds"]
            .as_f64()
            .filter(|seconds| *seconds > 0.0)
            .ok_or_else(|| Failure::new(format!("no time: {said}")))
    }
}
