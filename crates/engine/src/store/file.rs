//! One file, put in place whole. It replaces a file or makes one; a device, a folder or a pipe in its place is refused.

use std::ffi::OsString;
use std::fs;
use std::io::{Error as IoError, ErrorKind, Read};
use std::path::{Path, PathBuf};

use super::storage::{Files, Storage, Stored};
use crate::error::{Error, Result};

/// Checks before a long run that `folder` can be made and written to at its end, and leaves nothing behind.
///
/// # Errors
/// When it can't, or when something that is no folder is in its place.
pub fn check_writable(folder: &Path) -> Result<()> {
    // The nearest that is there, be it a link to nowhere; the folders between it and the last are made at the end.
    let existing = folder.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("."));
    if !existing.is_dir() {
        return Err(Error::io(existing, ErrorKind::NotADirectory.into()));
    }
    let probe = existing.join(format!(".pocketune-probe-{}", std::process::id()));
    Files.create(&probe).and_then(|_| Files.remove(&probe)).map_err(|error| Error::io(&probe, error))
}

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
    put(path, |file| file.write_at(0, bytes))
}

/// Adds a line to a text file, or makes one of it. The file is written anew: it has the whole line or none of it.
///
/// # Errors
/// The system's; what was there stays then.
pub fn append_line(path: &Path, line: &str) -> Result<()> {
    put(path, |file| {
        let (mut at, mut last) = (0, b'\n');
        if path.exists() {
            let (mut old, mut piece) = (fs::File::open(path)?, vec![0; 1 << 16]);
            loop {
                let read = old.read(&mut piece)?;
                let Some(end) = piece[..read].last() else { break };
                last = *end;
                file.write_at(at, &piece[..read])?;
                at += read as u64;
            }
        }
        let between = if last == b'\n' { "" } else { "\n" };
        file.write_at(at, format!("{between}{line}\n").as_bytes())
    })
}

/// A new file at `path`, as `fill` fills it.
fn put(path: &Path, fill: impl FnOnce(&mut dyn Stored) -> std::io::Result<()>) -> Result<()> {
    check_file(path)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = Files.create(&temporary).and_then(|mut file| {
        fill(&mut *file)?;
        file.sync()?;
        Files.rename(&temporary, path)
    });
    if let Err(error) = written {
        // Best effort on the way out of an error that is reported.
        let _ = Files.remove(&temporary);
        return Err(Error::io(path, error));
    }
    let folder = folder(path);
    Files.sync_folder(&folder).map_err(|error| Error::io(folder, error))
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
    fn lines_are_added_behind_what_is_there() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("notes.jsonl");
        append_line(&path, "one").unwrap();
        append_line(&path, "two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        fs::write(&path, "unended ".repeat(20_000)).unwrap();
        append_line(&path, "three").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\nthree\n", "unended ".repeat(20_000)));
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
