//! A folder of model files, from which names that come out of files can't lead elsewhere.
//!
//! Links are followed only where they end inside the folder, or inside `blobs` of the same entry of the Hugging Face cache
//! (`models--x/snapshots/<revision>/file -> ../../blobs/<hash>`).

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::mapped::{self, Mapped};

/// A folder that exists.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Where links may end, as paths without links.
    roots: Vec<PathBuf>,
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
        Ok(Self { path: path.into(), roots })
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
        // A separator of another system, or one at the end, is not part of a plain name either.
        if !plain || name.contains(['/', '\\', ':', '\0']) {
            return Err(Error::UnsafeName { path: self.path.clone(), name: name.into() });
        }
        let path = self.path.join(name);
        match path.canonicalize() {
            Ok(target) if self.roots.iter().any(|root| target.starts_with(root)) => Ok(Some(target)),
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
        match self.file(name)? {
            Some(target) => Ok(Mapped::open(&target)?.named(&self.path.join(name))),
            None => Err(Error::Missing { path: self.path.join(name) }),
        }
    }

    /// The parsed content of the JSON file of that name, of at most `limit` bytes; `None` when there is none.
    ///
    /// # Errors
    /// When it can't be mapped, is larger, or is not such JSON.
    pub fn json<T: serde::de::DeserializeOwned>(&self, name: &str, limit: usize) -> Result<Option<T>> {
        if self.file(name)?.is_none() {
            return Ok(None);
        }
        let file = self.map(name)?;
        let (path, bytes) = (file.path(), file.bytes());
        if bytes.len() > limit {
            return Err(Error::TooLarge { path: path.into(), bytes: bytes.len(), limit });
        }
        serde_json::from_slice(bytes).map(Some).map_err(|source| Error::Json { path: path.into(), source })
    }

    /// The first file name with the given ending, for hints.
    pub(crate) fn find_ending(&self, ending: &str) -> Option<String> {
        let entries = std::fs::read_dir(&self.path).ok()?;
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).find(|name| name.ends_with(ending))
    }
}
