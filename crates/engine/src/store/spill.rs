//! The spill file: room on disk for values and optimizer states that wait there during a run. All of its space is taken before the
//! first step, so that a full disk is found out then, and it has no name: the system removes it when the run ends, however it ends.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::storage::allocate;
use crate::error::{Error, Result};

/// Creates a file without a name in `folder`, readable by its owner alone.
///
/// # Errors
/// The system's.
pub(super) fn nameless(folder: &Path, what: &str) -> Result<File> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!(".pocketune-{what}-{}-{number}", std::process::id()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path).map_err(|error| Error::io(&path, error))?;
    std::fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
    Ok(file)
}

/// From now on a file that grows past the process's limit is an error like a full disk, not the end of the process. For a program to call
/// at its start; a library does not decide about signals.
pub fn outlive_file_limits() {
    #[cfg(unix)]
    // SAFETY: ignoring a signal runs no handler, and nothing here relies on being stopped by this one.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// A file of `bytes` zeros in `folder`, with its space taken.
///
/// # Errors
/// When the folder can't be written to or the disk has no such space left.
pub fn spill_file(folder: &Path, bytes: usize) -> Result<File> {
    let file = nameless(folder, "spill")?;
    let full = |error: std::io::Error| {
        Error::System(format!("{}: {bytes} bytes for the spill file: {error}", folder.display()))
    };
    allocate(&file, bytes as u64).map_err(full)?;
    Ok(file)
}

/// Asks the system to hold nothing of a file in memory, so that the next read comes from the disk; where it can't, that is not known.
pub fn forget(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: a plain system call on a descriptor that `file` owns; it is advice.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}
