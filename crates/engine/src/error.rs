//! What can go wrong with a run, in words about the input.

use std::path::PathBuf;

use pocketune_formats::error::plain;

/// The result of anything a user can make fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Something wrong with what the user supplied, or with the system underneath.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model or adapter file is at fault.
    #[error(transparent)]
    Format(#[from] pocketune_formats::Error),
    /// A tokenizer, a template or a data file is at fault.
    #[error(transparent)]
    Text(#[from] pocketune_text::TextError),
    /// The model is of a kind that this build can't train.
    #[error("{}: {}", path.display(), plain(fault))]
    Model {
        /// The model's file or folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// An option has a value that can't work.
    #[error("--{option} {value}: {fault}")]
    Option {
        /// The option's name, without dashes.
        option: &'static str,
        /// What was given.
        value: String,
        /// Why it can't work.
        fault: String,
    },
    /// A data file is at fault.
    #[error("{}: {fault}", path.display())]
    Data {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the line where there is one.
        fault: String,
    },
    /// Lines of a data file are no records.
    #[error("{}: {bad}{}", path.display(), if bad.count > 1 { format!(" (of {records}; --skip-bad-lines leaves them out)") } else { String::new() })]
    BadLines {
        /// The file.
        path: PathBuf,
        /// The lines.
        bad: Box<crate::train::BadLines>,
        /// Records and bad lines together.
        records: usize,
    },
    /// The adapter to start from does not fit the model.
    #[error("{}: {fault}", path.display())]
    Adapter {
        /// The adapter's folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
    },
    /// What an earlier run left can't be taken up.
    #[error("{}: {fault}", path.display())]
    Checkpoint {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        fault: String,
    },
    /// A file or folder could not be written or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system lacks something the run needs.
    #[error("{0}")]
    System(String),
    /// A step was abandoned because its user asked to stop; what it would have changed is as before.
    #[error("stopped as asked")]
    Stopped,
    /// The numbers of a step are unusable.
    #[error("{0}")]
    Numbers(String),
}

impl Error {
    /// An I/O error with its place.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}
