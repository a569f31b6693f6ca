//! One file, put in place whole. It replaces a file or makes one; a device, a folder or a pipe in its place is refused.

use std::ffi::OsString;
use std::fs;
use std::io::{BufWriter, Error as IoError, ErrorKind, Read, Write};
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
    Files.create(&probe).and_then(|_| Files.remove(&probe)).map_err(|error| {
        Error::io(existing, IoError::new(error.kind(), format!("nothing can be written there: {error}")))
    })
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
    write_file_with(path, |out| out.write_all(bytes).map_err(|error| Error::io(path, error)))
}

/// Adds a line to a text file, or makes one of it. The file is written anew: it has the whole line or none of it.
///
/// # Errors
/// The system's; what was there stays then.
pub fn append_line(path: &Path, line: &str) -> Result<()> {
    let copy = |out: &mut dyn Write| {
        let mut last = b'\n';
        if path.exists() {
            let (mut old, mut piece) = (fs::File::open(path)?, vec![0; 1 << 16]);
            loop {
                let read = old.read(&mut piece)?;
                let Some(end) = piece[..read].last() else { break };
                last = *end;
                out.write_all(&piece[..read])?;
            }
        }
        let between = if last == b'\n' { "" } else { "\n" };
        out.write_all(format!("{between}{line}\n").as_bytes())
    };
    write_file_with(path, |out| copy(out).map_err(|error| Error::io(path, error)))
}

/// As [`write_file`], what is written coming piece by piece.
///
/// # Errors
/// The system's, and those of `fill`; what was there stays then.
pub fn write_file_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    check_file(path)?;
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let io = |error| Error::io(path, error);
    let file = Files.create(&temporary).map_err(io)?;
    let mut out = BufWriter::with_capacity(1 << 16, Appended { file, at: 0 });
    let written = fill(&mut out).and_then(|()| {
        out.flush().and_then(|()| out.get_mut().file.sync()).and_then(|()| Files.rename(&temporary, path)).map_err(io)
    });
    if let Err(error) = written {
        // Best effort on the way out of an error that is reported.
        let _ = Files.remove(&temporary);
        return Err(error);
    }
    let folder = folder(path);
    Files.sync_folder(&folder).map_err(|error| Error::io(folder, error))
}

/// A file that is written from its start on.
pub(super) struct Appended {
    pub file: Box<dyn Stored>,
    pub at: u64,
}

impl Write for Appended {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write_at(self.at, bytes)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
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
    fn a_file_whose_content_fails_half_way_is_as_before_and_nothing_stays_beside_it() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("model.gguf");
        write_file(&path, b"old").unwrap();
        let failed = write_file_with(&path, |out| {
            out.write_all(&[0; 1 << 20]).unwrap();
            Err(Error::Numbers("a weight is NaN".into()))
        });
        assert_eq!(failed.unwrap_err().to_string(), "a weight is NaN");
        assert_eq!(fs::read(&path).unwrap(), b"old");
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
