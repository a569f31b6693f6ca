//! Every write of the program. A file appears under its final name whole or not at all.

mod atomic;
mod erase;
mod file;
mod profile;
mod spill;
mod tokens;

pub use atomic::{FolderWriter, check_writable};
pub use erase::{STATE, clear_leftovers, erase};
pub use file::{check_file, write_file};
pub use profile::{find_profile, keep_profile, processor};
pub use spill::{forget, outlive_file_limits, spill_file};
pub use tokens::{TokenFile, TokenWriter, token};
