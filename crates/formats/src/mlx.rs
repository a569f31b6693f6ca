//! MLX's LoRA adapters: `adapter_config.json`, which holds all of mlx-lm's options, and `adapters.safetensors`.
//!
//! Factors lie transposed there, as `[in, r]` and `[r, out]`, and the change is multiplied by `scale` itself. LoRA and DoRA are read; what is
//! neither is refused by the name of the field.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::mapped::Mapped;
use crate::peft::Problem;
use crate::safetensors_file;
use crate::tensor::TensorInfo;

/// The name of the configuration in an adapter's folder; PEFT calls its own the same.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// The name of the tensors' file.
pub const TENSORS_FILE: &str = "adapters.safetensors";

const MAX_CONFIG_BYTES: usize = 1 << 20;
const SUFFIXES: [&str; 3] = [".lora_a", ".lora_b", ".m"];

/// What an adapter's folder holds.
pub struct Adapter {
    /// What the change is multiplied with.
    pub scale: f64,
    /// The model that it was trained on, where that is said.
    pub base_model: Option<String>,
    /// The mapped tensors' file.
    pub file: Mapped,
    /// Its tensors.
    pub tensors: Vec<TensorInfo>,
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
        let config: Option<Map<String, Value>> = folder.document(CONFIG_FILE, MAX_CONFIG_BYTES)?;
        let Some(config) = config else {
            return Err(Error::FolderLacks { path: folder.path().into(), wanted: CONFIG_FILE, hint: String::new() });
        };
        let scale = scale(&config).map_err(|problem| Error::Peft { path: folder.path().join(CONFIG_FILE), problem })?;
        let base_model = config.get("model").and_then(Value::as_str).map(String::from);
        let file = folder.map(TENSORS_FILE)?;
        let tensors = safetensors_file::read(&file, 0)?;
        Ok(Self { scale, base_model, file, tensors })
    }
}

fn scale(config: &Map<String, Value>) -> std::result::Result<f64, Problem> {
    match config.get("fine_tune_type") {
        None | Some(Value::Null) => {}
        Some(Value::String(ty)) if ty == "lora" || ty == "dora" => {}
        Some(found) => {
            return Err(Problem::Unsupported { field: "fine_tune_type".into(), found: found.to_string() });
        }
    }
    let found = config.get("lora_parameters").and_then(|lora| lora.get("scale"));
    let found = found.ok_or(Problem::Missing { field: "lora_parameters.scale" })?;
    found.as_f64().filter(|scale| scale.is_finite()).ok_or(Problem::Wrong {
        field: "lora_parameters.scale",
        found: found.to_string(),
        wanted: "a number",
    })
}

/// The module that a tensor belongs to, and which part (A, B or DoRA's magnitudes) it is.
pub fn module(name: &str) -> Option<(&str, usize)> {
    SUFFIXES.iter().enumerate().find_map(|(which, suffix)| Some((name.strip_suffix(suffix)?, which)))
}

/// The names of A, B and DoRA's magnitudes of the module at `path`.
pub fn tensor_names(path: &str) -> [String; 3] {
    SUFFIXES.map(|suffix| format!("{path}{suffix}"))
}

/// The content of an `adapter_config.json` that mlx-lm loads. `keys` are paths inside a layer, such as `self_attn.q_proj`.
pub fn config_json(dora: bool, rank: usize, scale: f64, keys: &[String], base_model: Option<&str>) -> String {
    let lora = json!({"rank": rank, "scale": scale, "dropout": 0.0, "keys": keys});
    // Of all layers; those without tensors begin, and stay, as no change.
    let ty = if dora { "dora" } else { "lora" };
    let config = json!({"fine_tune_type": ty, "num_layers": -1, "lora_parameters": lora, "model": base_model});
    format!("{config:#}\n")
}
