//! PEFT LoRA adapters: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Read: the two files of a folder, checked against each other. Written: their encodings, to whatever is handed in;
//! putting a file in its place is the store's work. An adapter that uses something other than plain LoRA is refused by
//! the name of the field, never applied in part.

mod config;
mod write;

use std::collections::BTreeMap;
use std::path::Path;

pub use config::{AdapterConfig, Targets};
pub use write::{TensorSpec, tensor_names, write_tensors};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::mapped::Mapped;
use crate::safetensors_file;
use crate::tensor::{Tensor, TensorInfo};
use crate::{lora, model};

/// The name of the configuration in an adapter's folder.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The name of the tensors' file in an adapter's folder.
pub const TENSORS_FILE: &str = "adapter_model.safetensors";

const MAX_CONFIG_BYTES: usize = 1 << 20;
/// What PEFT puts before the path of every module.
const PREFIX: &str = "base_model.model.";
const SUFFIX_A: &str = ".lora_A.weight";
const SUFFIX_B: &str = ".lora_B.weight";

/// Something wrong with an adapter.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Problem {
    #[error("peft_type is {found}; only \"LORA\" is read")]
    NotLora { found: String },
    #[error("{field} is {found}, which pocketune does not support")]
    Unsupported { field: String, found: String },
    #[error("the field {field} is missing")]
    Missing { field: &'static str },
    #[error("{field} is {found}, where {wanted} is wanted")]
    Wrong { field: &'static str, found: String, wanted: &'static str },
    #[error("tensor {tensor:?} is not part of a LoRA pair (names end in .lora_A.weight or .lora_B.weight)")]
    UnexpectedTensor { tensor: String },
    #[error("module {module:?} has a lora_{has} but no lora_{lacks}")]
    Unpaired { module: String, has: char, lacks: char },
    #[error("tensor {tensor:?} has the shape {found:?}, where r = {rank} asks for {wanted}")]
    Shape { tensor: String, found: Vec<usize>, rank: usize, wanted: &'static str },
    #[error("the file holds no LoRA tensors")]
    NoTensors,
}

/// An adapter, mapped.
#[derive(Debug)]
pub struct Adapter {
    config: AdapterConfig,
    files: [Mapped; 1],
    tensors: Vec<TensorInfo>,
    /// By module path: positions of A and B in `tensors`.
    modules: BTreeMap<String, [usize; 2]>,
}

/// The two factors of one module's change: `W + scale B A`.
#[derive(Clone, Copy, Debug)]
pub struct LoraPair<'a> {
    /// The module's path in the base model, such as `model.layers.0.self_attn.q_proj`.
    pub module: &'a str,
    /// `[r, in]`.
    pub a: Tensor<'a>,
    /// `[out, r]`.
    pub b: Tensor<'a>,
}

impl Adapter {
    /// Opens the adapter in `folder`.
    ///
    /// # Errors
    /// When a file is missing or malformed, or the adapter is not plain LoRA.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::read(&Folder::open(folder)?)
    }

    /// Reads the adapter of a folder.
    ///
    /// # Errors
    /// When a file is missing or malformed, or the adapter is not plain LoRA.
    pub fn read(folder: &Folder) -> Result<Self> {
        let lacks = |wanted, hint| Error::FolderLacks { path: folder.path().into(), wanted, hint };
        let Some(config) = folder.document(CONFIG_FILE, MAX_CONFIG_BYTES)? else {
            return Err(lacks(CONFIG_FILE, String::new()));
        };
        let config = AdapterConfig::from_json(&config)
            .map_err(|problem| Error::Peft { path: folder.path().join(CONFIG_FILE), problem })?;
        if folder.file(TENSORS_FILE)?.is_none() {
            let bin = folder.find_ending(".bin");
            return Err(lacks(TENSORS_FILE, bin.map_or(String::new(), |name| format!("; {name:?} is not read"))));
        }
        let file = folder.map(TENSORS_FILE)?;
        let tensors = safetensors_file::read(&file, 0)?;
        let modules =
            pair(&tensors, config.rank).map_err(|problem| Error::Peft { path: file.path().into(), problem })?;
        let files = [file];
        for info in &tensors {
            model::read(files[0].path(), &files, info)?;
        }
        Ok(Self { config, files, tensors, modules })
    }

    /// What `adapter_config.json` says.
    pub fn config(&self) -> &AdapterConfig {
        &self.config
    }

    /// The mapped tensors' file.
    pub fn file(&self) -> &Mapped {
        &self.files[0]
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Where A and B of every module stand among the tensors, by the module's path.
    pub fn modules(&self) -> &BTreeMap<String, [usize; 2]> {
        &self.modules
    }

    /// All adapted modules, sorted by path.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = LoraPair<'_>> {
        self.modules.iter().map(|(module, &[a, b])| LoraPair { module, a: self.tensor(a), b: self.tensor(b) })
    }

    /// The factors of the module at `path`, where it is adapted.
    pub fn pair(&self, path: &str) -> Option<LoraPair<'_>> {
        let (module, &[a, b]) = self.modules.get_key_value(path)?;
        Some(LoraPair { module, a: self.tensor(a), b: self.tensor(b) })
    }

    fn tensor(&self, at: usize) -> Tensor<'_> {
        model::read(self.files[0].path(), &self.files, &self.tensors[at])
            .expect("element types were checked on opening")
    }
}

/// Finds A and B of every module and checks that their shapes have the rank.
fn pair(tensors: &[TensorInfo], rank: usize) -> std::result::Result<BTreeMap<String, [usize; 2]>, Problem> {
    for info in tensors {
        let wanted = match factor(info) {
            Some((_, 0)) if !matches!(*info.shape, [r, _] if r == rank) => "[r, in]",
            Some((_, 1)) if !matches!(*info.shape, [_, r] if r == rank) => "[out, r]",
            _ => continue,
        };
        return Err(Problem::Shape { tensor: info.name.to_string(), found: info.shape.to_vec(), rank, wanted });
    }
    let modules = lora::modules(tensors, tensors.iter().map(factor))?;
    if modules.is_empty() { Err(Problem::NoTensors) } else { Ok(modules) }
}

/// The module that a tensor belongs to, and which factor (0 or 1) it is.
fn factor(info: &TensorInfo) -> Option<(&str, usize)> {
    let path = info.name.strip_prefix(PREFIX)?;
    [SUFFIX_A, SUFFIX_B].iter().enumerate().find_map(|(which, suffix)| Some((path.strip_suffix(suffix)?, which)))
}
