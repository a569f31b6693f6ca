//! What a file holds, as text for `pocketune inspect`.
//!
//! Strings from files are shown with control characters escaped, so that a file can't steer a terminal, and cut where
//! they are long, so that one can't fill the screen. Nothing here reads a weight.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde_json::Value as Json;

use crate::error::Result;
use crate::gguf::{Gguf, MetaArray, Value};
use crate::mapped::{self, Mapped};
use crate::mlx;
use crate::model::{self, ModelFiles};
use crate::peft::{self, Adapter, Targets, scale};
use crate::safetensors_file;
use crate::tensor::TensorInfo;

/// Widest column of names; longer ones are cut.
const NAME_WIDTH: usize = 72;
const VALUE_WIDTH: usize = 96;
/// Elements shown of an array.
const SHOWN: usize = 4;

/// Describes a GGUF file, a Hugging Face folder, an adapter of PEFT or MLX, or a safetensors file.
///
/// # Errors
/// When it is missing, something else, or malformed.
pub fn describe(path: &Path) -> Result<String> {
    let is_folder = mapped::metadata(path)?.is_dir();
    if is_folder && path.join(mlx::TENSORS_FILE).exists() && !path.join(peft::TENSORS_FILE).exists() {
        let mlx::Adapter { scale, file, tensors, .. } = mlx::Adapter::open(path)?;
        let mut text = headline(path, &format!("MLX adapter, scale {scale}"), &[file], &tensors);
        tensor_table(&mut text, &tensors);
        return Ok(text);
    }
    if is_folder && !path.join("config.json").exists() && path.join(peft::CONFIG_FILE).exists() {
        return Ok(describe_adapter(path, &Adapter::open(path)?));
    }
    if !is_folder {
        let file = Mapped::open(path)?;
        if model::is_safetensors(file.bytes()) {
            let tensors = safetensors_file::read(&file, 0)?;
            let mut text = headline(path, "safetensors", &[file], &tensors);
            tensor_table(&mut text, &tensors);
            return Ok(text);
        }
    }
    let model = ModelFiles::open(path)?;
    let tensors: Vec<TensorInfo> = model.tensors().cloned().collect();
    let mut text = match (model.gguf(), model.hf_config()) {
        (Some(gguf), _) => {
            let kind = format!("GGUF version {}", gguf.version());
            headline(path, &kind, model.files(), &tensors) + &metadata_section(gguf)
        }
        (None, config) => {
            headline(path, "Hugging Face folder", model.files(), &tensors)
                + &config_section("config.json", config.and_then(Json::as_object))
        }
    };
    tensor_table(&mut text, &tensors);
    Ok(text)
}

fn describe_adapter(path: &Path, adapter: &Adapter) -> String {
    let config = adapter.config();
    let mut text = headline(
        path,
        if config.vera { "PEFT VeRA adapter" } else { "PEFT LoRA adapter" },
        std::slice::from_ref(adapter.file()),
        adapter.tensors(),
    );
    let alpha = format!("{} (scale {})", config.alpha, scale(config.alpha, config.rank, config.stabilized));
    let mut rows = vec![("rank".to_string(), config.rank.to_string())];
    rows.extend((!config.vera).then_some(("alpha".into(), alpha)));
    rows.push(("modules adapted".into(), grouped(adapter.pairs().len())));
    let kinds = [(config.stabilized, "rsLoRA"), (config.dora, "DoRA")];
    let kinds: Vec<&str> = kinds.into_iter().filter(|(is, _)| *is).map(|(_, name)| name).collect();
    if !kinds.is_empty() {
        rows.push(("kind".into(), kinds.join(", ")));
    }
    let ranks = config.ranks.0.iter().map(|(name, rank)| format!("{name}: rank {rank}"));
    let alphas = config.alphas.0.iter().map(|(name, alpha)| format!("{name}: alpha {alpha}"));
    let patterns: Vec<String> = ranks.chain(alphas).collect();
    if !patterns.is_empty() {
        rows.push(("but".into(), abbreviate(&patterns.join(", "), VALUE_WIDTH)));
    }
    rows.push(match &config.targets {
        Targets::AllLinear => ("targets".into(), "all-linear".into()),
        Targets::Modules(names) => ("targets".into(), abbreviate(&names.join(", "), VALUE_WIDTH)),
    });
    if let Some(layers) = &config.layers {
        rows.push(("layers".into(), abbreviate(&format!("{layers:?}"), VALUE_WIDTH)));
    }
    if let Some(base) = &config.base_model {
        rows.push(("base model".into(), abbreviate(base, VALUE_WIDTH)));
    }
    two_columns(&mut text, "Configuration", &rows);
    tensor_table(&mut text, adapter.tensors());
    text
}

