//! A file on its way to its final name: written under a temporary one beside it, measured and hashed as it comes.
//!
//! A [`Part`] exists only once its bytes are what was promised; dropping it removes them. Whatever goes wrong, the final name has its
//! old contents or none. A killed process can leave a temporary file behind: the next one that wants the same name removes it.
//!
//! This is not the engine's `store`, which writes what was trained: that is private, small and made here, while a download is public,
//! large and someone else's word.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

use super::error::PullError;
use super::progress::Progress;

/// How temporary files end.
const SUFFIX: &str = ".part";

/// What is known of a file before it comes.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// How many bytes it has.
    pub size: Option<u64>,
    /// Their SHA-256, in lower-case hexadecimal.
    pub sha256: Option<String>,
}

/// A whole, verified file without its final name.
#[derive(Debug)]
pub struct Part {
    file: NamedTempFile,
    path: PathBuf,
    /// How many bytes it has.
    pub size: u64,
}

impl Part {
    /// Copies `from`, called `what`, to a temporary file beside `path`, at most `limit` bytes, and checks it against `expected`.
    pub fn receive(
        what: &str,
        from: &mut dyn Read,
        path: &Path,
        expected: &Expected,
        limit: u64,
        mut progress: Option<Progress>,
    ) -> Result<Self, PullError> {
        let mut file = temporary(path)?;
        let mut hash = Sha256::new();
        let mut size = 0_u64;
        let mut buffer = vec![0_u8; 256 << 10];
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let fault = format!("broke off after {size} bytes ({error}); nothing was kept");
                    return Err(PullError::Network { address: what.to_owned(), fault });
                }
            };
            size += count as u64;
            if let Some(promised) = expected.size.filter(|&promised| size > promised) {
                return Err(PullError::Size { what: what.to_owned(), expected: promised, got: size });
            }
            if size > limit {
                return Err(PullError::TooLarge { what: what.to_owned(), limit });
            }
            hash.update(&buffer[..count]);
            file.write_all(&buffer[..count]).map_err(|error| PullError::io(file.path(), error))?;
            if let Some(progress) = &mut progress {
                progress.add(count);
            }
        }
        if let Some(promised) = expected.size.filter(|&promised| size != promised) {
            return Err(PullError::Size { what: what.to_owned(), expected: promised, got: size });
        }
        let got = hexadecimal(&hash.finalize());
        match &expected.sha256 {
            Some(promised) if *promised != got => {
                Err(PullError::Hash { what: what.to_owned(), expected: promised.clone(), got })
            }
            _ => Ok(Self { file, path: path.to_owned(), size }),
        }
    }

    /// Gives the file its final name, once its bytes are on the disk.
    pub fn keep(self) -> Result<(), PullError> {
        self.file.as_file().sync_all().map_err(|error| PullError::io(&self.path, error))?;
        self.file.persist(&self.path).map_err(|error| PullError::io(&self.path, error.error))?;
        Ok(())
    }

    /// The file, to read from its start.
    pub fn reopen(&self) -> Result<File, PullError> {
        self.file.reopen().map_err(|error| PullError::io(self.file.path(), error))
    }
}

/// Whether `path` is a file with the promised hash; without a promised hash nothing counts as there.
pub fn is_there(path: &Path, expected: &Expected) -> Result<bool, PullError> {
    let Some(promised) = &expected.sha256 else { return Ok(false) };
    let Ok(found) = fs::metadata(path) else { return Ok(false) };
    if !found.is_file() || expected.size.is_some_and(|size| size != found.len()) {
        return Ok(false);
    }
    let mut file = File::open(path).map_err(|error| PullError::io(path, error))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0_u8; 256 << 10];
    loop {
        match file.read(&mut buffer).map_err(|error| PullError::io(path, error))? {
            0 => return Ok(hexadecimal(&hash.finalize()) == *promised),
            count => hash.update(&buffer[..count]),
        }
    }
}

/// A new file beside `path`, locked for as long as it is being written, so that others can tell it from one left behind.
fn temporary(path: &Path) -> Result<NamedTempFile, PullError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    remove_abandoned(folder, &prefix);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What any new file gets, less the umask: a model is not a secret.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let file = builder.tempfile_in(folder).map_err(|error| PullError::io(folder, error))?;
    // Where locks don't exist, nothing is ever taken for abandoned either.
    let _ = file.as_file().try_lock();
    Ok(file)
}

/// Removes what killed processes left: files named like ours that no one holds a lock on.
fn remove_abandoned(folder: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(SUFFIX) {
            let abandoned = File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok());
            if abandoned {
                // Someone else may have been quicker.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// The usual way to write a hash.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
