//! A configuration as llama.cpp writes it into the metadata of a GGUF file. What a reader finds out by itself (a tied head, biases)
//! is left to the tensors; the tokenizer has its own file.

use pocketune::families::{Config, Scaling};

use crate::weights::WeightType;
use pocketune_formats::gguf::Header;

/// Adds the entries of a configuration of `architecture`.
pub fn write(header: &mut Header, config: &Config, architecture: &str, name: &str, ty: WeightType) {
    let key = |rest: &str| format!("{architecture}.{rest}");
    header.text("general.architecture", architecture);
    header.text("general.name", name);
    header.number("general.file_type", ty.file_type());
    header.number("general.quantization_version", 2);
    if let Some(positions) = config.max_positions {
        header.number(&key("context_length"), positions);
    }
    header.number(&key("embedding_length"), config.hidden);
    header.number(&key("block_count"), config.layers);
    header.number(&key("feed_forward_length"), config.ffn);
    header.number(&key("vocab_size"), config.vocab);
    header.number(&key("attention.head_count"), config.heads);
    header.number(&key("attention.head_count_kv"), config.kv_heads);
    header.number(&key("attention.key_length"), config.head_dim);
    header.number(&key("attention.value_length"), config.head_dim);
    header.float(&key("attention.layer_norm_rms_epsilon"), config.norm_eps);
    if let Some(window) = config.window {
        header.number(&key("attention.sliding_window"), window);
    }
    header.number(&key("rope.dimension_count"), config.head_dim);
    let Some(rope) = &config.rope else { return };
    header.float(&key("rope.freq_base"), rope.theta as f32);
    match rope.scaling {
        // Divisors are a tensor of their own.
        Scaling::None | Scaling::Divisors(_) => {}
        Scaling::Linear(factor) => {
            header.text(&key("rope.scaling.type"), "linear");
            header.float(&key("rope.scaling.factor"), factor as f32);
        }
        Scaling::Llama3 { .. } => unreachable!("shapes have this scaling as divisors, like GGUF files"),
    }
}
