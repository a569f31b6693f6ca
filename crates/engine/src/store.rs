//! Every write of the program. What lies under a final name is whole: the old or the new, never between. All of it goes through
//! [`Storage`], which tests replace by one that crashes; files without a name, which no crash can leave half, are the system's own.

mod checkpoint;
mod erase;
mod file;
mod folder;
mod lock;
mod profile;
mod spill;
mod storage;
mod tokens;
mod updates;

use std::path::{Path, PathBuf};

pub use checkpoint::{Body, CHUNK, Checkpoints, Saved};
pub use erase::{GENERATION, HOW, MODEL, MODEL_FOLDER, TEMPLATE, clear_leftovers, erase, trained_model};
pub use file::{append_line, check_file, check_writable, write_file, write_file_with};
pub use folder::{FolderWriter, settle};
pub use lock::RunLock;
pub use profile::{find_profile, keep_profile, processor};
pub use spill::{forget, outlive_file_limits, spill_file};
pub use storage::{Files, Storage, Stored};
pub use tokens::{TokenFile, TokenWriter, token};
pub use updates::{UPDATES, parse_updates, read_updates, write_updates};

/// Where a run keeps what is not its result, inside the folder of its adapter.
pub fn hidden_folder(run: &Path) -> PathBuf {
    run.join(".pocketune")
}
