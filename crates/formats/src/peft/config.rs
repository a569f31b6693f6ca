//! `adapter_config.json`: what is read of it, what is refused, and how it is written.
//!
//! PEFT adds fields with every version. A field that is unset (`null`, `false`, empty) can't change what the adapter
//! means; one that is set must be known here to be harmless, or the adapter is refused by that field's name.

use serde_json::{Map, Value, json};

use super::Problem;

type Result<T> = std::result::Result<T, Problem>;

/// Fields that may have any value: they matter for training in PEFT, for bookkeeping, or narrow down modules that the
/// tensors' file lists anyway.
const HARMLESS: [&str; 12] = [
    "auto_mapping",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
    "runtime_config",
];

/// Fields that [`AdapterConfig::from_json`] reads.
const READ: [&str; 6] =
    ["peft_type", "r", "lora_alpha", "target_modules", "layers_to_transform", "base_model_name_or_path"];

/// A plain LoRA configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// `r`: rows of A and columns of B; at least 1.
    pub rank: usize,
    /// `lora_alpha`: the change is scaled by `alpha / rank`.
    pub alpha: f64,
    /// `target_modules`.
    pub targets: Targets,
    /// `layers_to_transform`: the adapted layers, where not all are.
    pub layers: Option<Vec<usize>>,
    /// `base_model_name_or_path`.
    pub base_model: Option<String>,
    /// `task_type`: what PEFT wraps the model for, such as `CAUSAL_LM`.
    pub task: Option<String>,
}

/// Which modules an adapter changes.
#[derive(Clone, Debug, PartialEq)]
pub enum Targets {
    /// Those whose path ends in one of these, such as `q_proj`.
    Modules(Vec<String>),
    /// Every linear module but the output head.
    AllLinear,
}

impl AdapterConfig {
    /// What the change `B A` is multiplied by.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }

    /// Takes over a parsed `adapter_config.json`.
    ///
    /// # Errors
    /// When a field is missing or wrong, or sets something that is not plain LoRA.
    pub fn from_json(fields: &Map<String, Value>) -> Result<Self> {
        match fields.get("peft_type") {
            Some(Value::String(ty)) if ty == "LORA" => {}
            Some(found) => return Err(Problem::NotLora { found: shown(found) }),
            None => return Err(Problem::Missing { field: "peft_type" }),
        }
        refuse_unsupported(fields)?;
        Ok(Self {
            rank: rank(fields)?,
            alpha: alpha(fields)?,
            targets: targets(fields)?,
            layers: layers(fields)?,
            base_model: base_model(fields)?,
            task: fields.get("task_type").and_then(Value::as_str).map(String::from),
        })
    }

    /// The content of an `adapter_config.json` that PEFT loads without a warning.
    pub fn to_json(&self) -> String {
        // PEFT declares an integer; a fraction is written as it is.
        let whole = self.alpha.fract() == 0.0 && self.alpha.abs() < 9e15;
        let alpha = if whole { json!(self.alpha as i64) } else { json!(self.alpha) };
        let targets = match &self.targets {
            Targets::Modules(names) => json!(names),
            Targets::AllLinear => json!("all-linear"),
        };
        let fields = json!({
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": self.base_model,
            "inference_mode": true,
            "r": self.rank,
            "lora_alpha": alpha,
            "lora_dropout": 0.0,
            "target_modules": targets,
            "layers_to_transform": self.layers,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "modules_to_save": null,
            "rank_pattern": {},
            "alpha_pattern": {},
            "use_dora": false,
            "use_rslora": false,
        });
        format!("{fields:#}\n")
    }
}

fn refuse_unsupported(fields: &Map<String, Value>) -> Result<()> {
    for (field, value) in fields {
        let fine = match (field.as_str(), value) {
            (name, _) if READ.contains(&name) || HARMLESS.contains(&name) => true,
            ("bias", Value::String(bias)) => bias == "none",
            // Other ways to begin (pissa, olora, corda, loftq) change the base model's weights as well.
            ("init_lora_weights", Value::String(init)) => matches!(&**init, "gaussian" | "eva" | "orthogonal"),
            ("init_lora_weights", Value::Bool(_)) => true,
            (_, Value::Null | Value::Bool(false)) => true,
            (_, Value::Array(list)) => list.is_empty(),
            (_, Value::Object(map)) => map.is_empty(),
            (_, Value::String(text)) => text.is_empty(),
            (_, Value::Bool(true) | Value::Number(_)) => false,
        };
        if !fine {
            return Err(Problem::Unsupported { field: abbreviated(field), found: shown(value) });
        }
    }
    Ok(())
}

fn rank(fields: &Map<String, Value>) -> Result<usize> {
    let found = fields.get("r").ok_or(Problem::Missing { field: "r" })?;
    let rank = found.as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank > 0);
    rank.ok_or_else(|| wrong("r", found, "a whole number of at least 1"))
}

fn alpha(fields: &Map<String, Value>) -> Result<f64> {
    let found = fields.get("lora_alpha").ok_or(Problem::Missing { field: "lora_alpha" })?;
    let alpha = found.as_f64().filter(|alpha| alpha.is_finite() && *alpha >= 0.0);
    alpha.ok_or_else(|| wrong("lora_alpha", found, "a number of at least 0"))
}

fn targets(fields: &Map<String, Value>) -> Result<Targets> {
    const FIELD: &str = "target_modules";
    let wanted = "a list of module names or \"all-linear\" (patterns are not read)";
    let found = fields.get(FIELD).ok_or(Problem::Missing { field: FIELD })?;
    match found {
        Value::String(all) if all == "all-linear" => Ok(Targets::AllLinear),
        Value::Array(names) => {
            let names: Option<Vec<String>> = names.iter().map(|name| name.as_str().map(String::from)).collect();
            names.map(Targets::Modules).ok_or_else(|| wrong(FIELD, found, wanted))
        }
        _ => Err(wrong(FIELD, found, wanted)),
    }
}

fn layers(fields: &Map<String, Value>) -> Result<Option<Vec<usize>>> {
    const FIELD: &str = "layers_to_transform";
    let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
    let layers = match fields.get(FIELD) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(list)) => list.iter().map(number).collect(),
        Some(one) => number(one).map(|layer| vec![layer]),
    };
    layers.map(Some).ok_or_else(|| wrong(FIELD, &fields[FIELD], "a list of layer numbers"))
}

fn base_model(fields: &Map<String, Value>) -> Result<Option<String>> {
    const FIELD: &str = "base_model_name_or_path";
    match fields.get(FIELD) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(name)) => Ok(Some(name.clone())),
        Some(found) => Err(wrong(FIELD, found, "a name")),
    }
}

fn wrong(field: &'static str, found: &Value, wanted: &'static str) -> Problem {
    Problem::Wrong { field, found: shown(found), wanted }
}

/// A value for a message: JSON on one line, cut where it is long.
fn shown(value: &Value) -> String {
    abbreviated(&value.to_string())
}

fn abbreviated(text: &str) -> String {
    crate::inspect::abbreviate(text, 60)
}
