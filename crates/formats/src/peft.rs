//! PEFT LoRA adapters: `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Read: the two files of a folder, checked against each other. Written: their encodings, to whatever is handed in;
//! putting a file in its place is the store's work. LoRA with its scalings (`use_rslora`, patterns of ranks and alphas), DoRA's magnitudes,
//! LoRA of embeddings, VeRA and modules that were trained whole are read; an adapter that uses anything else is refused by the name of the field, never applied in part.

mod config;
mod patterns;
mod vera;
mod write;

use std::collections::BTreeMap;
use std::path::Path;

pub use config::{AdapterConfig, Targets, scale};
pub use patterns::Patterns;
pub use vera::{SHARED, vector_names};
pub use write::{TensorSpec, saved_name, tensor_names, write_tensors};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::lora::{self, Parts};
use crate::mapped::Mapped;
use crate::model;
use crate::safetensors_file;
use crate::tensor::{Tensor, TensorInfo};

/// The name of the configuration in an adapter's folder.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The name of the tensors' file in an adapter's folder.
pub const TENSORS_FILE: &str = "adapter_model.safetensors";

const MAX_CONFIG_BYTES: usize = 1 << 20;
/// What PEFT puts before the path of every module.
const PREFIX: &str = "base_model.model.";
const SUFFIX_A: &str = ".lora_A.weight";
const SUFFIX_B: &str = ".lora_B.weight";
/// Of DoRA's magnitudes.
const SUFFIX_M: &str = ".lora_magnitude_vector";
/// Of an embedding's factors: A is `[r, vocabulary]`, B `[hidden, r]`.
const SUFFIX_EMBEDDING: [&str; 2] = [".lora_embedding_A", ".lora_embedding_B"];

/// What PEFT calls the frozen part of an adapted module.
const BASE_LAYER: &str = ".base_layer.weight";

/// Something wrong with an adapter.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Problem {
    #[error("peft_type is {found}; only \"LORA\" and \"VERA\" are read")]
    NotLora { found: String },
    #[error("{field} is {found}, which pocketune does not support")]
    Unsupported { field: String, found: String },
    #[error("the field {field} is missing")]
    Missing { field: &'static str },
    #[error("{field} is {found}, where {wanted} is wanted")]
    Wrong { field: &'static str, found: String, wanted: &'static str },
    #[error("tensor {tensor:?} is not part of a LoRA pair (names end in .lora_A.weight or .lora_B.weight)")]
    UnexpectedTensor { tensor: String },
    #[error("module {module:?} has magnitudes, and use_dora is not set")]
    UnexpectedMagnitude { module: String },
    #[error("module {module:?} has no lora_magnitude_vector, and use_dora is set")]
    NoMagnitude { module: String },
    #[error("tensor {tensor:?} has the shape {found:?}, where a module of {rows} outputs asks for [{rows}]")]
    Magnitude { tensor: String, found: Box<[usize]>, rows: usize },
    #[error("module {module:?} has a lora_{has} but no lora_{lacks}")]
    Unpaired { module: String, has: char, lacks: char },
    #[error("tensor {tensor:?} has the shape {found:?}, where r = {rank} asks for {wanted}")]
    Shape { tensor: String, found: Box<[usize]>, rank: usize, wanted: &'static str },
    #[error("the file holds no LoRA tensors")]
    NoTensors,
    #[error(
        "save_projection is false: its random matrices are PyTorch's own; save it in PEFT with save_projection=True"
    )]
    NoProjection,
    #[error("the tensor {tensor} is missing, which all modules of VeRA share")]
    NotShared { tensor: &'static str },
    #[error("tensor {tensor:?} is not VeRA's (names end in .vera_lambda_d or .vera_lambda_b)")]
    NotVera { tensor: String },
    #[error("module {module:?} has a vera_lambda_{has} but no vera_lambda_{lacks}")]
    OneVector { module: String, has: char, lacks: char },
    #[error("tensor {tensor:?} has the shape {found:?}, where {wanted} is wanted")]
    VeraShape { tensor: String, found: Box<[usize]>, wanted: String },
}

/// An adapter, mapped.
#[derive(Debug)]
pub struct Adapter {
    config: AdapterConfig,
    files: [Mapped; 1],
    tensors: Vec<TensorInfo>,
    /// Of modules that were trained whole, by their names in the model.
    saved: Vec<TensorInfo>,
    /// By module path: where its parts stand in `tensors`.
    modules: BTreeMap<String, Parts>,
}

