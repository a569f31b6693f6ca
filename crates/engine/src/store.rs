//! Every write of the program. A file appears under its final name whole or not at all.

mod atomic;
mod tokens;

pub use atomic::{FolderWriter, check_writable};
pub use tokens::{TokenFile, TokenWriter};
