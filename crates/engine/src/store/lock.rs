//! One run at a time writes to a folder. The lock goes with the process, however that ends.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::hidden_folder;
use super::storage::{Files, Storage};
use crate::error::{Error, Result};

/// Held while a run goes on.
pub struct RunLock {
    path: PathBuf,
    _file: File,
}

impl RunLock {
    /// Takes the lock of the run whose adapter goes to `run`, making its folders where they aren't there.
    ///
    /// # Errors
    /// When another process holds it, or the system fails.
    pub fn take(run: &Path) -> Result<Self> {
        let path = hidden_folder(run).join("lock");
        let io = |error| Error::io(&path, error);
        Files.make_folder(&hidden_folder(run)).map_err(io)?;
        Files.create(&path).map_err(io)?;
        let file = File::open(&path).map_err(io)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let fault = "another run writes here".into();
                Err(Error::Option { option: "adapter-path", value: run.display().to_string(), fault })
            }
            // A file system without locks has none to respect.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Self { path, _file: file }),
        }
    }
}

impl Drop for RunLock {
    fn drop(&mut self) {
        // Whoever opened it meanwhile makes a new one next time; the folder goes with the last thing in it.
        let _ = Files.remove(&self.path);
        let _ = self.path.parent().map(|folder| Files.remove_folder(folder));
    }
}
