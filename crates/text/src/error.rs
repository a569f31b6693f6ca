//! The errors of this crate. Each one says in one line what is wrong with the input: the file or the line, and the part
//! of it. It refuses to carry advice about the program; only what its user can mend is named.

use pocketune_formats::error::plain;
use std::path::{Path, PathBuf};

/// What can be wrong with a tokenizer, a chat template or a data file.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// A model folder lacks a file that is needed.
    #[error("{}: not found; {needed_for}", path.display())]
    MissingFile {
        /// The file that was looked for.
        path: PathBuf,
        /// Why it is needed.
        needed_for: &'static str,
    },
    /// A file is larger than the reader accepts.
    #[error("{what} is larger than the limit of {limit} bytes")]
    TooLarge {
        /// The thing that is too large.
        what: String,
        /// The limit, in bytes.
        limit: u64,
    },
    /// A JSON file is malformed or holds something that is not understood.
    #[error("{what}: {}", plain(&source.to_string()))]
    Json {
        /// The file.
        what: String,
        /// Place and reason.
        source: serde_json::Error,
    },
    /// A model file is malformed.
    #[error(transparent)]
    Format(#[from] pocketune_formats::Error),
    /// The tokenizer's vocabulary, merges or parts are broken or of a kind that is not supported.
    #[error("tokenizer: {}", plain(.0))]
    Tokenizer(String),
    /// A regular expression of the tokenizer can't be run by a linear-time engine.
    #[error("tokenizer: the pattern `{}` is not supported: {}", plain(pattern), plain(reason))]
    Pattern {
        /// The pattern, as the file has it.
        pattern: String,
        /// What in it is in the way.
        reason: String,
    },
    /// The chat template is absent, malformed, or refused these messages.
    #[error("chat template: {}", plain(.0))]
    Template(String),
    /// A data file could not be read on.
    #[error("{0}")]
    Reading(std::io::Error),
    /// A line of a data file is not a record.
    #[error("line {line}: {}", plain(reason))]
    Record {
        /// The line's number, from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
    },
}

impl TextError {
    /// An error about the tokenizer's content.
    pub(crate) fn tokenizer(reason: impl Into<String>) -> Self {
        Self::Tokenizer(reason.into())
    }

    /// The same error about the file at `path`, where it is one about JSON.
    pub(crate) fn of_file(self, path: &Path) -> Self {
        match self {
            Self::Json { source, .. } => Self::Json { what: path.display().to_string(), source },
            other => other,
        }
    }

    /// An error of the system about one file.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, TextError>;
