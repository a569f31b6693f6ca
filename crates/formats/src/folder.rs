//! A folder of model files, from which names that come out of files can't lead elsewhere.
//!
//! Links are followed only where they end inside the folder, or inside `blobs` of the same entry of the Hugging Face cache
//! (`models--x/snapshots/<revision>/file -> ../../blobs/<hash>`), or anywhere where the user says so.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::json;
use crate::mapped::{self, Mapped};

/// A folder that exists, or files that the program holds under names.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    files: Files,
}

#[derive(Debug)]
enum Files {
    /// On disk; links may end in these, which are paths without links.
    Disk(Vec<PathBuf>),
    /// In memory, by name.
    Held(BTreeMap<String, Mapped>),
}

impl Folder {
    /// The folder at `path`.
    ///
    /// # Errors
    /// When it is missing or not a folder.
    pub fn open(path: &Path) -> Result<Self> {
        if !mapped::metadata(path)?.is_dir() {
            return Err(Error::NotAFolder { path: path.into() });
        }
        let root = path.canonicalize().map_err(|source| Error::Io { path: path.into(), source })?;
        let snapshots = root.parent().filter(|parent| parent.file_name().is_some_and(|name| name == "snapshots"));
        let blobs = snapshots.and_then(Path::parent).and_then(|entry| entry.join("blobs").canonicalize().ok());
        let mut roots = vec![root];
        roots.extend(blobs);
        Ok(Self { path: path.into(), files: Files::Disk(roots) })
    }

    /// The folder at `path`, whose links may lead anywhere: for a user who says so.
    ///
    /// # Errors
    /// When it is missing or not a folder.
    pub fn open_following(path: &Path) -> Result<Self> {
        let folder = Self::open(path)?;
        // Every path without links begins with the root of the one it is compared with.
        let root = |path: &PathBuf| path.ancestors().last().map(Path::to_path_buf);
        let Files::Disk(roots) = &folder.files else { return Ok(folder) };
        let files = Files::Disk(roots.iter().filter_map(root).collect());
        Ok(Self { files, ..folder })
    }

    /// Files that the program holds, as if they were in a folder of that name.
    pub fn held(name: &str, files: impl IntoIterator<Item = (String, Mapped)>) -> Self {
        Self { path: name.into(), files: Files::Held(files.into_iter().collect()) }
    }

    /// The folder's path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file of that name, links resolved; `None` when there is none.
    ///
    /// # Errors
    /// When the name is not a plain one, or a link that leads out of the folder.
    pub fn file(&self, name: &str) -> Result<Option<PathBuf>> {
        let mut parts = Path::new(name).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        // A separator of another system, or one at the end, is not part of a plain name either; nor is what steers a terminal.
        if !plain || name.contains(['/', '\\', ':']) || name.chars().any(char::is_control) {
            return Err(Error::UnsafeName { path: self.path.clone(), name: name.into() });
        }
        let path = self.path.join(name);
        let roots = match &self.files {
            Files::Disk(roots) => roots,
            Files::Held(files) => return Ok(files.contains_key(name).then_some(path)),
        };
        match path.canonicalize() {
            Ok(target) if roots.iter().any(|root| target.starts_with(root)) => Ok(Some(target)),
            Ok(target) => Err(Error::LinkOutside { path, target }),
            Err(source) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::Io { path, source }),
        }
    }

    /// Maps the file of that name.
    ///
    /// # Errors
    /// When it is missing or can't be mapped.
    pub fn map(&self, name: &str) -> Result<Mapped> {
        match (self.file(name)?, &self.files) {
            (Some(_), Files::Held(files)) => Ok(files[name].clone()),
            (Some(target), Files::Disk(_)) => Ok(Mapped::open(&target)?.named(&self.path.join(name))),
            (None, _) => Err(Error::Missing { path: self.path.join(name) }),
        }
    }

    /// Maps the file of that name where it has at most `limit` bytes; `None` when there is none.
    ///
    /// # Errors
    /// When it can't be mapped or is larger.
    pub fn small(&self, name: &str, limit: usize) -> Result<Option<Mapped>> {
        if self.file(name)?.is_none() {
            return Ok(None);
        }
        let file = self.map(name)?;
        match file.bytes().len() {
            bytes if bytes > limit => Err(Error::TooLarge { path: file.path().into(), bytes, limit }),
            _ => Ok(Some(file)),
        }
    }

    /// The file of that name as a stream, never whole in memory where it lies on a disk; `None` when there is none.
    ///
    /// # Errors
    /// When it is no regular file, or is refused by the system.
    pub fn stream(&self, name: &str) -> Result<Option<Box<dyn BufRead + '_>>> {
        Ok(match (self.file(name)?, &self.files) {
            (None, _) => None,
            (Some(_), Files::Held(files)) => Some(Box::new(files[name].bytes())),
            (Some(target), Files::Disk(_)) => {
                Some(Box::new(BufReader::with_capacity(1 << 16, mapped::open_regular(&target)?)))
            }
        })
    }

    /// The JSON document of that name, of at most `limit` bytes; `None` when there is none.
    ///
    /// # Errors
    /// When it can't be mapped, is larger, or is not such JSON.
    pub fn document<T: serde::de::DeserializeOwned>(&self, name: &str, limit: usize) -> Result<Option<T>> {
        let Some(file) = self.small(name, limit)? else { return Ok(None) };
        json::document(file.bytes()).map(Some).map_err(|source| Error::Json { path: file.path().into(), source })
    }

    /// The first file name with the given ending, for hints.
    pub(crate) fn find_ending(&self, ending: &str) -> Option<String> {
        if let Files::Held(files) = &self.files {
            return files.keys().find(|name| name.ends_with(ending)).cloned();
        }
        let entries = std::fs::read_dir(&self.path).ok()?;
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).find(|name| name.ends_with(ending))
    }
}
