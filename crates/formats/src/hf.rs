//! A Hugging Face folder: `config.json`, and `model.safetensors` or an index with shards.
//!
//! File names in the index are taken for what they are, words of a stranger: see [`Folder`]. What the configuration
//! means is for the model families to say.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::mapped::Mapped;
use crate::peft;
use crate::safetensors_file;
use crate::tensor::{TensorInfo, TensorList};

/// Real ones have a few kilobytes.
const MAX_CONFIG_BYTES: usize = 1 << 20;
/// Real ones have some hundred kilobytes at most.
const MAX_INDEX_BYTES: usize = 4 << 20;
/// Llama 3.1 405B has 191.
const MAX_SHARDS: usize = 1024;

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// What a Hugging Face folder holds, tensors apart.
#[derive(Debug)]
pub struct HfFolder {
    folder: Folder,
    config: serde_json::Value,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl HfFolder {
    /// Maps the weights of a folder and reads their headers.
    ///
    /// # Errors
    /// When a file is missing or malformed.
    pub fn read(folder: Folder) -> Result<(Self, Vec<Mapped>, TensorList)> {
        let path = folder.path();
        let Some(config) = folder.document::<serde_json::Map<_, _>>(CONFIG, MAX_CONFIG_BYTES)? else {
            return Err(Error::FolderLacks { path: path.into(), wanted: CONFIG, hint: hint_without_config(&folder) });
        };
        let single = folder.file(SINGLE)?.is_some();
        let index: Option<Index> = if single { None } else { folder.document(INDEX, MAX_INDEX_BYTES)? };
        let shards = match &index {
            Some(index) => shard_names(path, index)?,
            None if single => vec![SINGLE],
            None => return Err(lacks_weights(&folder)),
        };
        let (files, tensors) = read_shards(&folder, &shards)?;
        let tensors = TensorList::new(tensors)
            .map_err(|tensor| Error::DuplicateTensor { path: path.into(), tensor: tensor.into() })?;
        if let Some(index) = &index {
            check_index(&folder, index, &shards, &tensors)?;
        }
        Ok((Self { folder, config: config.into() }, files, tensors))
    }

    /// The content of `config.json`.
    pub fn config(&self) -> &serde_json::Value {
        &self.config
    }

    /// The folder.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }
}

fn read_shards(folder: &Folder, shards: &[&str]) -> Result<(Vec<Mapped>, Vec<TensorInfo>)> {
    let (mut files, mut tensors) = (Vec::with_capacity(shards.len()), Vec::new());
    for (i, shard) in shards.iter().enumerate() {
        let file = folder.map(shard)?;
        tensors.extend(safetensors_file::read(&file, i)?);
        files.push(file);
    }
    Ok((files, tensors))
}

/// The distinct file names of the index, sorted.
fn shard_names<'a>(path: &Path, index: &'a Index) -> Result<Vec<&'a str>> {
    let mut names: Vec<&str> = index.weight_map.values().map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > MAX_SHARDS {
        return Err(Error::TooMany { path: path.join(INDEX), what: "shards", count: names.len(), limit: MAX_SHARDS });
    }
    Ok(names)
}

/// Every tensor of the index is in the shard that it names.
fn check_index(folder: &Folder, index: &Index, shards: &[&str], tensors: &TensorList) -> Result<()> {
    for (tensor, shard) in &index.weight_map {
        if tensors.find(tensor).is_none_or(|found| shards[found.file] != shard) {
            let path = folder.path().join(INDEX);
            return Err(Error::NotInShard { path, tensor: tensor.clone(), shard: shard.clone() });
        }
    }
    Ok(())
}

fn lacks_weights(folder: &Folder) -> Error {
    let hint = match folder.find_ending(".bin") {
        Some(name) => format!("; it has {name:?}, and only safetensors are read"),
        None => String::new(),
    };
    Error::FolderLacks { path: folder.path().into(), wanted: "model.safetensors, nor an index of shards", hint }
}

fn hint_without_config(folder: &Folder) -> String {
    if matches!(folder.file(peft::CONFIG_FILE), Ok(Some(_))) {
        return "; it is an adapter, not a model".into();
    }
    match folder.find_ending(".gguf") {
        Some(name) => format!("; it has {name:?}: give the path of that file"),
        None => String::new(),
    }
}
