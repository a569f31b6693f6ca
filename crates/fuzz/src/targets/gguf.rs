//! GGUF: header, metadata, tensors, then what the product takes from them: configuration, tokenizer, chat template.

use pocketune::families::Config;
use pocketune_formats::gguf::Value;
use pocketune_formats::{Mapped, ModelFiles};
use pocketune_text::{ChatTemplate, Tokenizer};

use super::{Target, accepted, chat_template, tokenizer_json};
use crate::seeds::Seed;
use crate::seeds::gguf::GgufFile;

pub const TARGET: Target = Target {
    name: "gguf",
    run,
    seeds,
    words: &[
        b"GGUF",
        b"general.alignment",
        b"general.architecture",
        b"llama",
        b"gemma3",
        b"qwen2",
        b"tokenizer.ggml.",
        b"token_type",
        b"rope_freqs.weight",
        b".rope.scaling.type",
        b"linear",
        b"split.count",
        b"{{ messages }}",
        b"<0x41>",
        b"gpt-2",
    ],
};

fn run(bytes: &[u8]) -> bool {
    let Some(model) = accepted(ModelFiles::from_gguf(Mapped::from_bytes("m.gguf", bytes))) else { return false };
    for info in model.tensors() {
        let _ = info.elements();
        if let Some(Some(tensor)) = accepted(model.tensor(&info.name)) {
            assert_eq!(tensor.data.len(), info.bytes);
        }
    }
    let Some(gguf) = model.gguf() else { return false };
    for (_, value) in gguf.meta().iter() {
        if let Value::Array(array) = value {
            assert_eq!(array.values().count(), array.len());
        }
    }
    let config = accepted(Config::read(&model)).is_some();
    if let Some(tokenizer) = accepted(Tokenizer::from_gguf(gguf)) {
        tokenizer_json::exercise(&tokenizer);
    }
    if let Some(Some(template)) = accepted(ChatTemplate::from_gguf(gguf)) {
        chat_template::exercise(&template);
    }
    config
}

fn seeds() -> Vec<Seed> {
    let model = |architecture: &str| {
        let key = |name: &str| format!("{architecture}.{name}");
        GgufFile::default()
            .text("general.architecture", architecture)
            .number(&key("embedding_length"), 8)
            .number(&key("block_count"), 2)
            .number(&key("attention.head_count"), 2)
            .number(&key("attention.head_count_kv"), 1)
            .number(&key("feed_forward_length"), 16)
            .number(&key("context_length"), 64)
            .float(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .float(&key("rope.freq_base"), 1e4)
            .tensor("token_embd.weight", &[8, 6])
            .tensor("rope_freqs.weight", &[2])
            .tensor("blk.0.attn_q.bias", &[8])
    };
    let pieces = |file: GgufFile| {
        file.text("tokenizer.ggml.model", "llama")
            .texts("tokenizer.ggml.tokens", &["<unk>", "<s>", "</s>", "▁a", "b", "<0x41>"])
            .floats("tokenizer.ggml.scores", &[0.0, 0.0, 0.0, -1.0, -2.0, 0.0])
            .integers("tokenizer.ggml.token_type", &[2, 3, 3, 1, 1, 6])
            .number("tokenizer.ggml.bos_token_id", 1)
            .number("tokenizer.ggml.eos_token_id", 2)
            .flag("tokenizer.ggml.add_bos_token", true)
            .flag("tokenizer.ggml.add_space_prefix", false)
    };
    let byte_level = |file: GgufFile, splitting: &str| {
        file.text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", splitting)
            .texts("tokenizer.ggml.tokens", &["a", "b", "ab", "Ġ", "Ġa", "<|end|>"])
            .texts("tokenizer.ggml.merges", &["a b", "Ġ a"])
            .integers("tokenizer.ggml.token_type", &[1, 1, 1, 1, 1, 3])
            .number("tokenizer.ggml.eos_token_id", 5)
    };
    let template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}";
    vec![
        Seed::common(model("llama").bytes()),
        Seed::common(model("gemma3").number("gemma3.attention.sliding_window", 4).bytes()),
        Seed::common(pieces(model("llama")).bytes()),
        Seed::common(pieces(model("llama")).number("general.alignment", 32).bytes()),
        Seed::common(model("qwen2").text("tokenizer.chat_template", template).bytes()),
        Seed::common(
            model("qwen3").text("qwen3.rope.scaling.type", "linear").float("qwen3.rope.scaling.factor", 2.0).bytes(),
        ),
        Seed::rare(byte_level(model("llama"), "gpt-2").bytes()),
        Seed::rare(byte_level(model("llama"), "llama-bpe").bytes()),
    ]
}
