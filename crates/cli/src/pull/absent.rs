//! `pocketune pull` in a build without the `download` feature: it says so, and how to get one that can. It fetches nothing.

use std::path::{Path, PathBuf};

/// Why nothing was fetched.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name}: this build has no download code; build one that has: cargo build --release -p pocketune-cli --features download"
)]
pub struct PullError {
    /// What was asked for.
    name: String,
}

/// Refuses to fetch `name`.
///
/// # Errors
/// Always.
pub fn run(name: &str, _into: Option<&Path>) -> Result<PathBuf, PullError> {
    Err(PullError { name: name.to_owned() })
}
