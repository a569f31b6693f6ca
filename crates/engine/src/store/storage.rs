//! What the store asks of a file system: a dozen calls, so that everything that is written with care can be written to a simulated
//! disk as well, which crashes, fills up and fails at every one of them. [`Files`] is the real one.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Folders and the names in them.
pub trait Storage {
    /// A new and empty file that only its owner reads, instead of what has that name.
    ///
    /// # Errors
    /// The system's.
    fn create(&self, path: &Path) -> Result<Box<dyn Stored>>;
    /// A file that is there, to read and to write over.
    ///
    /// # Errors
    /// The system's, and when it is no regular file.
    fn open(&self, path: &Path) -> Result<Box<dyn Stored>>;
    /// Gives a file another name, instead of what has that name.
    ///
    /// # Errors
    /// The system's.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// The system's.
    fn remove(&self, path: &Path) -> Result<()>;
    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// The system's.
    fn sync_folder(&self, folder: &Path) -> Result<()>;
    /// The names in a folder; none where it isn't there.
    ///
    /// # Errors
    /// The system's.
    fn names(&self, folder: &Path) -> Result<Vec<String>>;
    /// Makes a folder that only its owner opens, and those on the way to it, durably.
    ///
    /// # Errors
    /// The system's.
    fn make_folder(&self, folder: &Path) -> Result<()>;
    /// Removes an empty folder.
    ///
    /// # Errors
    /// The system's.
    fn remove_folder(&self, folder: &Path) -> Result<()>;
}

/// An open file.
pub trait Stored {
    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()>;
    /// Reads all of `bytes`.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()>;
    /// Length in bytes.
    ///
    /// # Errors
    /// The system's.
    fn bytes(&self) -> Result<u64>;
    /// Makes it `bytes` long, with the space for them taken.
    ///
    /// # Errors
    /// The system's.
    fn reserve(&mut self, bytes: u64) -> Result<()>;
    /// Makes its content durable. After a failure the system may have dropped what it could not write and call the next attempt a
    /// success, so nobody asks twice.
    ///
    /// # Errors
    /// The system's.
    fn sync(&mut self) -> Result<()>;
}

/// The system's files.
pub struct Files;

impl Storage for Files {
    fn create(&self, path: &Path) -> Result<Box<dyn Stored>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Box::new(file))
    }

    fn open(&self, path: &Path) -> Result<Box<dyn Stored>> {
        // Opening a pipe would wait for its writer.
        let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        if file.metadata()?.is_file() { Ok(Box::new(file)) } else { Err(ErrorKind::InvalidInput.into()) }
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        File::open(folder)?.sync_all()
    }

    fn names(&self, folder: &Path) -> Result<Vec<String>> {
        let entries = match fs::read_dir(folder) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(Vec::new());
            }
            entries => entries?,
        };
        // Names that are no text are none of ours.
        entries.filter_map(|entry| entry.map(|entry| entry.file_name().into_string().ok()).transpose()).collect()
    }

    fn make_folder(&self, folder: &Path) -> Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(parent) = parent {
            self.make_folder(parent)?;
        }
        match std::os::unix::fs::DirBuilderExt::mode(&mut fs::DirBuilder::new(), 0o700).create(folder) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => {}
            made => made?,
        }
        self.sync_folder(parent.unwrap_or(Path::new(".")))
    }

    fn remove_folder(&self, folder: &Path) -> Result<()> {
        fs::remove_dir(folder)
    }
}

impl Stored for File {
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write_all_at(bytes, at)
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_exact_at(bytes, at)
    }

    fn bytes(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn reserve(&mut self, bytes: u64) -> Result<()> {
        allocate(self, bytes)?;
        self.set_len(bytes)
    }

    fn sync(&mut self) -> Result<()> {
        self.sync_all()
    }
}

/// Takes the space of a file's first `bytes`, where the system can; elsewhere it makes the file that long.
pub(super) fn allocate(file: &File, bytes: u64) -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        let len = i64::try_from(bytes).map_err(|_| ErrorKind::FileTooLarge)?;
        // SAFETY: a plain system call on a descriptor that `file` owns.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len) } {
            0 => Ok(()),
            code => Err(std::io::Error::from_raw_os_error(code)),
        }
    }
    #[cfg(not(target_os = "linux"))]
    file.set_len(bytes)
}
