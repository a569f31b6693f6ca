//! Why a command ends: one line for its user.

use std::fmt;
use std::io;
use std::path::Path;

/// The result of anything that can fail here.
pub type Result<T> = std::result::Result<T, Failure>;

/// One line on what is at fault.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// A fault in these words.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into().replace('\n', " "))
    }

    /// What the system said of a file or program.
    pub fn io(place: impl AsRef<Path>, error: io::Error) -> Self {
        Self::new(format!("{}: {error}", place.as_ref().display()))
    }
}

impl From<pocketune::Error> for Failure {
    fn from(error: pocketune::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
