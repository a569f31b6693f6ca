//! `adapter_config.json`: what is read of it, what is refused, and how it is written.
//!
//! PEFT adds fields with every version. A field that is unset (`null`, `false`, empty) can't change what the adapter
//! means; one that is set must be known here to be harmless, or the adapter is refused by that field's name.

mod vera;

use serde_json::{Map, Value, json};

use super::{Patterns, Problem};

type Result<T> = std::result::Result<T, Problem>;

/// Fields that may have any value: they matter for training in PEFT, for bookkeeping, or narrow down modules that the
/// tensors' file lists anyway.
const HARMLESS: [&str; 11] = [
    "auto_mapping",
    "eva_config",
    "exclude_modules",
    "inference_mode",
    "layers_pattern",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "task_type",
    "runtime_config",
];

/// Fields that [`AdapterConfig::from_json`] reads.
const READ: [&str; 12] = [
    "peft_type",
    "r",
    "lora_alpha",
    "lora_dropout",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "use_dora",
    "target_modules",
    "layers_to_transform",
    "base_model_name_or_path",
    "modules_to_save",
];

/// What PEFT calls heads of classes, of one architecture or another: modules that are trained whole. Others are not read.
const HEADS: [&str; 2] = ["classifier", "score"];

/// A LoRA configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterConfig {
    /// `r`: rows of A and columns of B; at least 1.
    pub rank: usize,
    /// `lora_alpha`: the change is scaled by `alpha / rank`.
    pub alpha: f64,
    /// `rank_pattern`: the ranks of modules that have another.
    pub ranks: Patterns<usize>,
    /// `alpha_pattern`: the alphas of modules that have another.
    pub alphas: Patterns<f64>,
    /// `use_rslora`: whether the change is scaled by `alpha / sqrt(rank)` instead.
    pub stabilized: bool,
    /// `use_dora`: whether modules have magnitudes beside the factors.
    pub dora: bool,
    /// `peft_type` is `VERA`: all modules share two random matrices and have two vectors each. The scale is 1 then.
    pub vera: bool,
    /// `lora_dropout`: the share of an adapter's inputs that training drops.
    pub dropout: f64,
    /// `target_modules`.
    pub targets: Targets,
    /// `layers_to_transform`: the adapted layers, where not all are.
    pub layers: Option<Vec<usize>>,
    /// `base_model_name_or_path`.
    pub base_model: Option<String>,
    /// `modules_to_save`: modules that are trained whole and lie in the tensors' file as they are, such as `classifier`.
    pub saved: Vec<String>,
    /// `task_type`: what PEFT wraps the model for, such as `CAUSAL_LM`.
    pub task: Option<String>,
}

/// Which modules an adapter changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Targets {
    /// Those whose path ends in one of these, such as `q_proj`.
    Modules(Vec<String>),
    /// Every linear module but the output head.
    #[default]
    AllLinear,
}

impl Targets {
    fn to_json(&self) -> Value {
        match self {
            Targets::Modules(names) => json!(names),
            Targets::AllLinear => json!("all-linear"),
        }
    }
}

impl AdapterConfig {
    /// The rank of the module at `path`.
    pub fn rank_of(&self, path: &str) -> usize {
        self.ranks.of(path).unwrap_or(self.rank)
    }

    /// What the change `B A` of the module at `path` is multiplied by.
    pub fn scale_of(&self, path: &str) -> f64 {
        scale(self.alphas.of(path).unwrap_or(self.alpha), self.rank_of(path), self.stabilized)
    }

    /// Takes over a parsed `adapter_config.json`.
    ///
    /// # Errors
    /// When a field is missing or wrong, or sets something that is not plain LoRA.
    pub fn from_json(fields: &Map<String, Value>) -> Result<Self> {
        match fields.get("peft_type") {
            Some(Value::String(ty)) if ty == "LORA" => {}
            Some(Value::String(ty)) if ty == "VERA" => return vera::from_json(fields),
            Some(found) => return Err(Problem::NotLora { found: shown(found) }),
            None => return Err(Problem::Missing { field: "peft_type" }),
        }
        refuse_unsupported(fields, &READ)?;
        Ok(Self {
            rank: rank(fields)?,
            alpha: alpha(fields)?,
            ranks: patterns(fields, "rank_pattern", "names of modules, each with a rank of at least 1", whole)?,
            alphas: patterns(fields, "alpha_pattern", "names of modules, each with a number of at least 0", positive)?,
            stabilized: flag(fields, "use_rslora")?,
            dora: flag(fields, "use_dora")?,
            vera: false,
            dropout: dropout(fields, "lora_dropout")?,
            targets: targets(fields)?,
            layers: layers(fields)?,
            base_model: base_model(fields)?,
            saved: saved(fields)?,
            task: fields.get("task_type").and_then(Value::as_str).map(String::from),
        })
    }

