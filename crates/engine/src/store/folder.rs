//! Files of a folder that are put in place together: all of them are the old ones or all the new ones, once [`settle`] has looked.
//!
//! They are written and synced inside the hidden folder; a list of their names that appears there is the moment at which the new ones
//! count. Then they are moved to their places. A run that ends in between leaves the list, and the next look at the folder moves what is
//! left. A name with `-` before it in the list is of a file that goes away with the old ones. Other files in the folder are not touched.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::file::Appended;
use super::hidden_folder;
use super::storage::{Files, Storage};
use crate::error::{Error, Result};

/// The list of files that count.
const LIST: &str = "put";
/// What stands before the name of a file that is not in its place yet.
const WAITING: &str = "put-";
/// What stands before a name in the list whose file goes away.
const GONE: char = '-';
/// No list is longer; a model of a thousand shards has half of this.
const LONGEST_LIST: u64 = 1 << 16;

/// Writes files of a folder.
pub struct FolderWriter<'a> {
    storage: &'a dyn Storage,
    folder: PathBuf,
    hidden: PathBuf,
    /// Whether the folder was made here, so that it goes away again if nothing is finished.
    made: bool,
    names: Vec<String>,
    /// Files of earlier writers that these ones have no like of.
    gone: Vec<String>,
    done: bool,
}

impl<'a> FolderWriter<'a> {
    /// Opens `folder`, making it where it isn't there, and finishes what an earlier writer left.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::over(&Files, folder)
    }

    /// As [`FolderWriter::open`], on any storage.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn over(storage: &'a dyn Storage, folder: &Path) -> Result<Self> {
        let made = !folder.exists();
        let hidden = hidden_folder(folder);
        settle(storage, folder)?;
        storage.make_folder(&hidden).map_err(|error| Error::io(folder, error))?;
        Ok(Self { storage, folder: folder.into(), hidden, made, names: Vec::new(), gone: Vec::new(), done: false })
    }

    /// Writes one file and makes it durable, not yet in its place.
    ///
    /// # Errors
    /// The system's; what was written goes away with the writer.
    pub fn file(&mut self, name: &str, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let last = self.folder.join(name);
        let io = |error| Error::io(&last, error);
        let file = self.storage.create(&self.hidden.join(format!("{WAITING}{name}"))).map_err(io)?;
        self.names.push(name.into());
        let mut out = BufWriter::with_capacity(1 << 16, Appended { file, at: 0 });
        let written = fill(&mut out).and_then(|()| out.flush()).and_then(|()| out.get_mut().file.sync());
        written.map_err(io)
    }

    /// Says that the folder has no such file once the others are in place.
    pub fn without(&mut self, name: &str) {
        self.gone.push(format!("{GONE}{name}"));
    }

    /// Puts all files in place.
    ///
    /// # Errors
    /// The system's.
    pub fn commit(mut self) -> Result<()> {
        let io = |error| Error::io(&self.folder, error);
        let (early, list) = (self.hidden.join("put.tmp"), self.hidden.join(LIST));
        let mut file = self.storage.create(&early).map_err(io)?;
        file.write_at(0, [&self.names[..], &self.gone].concat().join("\n").as_bytes())
            .and_then(|()| file.sync())
            .map_err(io)?;
        // The names that are listed are on disk before the list is.
        self.storage.sync_folder(&self.hidden).map_err(io)?;
        self.storage.rename(&early, &list).map_err(io)?;
        self.done = true;
        self.storage.sync_folder(&self.hidden).map_err(io)?;
        settle(self.storage, &self.folder)
    }
}

impl Drop for FolderWriter<'_> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        // Best effort on the way out of an error that is reported already.
        let _ = settle(self.storage, &self.folder);
        if self.made {
            let _ = self.storage.remove_folder(&self.folder);
        }
    }
}

/// Finishes what a writer of `folder` left: files that count go to their places, others go away. Nothing is written where nothing is left.
///
/// # Errors
/// The system's, and a list that no writer made.
pub fn settle(storage: &dyn Storage, folder: &Path) -> Result<()> {
    let hidden = hidden_folder(folder);
    let io = |error| Error::io(&hidden, error);
    let names = storage.names(&hidden).map_err(io)?;
    let ours = |name: &&String| *name == LIST || *name == "put.tmp" || name.starts_with(WAITING);
    if names.iter().any(|name| name == LIST) {
        let there = storage.names(folder).map_err(io)?;
        for name in read_list(storage, &hidden.join(LIST))? {
            if let Some(gone) = name.strip_prefix(GONE) {
                if there.iter().any(|name| name == gone) {
                    storage.remove(&folder.join(gone)).map_err(io)?;
                }
                continue;
            }
            let waiting = format!("{WAITING}{name}");
            if names.contains(&waiting) {
                storage.rename(&hidden.join(waiting), &folder.join(name)).map_err(io)?;
            }
        }
        storage.sync_folder(folder).map_err(io)?;
        // Without the list the files that are in place count as before.
        storage.remove(&hidden.join(LIST)).map_err(io)?;
        storage.sync_folder(&hidden).map_err(io)?;
    } else {
        names.iter().filter(ours).try_for_each(|name| storage.remove(&hidden.join(name))).map_err(io)?;
    }
    if names.iter().all(|name| ours(&name)) && folder != hidden {
        // It holds something else, or was never there.
        let _ = storage.remove_folder(&hidden);
    }
    Ok(())
}

fn read_list(storage: &dyn Storage, path: &Path) -> Result<Vec<String>> {
    let io = |error| Error::io(path, error);
    let fault = || Error::Checkpoint { path: path.into(), fault: "not a list of files of an adapter".into() };
    let file = storage.open(path).map_err(io)?;
    let len = file.bytes().map_err(io)?;
    if len > LONGEST_LIST {
        return Err(fault());
    }
    let mut text = vec![0; len as usize];
    file.read_at(0, &mut text).map_err(io)?;
    let text = String::from_utf8(text).map_err(|_| fault())?;
    let plain = |name: &str| !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']);
    let names: Vec<String> = text.lines().map(String::from).collect();
    if names.iter().all(|name| plain(name.strip_prefix(GONE).unwrap_or(name))) { Ok(names) } else { Err(fault()) }
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    #[test]
    fn a_list_that_names_other_folders_is_refused() {
        for list in ["../outside", "/etc/passwd", ".hidden", "a\n\nb", "-../outside", "-", "-.pocketune"] {
            let root = tempfile::tempdir().unwrap();
            let hidden = hidden_folder(root.path());
            fs::create_dir(&hidden).unwrap();
            fs::write(hidden.join(LIST), list).unwrap();
            let message = settle(&Files, root.path()).unwrap_err().to_string();
            assert!(message.contains("not a list of files"), "{message}");
        }
    }
}
