//! What can go wrong with a download: one line each, with the name, address or file at fault and what to do about it.
//!
//! Addresses are shown without their credentials and queries: a signed link or a password must not end in a log.

use std::path::{Path, PathBuf};

use super::url;

/// Why a model was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// A name that is no model's.
    #[error("{name}: {fault}")]
    Name {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        fault: String,
    },
    /// An environment variable that can't be used.
    #[error("{variable}: {fault}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No answer, or one that broke off.
    #[error("{address}: {fault}")]
    Network {
        /// Where from.
        address: String,
        /// What happened.
        fault: String,
    },
    /// An answer that is a refusal.
    #[error("{address}: the server answered {status}{hint}")]
    Status {
        /// Where from.
        address: String,
        /// The HTTP status.
        status: u16,
        /// What it means here, with its own punctuation; may be empty.
        hint: &'static str,
    },
    /// A listing that doesn't hold what is needed.
    #[error("{address}: {fault}")]
    Listing {
        /// Where from.
        address: String,
        /// What is wrong with it.
        fault: String,
    },
    /// A download with too few or too many bytes.
    #[error("{what}: {got} bytes came, where {expected} were promised; nothing was kept")]
    Size {
        /// The file.
        what: String,
        /// How many it should have.
        expected: u64,
        /// How many came, or how many there were when the promise was exceeded.
        got: u64,
    },
    /// A download that is larger than anything of its kind.
    #[error("{what}: more than {limit} bytes, which is the most that is fetched; nothing was kept")]
    TooLarge {
        /// The file or model.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// A download with other contents than promised.
    #[error("{what}: its SHA-256 is {got}, where {expected} was promised; nothing was kept")]
    Hash {
        /// The file.
        what: String,
        /// The promised hash, in hexadecimal.
        expected: String,
        /// The hash of what came.
        got: String,
    },
    /// An archive that can't be read.
    #[error("{archive}: {fault}")]
    Archive {
        /// The archive's name.
        archive: String,
        /// What is wrong with it.
        fault: String,
    },
}

impl PullError {
    /// The system's refusal about `path`.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    /// Something that happened on the way to or from `address`.
    pub fn network(address: &str, fault: impl ToString) -> Self {
        Self::Network { address: url::shown(address), fault: fault.to_string() }
    }

    /// Something wrong with what `address` lists.
    pub fn listing(address: &str, fault: impl ToString) -> Self {
        Self::Listing { address: url::shown(address), fault: fault.to_string() }
    }
}