    /// The content of an `adapter_config.json` that PEFT loads without a warning.
    pub fn to_json(&self) -> String {
        let targets = self.targets.to_json();
        if self.vera {
            return vera::to_json(self, &targets);
        }
        let fields = json!({
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": self.base_model,
            "inference_mode": true,
            "r": self.rank,
            "lora_alpha": number(self.alpha),
            "lora_dropout": self.dropout,
            "target_modules": targets,
            "layers_to_transform": self.layers,
            "bias": "none",
            "fan_in_fan_out": false,
            "init_lora_weights": true,
            "modules_to_save": listed(&self.saved),
            "rank_pattern": self.ranks.to_json(|&rank| json!(rank)),
            "alpha_pattern": self.alphas.to_json(|&alpha| number(alpha)),
            "use_dora": self.dora,
            "use_rslora": self.stabilized,
        });
        format!("{fields:#}\n")
    }
}

/// `null` where there is none.
fn listed(names: &[String]) -> Value {
    if names.is_empty() { Value::Null } else { json!(names) }
}

/// Refuses what is set, and neither harmless nor `read`.
fn refuse_unsupported(fields: &Map<String, Value>, read: &[&str]) -> Result<()> {
    for (field, value) in fields {
        let fine = match (field.as_str(), value) {
            (name, _) if read.contains(&name) || HARMLESS.contains(&name) => true,
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

/// PEFT declares integers; a fraction is written as it is.
fn number(alpha: f64) -> Value {
    let whole = alpha.fract() == 0.0 && alpha.abs() < 9e15;
    if whole { json!(alpha as i64) } else { json!(alpha) }
}

/// What a change of `rank` is multiplied by: alpha / rank, or alpha / sqrt(rank) where that is `stabilized` (rsLoRA).
pub fn scale(alpha: f64, rank: usize, stabilized: bool) -> f64 {
    let rank = rank as f64;
    alpha / if stabilized { rank.sqrt() } else { rank }
}

fn whole(value: &Value) -> Option<usize> {
    value.as_u64().and_then(|rank| usize::try_from(rank).ok()).filter(|&rank| rank > 0)
}

fn positive(value: &Value) -> Option<f64> {
    value.as_f64().filter(|alpha| alpha.is_finite() && *alpha >= 0.0)
}

fn rank(fields: &Map<String, Value>) -> Result<usize> {
    let found = fields.get("r").ok_or(Problem::Missing { field: "r" })?;
    whole(found).ok_or_else(|| wrong("r", found, "a whole number of at least 1"))
}

fn alpha(fields: &Map<String, Value>) -> Result<f64> {
    let found = fields.get("lora_alpha").ok_or(Problem::Missing { field: "lora_alpha" })?;
    positive(found).ok_or_else(|| wrong("lora_alpha", found, "a number of at least 0"))
}

fn dropout(fields: &Map<String, Value>, field: &'static str) -> Result<f64> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(0.0),
        Some(found) => positive(found)
            .filter(|share| *share < 1.0)
            .ok_or_else(|| wrong(field, found, "a share of at least 0 and below 1")),
    }
}

fn flag(fields: &Map<String, Value>, field: &'static str) -> Result<bool> {
    match fields.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(found) => Err(wrong(field, found, "true or false")),
    }
}

fn patterns<T: Clone>(
    fields: &Map<String, Value>,
    field: &'static str,
    wanted: &'static str,
    read: impl Fn(&Value) -> Option<T>,
) -> Result<Patterns<T>> {
    let found = match fields.get(field) {
        None | Some(Value::Null) => return Ok(Patterns::default()),
        Some(found) => found,
    };
    let list = found.as_object().ok_or_else(|| wrong(field, found, wanted))?.iter().map(|(name, value)| {
        let value = read(value).ok_or_else(|| wrong(field, found, wanted))?;
        let name = Patterns::<T>::plain(name).ok_or_else(|| {
            wrong(field, &Value::String(name.clone()), "the name or the path of a module (patterns are not read)")
        })?;
        Ok((name, value))
    });
    Ok(Patterns(list.collect::<Result<_>>()?))
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

fn saved(fields: &Map<String, Value>) -> Result<Vec<String>> {
    const FIELD: &str = "modules_to_save";
    let found = match fields.get(FIELD) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(found) => found,
    };
    let names = found.as_array().and_then(|names| names.iter().map(|name| name.as_str().map(String::from)).collect());
    let names: Vec<String> = names.ok_or_else(|| wrong(FIELD, found, "a list of module names"))?;
    match names.iter().all(|name| HEADS.contains(&&**name)) {
        true => Ok(names),
        false => Err(Problem::Unsupported { field: FIELD.into(), found: shown(found) }),
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
