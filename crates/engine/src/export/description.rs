//! What a GGUF file says of a model beside its tensors: the numbers of its architecture under llama.cpp's keys, tokenizer and template. From
//! another GGUF file everything is copied but what no longer holds. It refuses what llama.cpp would compute differently.

use pocketune_formats::BlockType;
use pocketune_formats::gguf::Header;

use super::types::file_type;
use crate::error::{Error, Result};
use crate::families::{Config, Family, Scaling};
use crate::model::Model;

/// Keys that are written anew.
const OURS: [&str; 3] = ["general.file_type", "general.quantization_version", "general.alignment"];

/// One layer in six of Gemma 3 sees everything, and windowed layers rotate with this base: llama.cpp assumes both.
const PATTERN: usize = 6;
const LOCAL_THETA: f64 = 10_000.0;

/// The version of ggml's quantised layouts.
const QUANTIZATION_VERSION: usize = 2;

/// Writes all metadata of a model in `ty`, and says what had to be left out.
pub(super) fn describe(model: &Model, ty: BlockType, header: &mut Header) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if let Some(gguf) = model.files.gguf() {
        let kept = gguf.meta().encoded().filter(|(key, _)| !OURS.contains(key));
        kept.for_each(|(_, entry)| header.encoded(entry));
    } else if let Some(folder) = model.files.folder() {
        let architecture = architecture(model)?;
        header.text("general.architecture", architecture);
        header.text("general.type", "model");
        let name = folder.path().canonicalize().ok();
        let name = name.as_deref().and_then(|path| path.file_name()).and_then(|name| name.to_str());
        header.text("general.name", name.unwrap_or("model"));
        notes.extend(numbers(&model.config, architecture, header));
        notes.extend(pocketune_text::write_gguf(folder, model.config.vocab, header)?);
    }
    header.number("general.file_type", file_type(ty));
    header.number("general.quantization_version", QUANTIZATION_VERSION);
    Ok(notes)
}

/// The architecture's name in GGUF, where llama.cpp computes what the model does.
fn architecture(model: &Model) -> Result<&'static str> {
    let fault = |fault: String| Error::Model { path: model.files.path().into(), fault };
    let config = &model.config;
    let family = config.family.model_type();
    let name = config.family.architecture();
    let name = name.ok_or_else(|| fault(format!("{family} models have no form in GGUF here")))?;
    let pattern = config.windowed.iter().enumerate().all(|(layer, windowed)| *windowed == ((layer + 1) % PATTERN != 0));
    if config.family == Family::Gemma3Text && !pattern {
        return Err(fault(format!(
            "its windowed layers are not all but one in {PATTERN}, which GGUF takes for granted"
        )));
    }
    Ok(name)
}

/// The numbers of a model, and what llama.cpp can't do.
fn numbers(config: &Config, architecture: &str, header: &mut Header) -> Option<String> {
    let key = |name: &str| format!("{architecture}.{name}");
    let mut note = None;
    let mut context = config.max_positions.unwrap_or(2048).min(u32::MAX as usize);
    if let (Family::Mistral, Some(window)) = (config.family, config.window) {
        // Up to there a window changes nothing.
        context = context.min(window);
        note = Some(format!("llama.cpp's llama has no window: the file says {context} tokens, which one window holds"));
    }
    header.number(&key("context_length"), context);
    header.number(&key("embedding_length"), config.hidden);
    header.number(&key("block_count"), config.layers);
    header.number(&key("feed_forward_length"), config.ffn);
    header.number(&key("attention.head_count"), config.heads);
    header.number(&key("attention.head_count_kv"), config.kv_heads);
    header.number(&key("attention.key_length"), config.head_dim);
    header.number(&key("attention.value_length"), config.head_dim);
    header.float(&key("attention.layer_norm_rms_epsilon"), config.norm_eps);
    header.number(&key("rope.dimension_count"), config.head_dim);
    header.number(&key("vocab_size"), config.vocab);
    if let Some(rope) = &config.rope {
        header.float(&key("rope.freq_base"), rope.theta as f32);
        if let Scaling::Linear(factor) = rope.scaling {
            header.text(&key("rope.scaling.type"), "linear");
            header.float(&key("rope.scaling.factor"), factor as f32);
        }
    }
    if config.family == Family::Gemma3Text {
        if let Some(window) = config.window {
            header.number(&key("attention.sliding_window"), window.min(u32::MAX as usize));
        }
        if let Some(local) = config.local_rope.as_ref().filter(|rope| rope.theta != LOCAL_THETA) {
            // Ours, and llama.cpp's.
            header.float(&key("rope.local.freq_base"), local.theta as f32);
            header.float(&key("rope.freq_base_swa"), local.theta as f32);
        }
    }
    note
}

/// What llama.cpp divides each frequency of a rotation by, where Llama 3 stretches them: the tensor `rope_freqs.weight`.
pub(super) fn rope_divisors(model: &Model) -> Option<Vec<f32>> {
    let config = &model.config;
    let rope = config.rope.as_ref().filter(|_| model.files.gguf().is_none())?;
    let Scaling::Llama3 { .. } = rope.scaling else { return None };
    let plain = |i: usize| rope.theta.powf(-2.0 * i as f64 / config.head_dim as f64);
    let stretched = rope.frequencies(config.head_dim);
    Some(stretched.iter().enumerate().map(|(i, frequency)| (plain(i) / frequency) as f32).collect())
}
