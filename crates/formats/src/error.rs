//! What can be wrong with a file: one line each, with the file's path, both numbers where two disagree, and a hint.
//!
//! Nothing here is about the program itself; a mistake of the program is a panic, never one of these.

use std::path::PathBuf;

use crate::{gguf, peft, safetensors_file};

/// The result of reading a file.
pub type Result<T> = std::result::Result<T, Error>;

/// Text with its control characters escaped, so that what a file says is one line and can't steer a terminal.
pub fn plain(text: &str) -> String {
    let escaped = |c: char| c.is_control().then(|| c.escape_default());
    text.chars().flat_map(|c| escaped(c).into_iter().flatten().chain((!c.is_control()).then_some(c))).collect()
}

/// Something wrong with a file or a folder that a user named.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file asked for.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nothing is there under that name.
    #[error("{}: no such file or folder", path.display())]
    Missing {
        /// The name asked for.
        path: PathBuf,
    },
    /// A FIFO, a device, a socket or a folder where a file is needed.
    #[error("{}: {found}, not a regular file", path.display())]
    NotAFile {
        /// The name asked for.
        path: PathBuf,
        /// What it is instead.
        found: &'static str,
    },
    /// A file where a folder is needed.
    #[error("{}: not a folder", path.display())]
    NotAFolder {
        /// The name asked for.
        path: PathBuf,
    },
    /// A file of no bytes.
    #[error("{}: the file is empty; was its download interrupted?", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A file larger than anything of its kind.
    #[error("{}: {bytes} bytes, where at most {limit} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: usize,
        /// The limit for its kind.
        limit: usize,
    },
    /// A file that is no model.
    #[error("{}: {found}; a model is a .gguf file or a folder with config.json and model.safetensors", path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        found: &'static str,
    },
    /// A folder that lacks a file that its kind needs.
    #[error("{}: the folder has no {wanted}{hint}", path.display())]
    FolderLacks {
        /// The folder.
        path: PathBuf,
        /// The file or files wanted.
        wanted: &'static str,
        /// What is there instead, as the end of the sentence; or empty.
        hint: String,
    },
    /// A file name, found in a file, that is not a plain name inside the folder.
    #[error("{}: {name:?} is not a plain file name inside the folder", path.display())]
    UnsafeName {
        /// The file or folder that the name belongs to.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A link that leads out of the folder.
    #[error("{}: a link that leads out of its folder, to {}", path.display(), target.display())]
    LinkOutside {
        /// The link.
        path: PathBuf,
        /// Where it ends.
        target: PathBuf,
    },
    /// JSON that does not parse, or has another shape than its kind.
    #[error("{}: malformed JSON: {}", path.display(), plain(&source.to_string()))]
    Json {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// One part of a model that was cut in several GGUF files.
    #[error("{}: one of {parts} parts of a split model; join them with `llama-gguf-split --merge`", path.display())]
    SplitGguf {
        /// The file.
        path: PathBuf,
        /// How many parts there are.
        parts: u64,
    },
    /// The index of a sharded model and its shards disagree.
    #[error("{}: tensor {tensor:?} should be in {shard:?} but is not; is a shard missing or from another model?", path.display())]
    NotInShard {
        /// The index file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard that the index names.
        shard: String,
    },
    /// A count in a file that is over the limit.
    #[error("{}: {count} {what}, where at most {limit} are read", path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// What is counted.
        what: &'static str,
        /// How many.
        count: usize,
        /// How many are read at most.
        limit: usize,
    },
    /// Two tensors of one name.
    #[error("{}: two tensors are named {tensor:?}", path.display())]
    DuplicateTensor {
        /// The file or folder.
        path: PathBuf,
        /// Their name.
        tensor: String,
    },
    /// A tensor whose elements are stored in a way that a step can't read.
    #[error("{}: tensor {tensor:?} has elements of type {found}; supported are {supported}", path.display())]
    UnsupportedType {
        /// The file or folder.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its element type.
        found: String,
        /// Those that can be read.
        supported: String,
    },
    /// A matrix that another runtime packed doesn't fit together.
    #[error("{}: packed tensor {tensor:?}: {}", path.display(), plain(fault))]
    Packed {
        /// The folder.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What doesn't fit.
        fault: String,
    },
    /// A malformed GGUF file, or metadata of another type than wanted.
    #[error("{}: {problem}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: gguf::Problem,
    },
    /// A malformed safetensors file.
    #[error("{}: {problem}", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: safetensors_file::Problem,
    },
    /// An adapter that can't be used.
    #[error("{}: {problem}", path.display())]
    Peft {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: peft::Problem,
    },
}