fn headline(path: &Path, kind: &str, files: &[Mapped], tensors: &[TensorInfo]) -> String {
    let bytes = files.iter().map(|file| file.bytes().len()).sum();
    let parameters = tensors.iter().map(TensorInfo::elements).sum();
    let in_files = if files.len() > 1 { format!(" in {} files", files.len()) } else { String::new() };
    format!(
        "{}: {kind}, {}{in_files}, {}, {} parameters\n",
        path.display(),
        megabytes(bytes),
        count(tensors.len()),
        grouped(parameters)
    )
}

fn metadata_section(gguf: &Gguf) -> String {
    let rows: Vec<_> =
        gguf.meta().iter().map(|(key, value)| (abbreviate(key, NAME_WIDTH), show_value(value))).collect();
    let mut text = String::new();
    two_columns(&mut text, "Metadata", &rows);
    text
}

fn config_section(title: &str, fields: Option<&serde_json::Map<String, Json>>) -> String {
    let rows: Vec<_> = fields
        .into_iter()
        .flatten()
        .map(|(key, value)| (abbreviate(key, NAME_WIDTH), abbreviate(&value.to_string(), VALUE_WIDTH)))
        .collect();
    let mut text = String::new();
    two_columns(&mut text, title, &rows);
    text
}

fn two_columns(text: &mut String, title: &str, rows: &[(String, String)]) {
    let width = rows.iter().map(|row| row.0.chars().count()).max().unwrap_or(0);
    let _ = writeln!(text, "\n{title}");
    for (key, value) in rows {
        let _ = writeln!(text, "  {key:width$}  {value}");
    }
}

fn tensor_table(text: &mut String, tensors: &[TensorInfo]) {
    let rows: Vec<[String; 4]> = tensors
        .iter()
        .map(|info| {
            let shape: Vec<String> = info.shape.iter().take(9).map(usize::to_string).collect();
            let (name, shape) = (abbreviate(&info.name, NAME_WIDTH), abbreviate(&shape.join(" x "), 40));
            [name, info.element.name().into(), shape, grouped(info.bytes)]
        })
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, types, shapes, bytes) = (width(0), width(1), width(2), width(3));
    let _ = writeln!(text, "\nTensors");
    for [name, ty, shape, size] in &rows {
        let _ = writeln!(text, "  {name:names$}  {ty:types$}  {shape:shapes$}  {size:>bytes$} bytes");
    }

    let mut by_type: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for info in tensors {
        let sum = by_type.entry(info.element.name()).or_default();
        *sum = (sum.0 + 1, sum.1 + info.elements(), sum.2 + info.bytes);
    }
    let rows: Vec<_> = by_type
        .into_iter()
        .map(|(ty, (tensors, elements, bytes))| {
            let value = format!("{}, {} parameters, {}", count(tensors), grouped(elements), megabytes(bytes));
            (ty.to_string(), value)
        })
        .collect();
    two_columns(text, "By type", &rows);
}

fn show_value(value: Value<'_>) -> String {
    match value {
        Value::Unsigned(value) => value.to_string(),
        Value::Signed(value) => value.to_string(),
        Value::F32(value) => format!("{value:?}"),
        Value::F64(value) => format!("{value:?}"),
        Value::Bool(value) => value.to_string(),
        Value::String(bytes) => show_string(bytes),
        Value::Array(array) => show_array(array),
    }
}

fn show_string(bytes: &[u8]) -> String {
    // A template has thousands of bytes; look only at those that may be shown.
    let head = &bytes[..bytes.len().min(VALUE_WIDTH * 4)];
    abbreviate(&String::from_utf8_lossy(head), VALUE_WIDTH)
}

fn show_array(array: MetaArray<'_>) -> String {
    let shown: Vec<String> = array
        .values()
        .take(SHOWN)
        .map(|value| match value {
            Value::String(bytes) => format!("\"{}\"", abbreviate(&String::from_utf8_lossy(bytes), 24)),
            other => show_value(other),
        })
        .collect();
    let more = if array.len() > SHOWN { ", …" } else { "" };
    format!("{} x {}: {}{more}", grouped(array.len()), array.element_type(), shown.join(", "))
}

/// `text` with control characters escaped, cut to at most `width` characters.
pub(crate) fn abbreviate(text: &str, width: usize) -> String {
    let mut shown: Vec<char> = Vec::new();
    for c in text.chars() {
        // Quotes stay as they are: nothing is parsed from this.
        if matches!(c, '"' | '\'') {
            shown.push(c)
        } else {
            shown.extend(c.escape_debug())
        }
        if shown.len() > width {
            shown.truncate(width - 1);
            shown.push('…');
            break;
        }
    }
    shown.into_iter().collect()
}

fn count(tensors: usize) -> String {
    format!("{} {}", grouped(tensors), if tensors == 1 { "tensor" } else { "tensors" })
}

fn megabytes(bytes: usize) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// A number with separators between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
