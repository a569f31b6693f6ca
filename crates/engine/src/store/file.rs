//! One file, put in place whole. It replaces a file or makes one; a device, a folder or a pipe in its place is refused.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Error as IoError, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::atomic::{check_writable, create};
use crate::error::{Error, Result};

/// Checks before a long run that a file can be put at `path` at its end.
///
/// # Errors
/// When its folder is missing or can't be written to, or when something that is no file is in its place.
pub fn check_file(path: &Path) -> Result<()> {
    if path.file_name().is_none() || fs::metadata(path).is_ok_and(|there| !there.is_file()) {
        return Err(Error::io(path, IoError::new(ErrorKind::InvalidInput, "this is no place for a file")));
    }
    let folder = folder(path);
    if !folder.is_dir() {
        return Err(Error::io(folder, ErrorKind::NotFound.into()));
    }
    check_writable(&folder)
}

/// Writes `bytes` to a temporary name beside `path`, makes them durable, and puts them in place.
///
/// # Errors
/// The system's; what was there stays then.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    check_file(path)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let mut file = create(&temporary)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        // Best effort on the way out of an error that is reported.
        let _ = fs::remove_file(&temporary);
        return Err(Error::io(path, error));
    }
    let folder = folder(path);
    File::open(&folder).and_then(|folder| folder.sync_all()).map_err(|error| Error::io(folder, error))
}

fn folder(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_and_nothing_stays_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("picture.svg");
        write_file(&path, b"old").unwrap();
        write_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_is_no_file_is_never_replaced() {
        let root = tempfile::tempdir().unwrap();
        for path in [root.path().into(), root.path().join("missing/file"), "/dev/null".into(), "/".into(), "..".into()]
        {
            let path: PathBuf = path;
            assert!(write_file(&path, b"x").is_err(), "{}", path.display());
        }
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