/// One module's change: `W + scale B A`, and with magnitudes every row of that brought to its length.
#[derive(Clone, Copy, Debug)]
pub struct LoraPair<'a> {
    /// The module's path in the base model, such as `model.layers.0.self_attn.q_proj`.
    pub module: &'a str,
    /// `[r, in]`.
    pub a: Tensor<'a>,
    /// `[out, r]`.
    pub b: Tensor<'a>,
    /// `[out]`, with DoRA.
    pub magnitude: Option<Tensor<'a>>,
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
        let mut tensors = safetensors_file::read(&file, 0)?;
        // Where an end of the model is adapted PEFT writes a copy of the frozen matrix too; the model has it.
        tensors.retain(|info| !info.name.ends_with(BASE_LAYER));
        let saved = take_saved(&mut tensors, &config);
        let modules = if config.vera { vera::parts(&tensors, &config) } else { parts(&tensors, &config) };
        let modules = modules.map_err(|problem| Error::Peft { path: file.path().into(), problem })?;
        let files = [file];
        for info in tensors.iter().chain(&saved) {
            model::read(files[0].path(), &files, info)?;
        }
        Ok(Self { config, files, tensors, saved, modules })
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

    /// The tensors of modules that were trained whole, by their names in the model.
    pub fn saved(&self) -> &[TensorInfo] {
        &self.saved
    }

    /// Where the parts of every module stand among the tensors, by the module's path.
    pub fn modules(&self) -> &BTreeMap<String, Parts> {
        &self.modules
    }

    /// All adapted modules, sorted by path.
    pub fn pairs(&self) -> impl ExactSizeIterator<Item = LoraPair<'_>> {
        self.modules.iter().map(|(module, &parts)| self.read_pair(module, parts))
    }

    /// The factors of the module at `path`, where it is adapted.
    pub fn pair(&self, path: &str) -> Option<LoraPair<'_>> {
        let (module, &parts) = self.modules.get_key_value(path)?;
        Some(self.read_pair(module, parts))
    }

    fn read_pair<'a>(&'a self, module: &'a str, Parts { a, b, magnitude, .. }: Parts) -> LoraPair<'a> {
        LoraPair { module, a: self.tensor(a), b: self.tensor(b), magnitude: magnitude.map(|at| self.tensor(at)) }
    }

    fn tensor(&self, at: usize) -> Tensor<'_> {
        model::read(self.files[0].path(), &self.files, &self.tensors[at])
            .expect("element types were checked on opening")
    }
}

/// Takes out the tensors of modules that were trained whole, which keep their names in the model.
fn take_saved(tensors: &mut Vec<TensorInfo>, config: &AdapterConfig) -> Vec<TensorInfo> {
    let inside = |path: &str, module: &str| path.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'));
    let name_of = |info: &TensorInfo| {
        let path = info.name.strip_prefix(PREFIX)?;
        config.saved.iter().any(|module| inside(path, module)).then(|| path.into())
    };
    let mut saved = Vec::new();
    tensors.retain(|info| match name_of(info) {
        None => true,
        Some(name) => {
            saved.push(TensorInfo { name, ..info.clone() });
            false
        }
    });
    saved
}

/// Finds the parts of every module and checks that their shapes have its rank.
fn parts(tensors: &[TensorInfo], config: &AdapterConfig) -> std::result::Result<BTreeMap<String, Parts>, Problem> {
    for info in tensors {
        let Some((module, which)) = factor(info) else { continue };
        let rank = config.rank_of(module);
        let wanted = match which {
            0 if !matches!(*info.shape, [r, _] if r == rank) => "[r, in]",
            1 if !matches!(*info.shape, [_, r] if r == rank) => "[out, r]",
            _ => continue,
        };
        return Err(Problem::Shape { tensor: info.name.to_string(), found: info.shape.as_ref().into(), rank, wanted });
    }
    let modules = lora::modules(tensors, tensors.iter().map(factor))?;
    for (module, parts) in &modules {
        match parts.magnitude.map(|at| &tensors[at]) {
            Some(_) if !config.dora => return Err(Problem::UnexpectedMagnitude { module: module.clone() }),
            None if config.dora => return Err(Problem::NoMagnitude { module: module.clone() }),
            Some(info) if *info.shape != tensors[parts.b].shape[..1] => {
                let (tensor, found) = (info.name.to_string(), info.shape.as_ref().into());
                return Err(Problem::Magnitude { tensor, found, rows: tensors[parts.b].shape[0] });
            }
            _ => {}
        }
    }
    if modules.is_empty() { Err(Problem::NoTensors) } else { Ok(modules) }
}

/// The module that a tensor belongs to, and which part (A, B or the magnitudes) it is.
fn factor(info: &TensorInfo) -> Option<(&str, usize)> {
    let path = info.name.strip_prefix(PREFIX)?;
    let plain = [SUFFIX_A, SUFFIX_B, SUFFIX_M].into_iter().enumerate();
    let mut all = plain.chain(SUFFIX_EMBEDDING.into_iter().enumerate());
    all.find_map(|(which, suffix)| Some((path.strip_suffix(suffix)?, which)))
}
