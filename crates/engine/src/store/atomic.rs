//! A folder of files that is filled under a temporary name and then put in place.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Checks before a long run that `folder` can be made and written to at its end, and leaves nothing behind.
///
/// # Errors
/// When it can't, or when something that is no folder is in its place.
pub fn check_writable(folder: &Path) -> Result<()> {
    // The nearest that is there, be it a link to nowhere; the folders between it and the last are made at the end.
    let existing = folder.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
    if !existing.is_dir() {
        return Err(Error::io(existing, std::io::ErrorKind::NotADirectory.into()));
    }
    let probe = existing.join(format!(".pocketune-probe-{}", std::process::id()));
    create(&probe)?;
    fs::remove_file(&probe).map_err(|error| Error::io(&probe, error))
}

/// Writes files of a folder, each to a temporary name first.
pub struct FolderWriter {
    folder: PathBuf,
    /// Whether the folder was made here, so that it goes away again if nothing is finished.
    made: bool,
    pending: Vec<(PathBuf, PathBuf)>,
    done: bool,
}

impl FolderWriter {
    /// Opens `folder`, making it where it isn't there.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn open(folder: &Path) -> Result<Self> {
        let made = !folder.exists();
        fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
        Ok(Self { folder: folder.into(), made, pending: Vec::new(), done: false })
    }

    /// Writes one file under a temporary name and makes it durable.
    ///
    /// # Errors
    /// The system's; the temporary file goes away with the writer.
    pub fn file(&mut self, name: &str, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let last = self.folder.join(name);
        let temporary = self.folder.join(format!(".{name}.{}.tmp", std::process::id()));
        let file = create(&temporary)?;
        self.pending.push((temporary.clone(), last));
        let mut out = BufWriter::with_capacity(1 << 16, file);
        let written = fill(&mut out).and_then(|()| out.flush()).and_then(|()| out.get_ref().sync_all());
        written.map_err(|error| Error::io(&temporary, error))
    }

    /// Puts all files in place.
    ///
    /// # Errors
    /// The system's.
    pub fn commit(mut self) -> Result<()> {
        for (temporary, last) in &self.pending {
            fs::rename(temporary, last).map_err(|error| Error::io(last, error))?;
        }
        let synced = File::open(&self.folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| Error::io(&self.folder, error))?;
        self.done = true;
        Ok(())
    }
}

impl Drop for FolderWriter {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        for (temporary, _) in &self.pending {
            // Best effort on the way out of an error that is reported already.
            let _ = fs::remove_file(temporary);
        }
        if self.made {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// A new file that only its owner reads: what is trained on private data is private.
pub(super) fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| Error::io(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_was_not_committed_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("adapter");
        let mut writer = FolderWriter::open(&folder).unwrap();
        writer.file("a", |out| out.write_all(b"half")).unwrap();
        drop(writer);
        assert!(!folder.exists());
    }

    #[test]
    fn a_failed_write_keeps_the_old_file() {
        let root = tempfile::tempdir().unwrap();
        let mut writer = FolderWriter::open(root.path()).unwrap();
        writer.file("a", |out| out.write_all(b"old")).unwrap();
        writer.commit().unwrap();
        let mut writer = FolderWriter::open(root.path()).unwrap();
        let failed = writer.file("a", |out| {
            out.write_all(b"new")?;
            Err(std::io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        drop(writer);
        assert_eq!(fs::read(root.path().join("a")).unwrap(), b"old");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
