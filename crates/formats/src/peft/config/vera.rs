//! `adapter_config.json` of a VeRA adapter: fewer fields than LoRA's, and one that says whether the two random matrices are in the tensors' file. Where they
//! are not they are PyTorch's random numbers, which nothing here can draw, and the adapter is refused.

use serde_json::{Map, Value, json};

use super::{
    AdapterConfig, Problem, Result, base_model, dropout, flag, layers, listed, rank, refuse_unsupported, saved, targets,
};

/// Fields that are read, or that say how the adapter began.
const READ: [&str; 11] = [
    "peft_type",
    "r",
    "target_modules",
    "layers_to_transform",
    "base_model_name_or_path",
    "save_projection",
    "vera_dropout",
    "projection_prng_key",
    "d_initial",
    "init_weights",
    "modules_to_save",
];

pub(super) fn from_json(fields: &Map<String, Value>) -> Result<AdapterConfig> {
    refuse_unsupported(fields, &READ)?;
    if fields.contains_key("save_projection") && !flag(fields, "save_projection")? {
        return Err(Problem::NoProjection);
    }
    let rank = rank(fields)?;
    Ok(AdapterConfig {
        rank,
        alpha: rank as f64,
        vera: true,
        dropout: dropout(fields, "vera_dropout")?,
        targets: targets(fields)?,
        layers: layers(fields)?,
        base_model: base_model(fields)?,
        saved: saved(fields)?,
        task: fields.get("task_type").and_then(Value::as_str).map(String::from),
        ..AdapterConfig::default()
    })
}

/// The key is PEFT's default: what it would draw is in the file.
pub(super) fn to_json(config: &AdapterConfig, targets: &Value) -> String {
    let fields = json!({
        "peft_type": "VERA",
        "task_type": config.task,
        "base_model_name_or_path": config.base_model,
        "inference_mode": true,
        "r": config.rank,
        "vera_dropout": config.dropout,
        "target_modules": targets,
        "layers_to_transform": config.layers,
        "projection_prng_key": 0,
        "save_projection": true,
        "d_initial": 0.1,
        "bias": "none",
        "fan_in_fan_out": false,
        "init_weights": true,
        "modules_to_save": listed(&config.saved),
    });
    format!("{fields:#}\n")
}
