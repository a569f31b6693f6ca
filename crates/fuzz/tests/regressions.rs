//! Inputs that once broke a rule, by what they did. Each must keep the rules for ever.

use pocketune_fuzz::drive::judge;
use pocketune_fuzz::measure::Counting;
use pocketune_fuzz::seeds::gguf::GgufFile;
use pocketune_fuzz::targets;

#[global_allocator]
static COUNTING: Counting = Counting;

fn refused(target: &str, bytes: impl AsRef<[u8]>) {
    let target = targets::ALL.iter().find(|each| each.name == target).unwrap();
    let (verdict, _) = judge(target, bytes.as_ref());
    assert_eq!(verdict, Ok(false), "{}", target.name);
}

/// A configuration with so many layers.
fn config(family: &str, layers: &str) -> String {
    let numbers = r#""hidden_size":32,"num_attention_heads":4,"head_dim":8,"intermediate_size":56,"rms_norm_eps":1e-6,"ffn_dim":8"#;
    let others = r#""max_position_embeddings":64,"sliding_window":8,"activation_function":"relu","hidden_act":"silu""#;
    format!(r#"{{"model_type":"{family}",{numbers},{others},"num_hidden_layers":{layers}}}"#)
}

#[test]
fn a_number_of_layers_that_makes_a_list_of_exabytes() {
    for family in ["llama", "mistral", "gemma3_text", "qwen3", "opt"] {
        for layers in ["9223372036854775807", "4294967295", "18446744073709551615"] {
            refused("config", config(family, layers));
        }
    }
}

#[test]
fn a_shard_whose_name_has_a_line_break() {
    refused("index", r#"{"weight_map":{"x":"b.safet\nsors"}}"#);
}

#[test]
fn an_architecture_and_a_tokenizer_whose_names_have_a_line_break() {
    refused("gguf", GgufFile::default().text("general.architecture", "qw\nn2").bytes());
    let tokens = GgufFile::default().text("general.architecture", "llama").text("tokenizer.ggml.model", "lla\na");
    refused("gguf", tokens.texts("tokenizer.ggml.tokens", &["a"]).bytes());
}

#[test]
fn a_kind_of_normalizer_whose_name_has_a_line_break() {
    refused("tokenizer_json", r#"{"normalizer":{"type":"NF\nC"},"model":{"vocab":{},"merges":[]}}"#);
}

/// A template is compiled, so the file is accepted; what it makes is refused when it is run, inside the rules.
#[test]
fn a_template_that_writes_a_string_of_a_hundred_megabytes() {
    let target = targets::ALL.iter().find(|each| each.name == "chat_template").unwrap();
    for source in ["{{ 'a' * 100000000 }}", "{% set x = 'ab' * 50000000 %}", "{{ [1, 2] * 50000000 }}"] {
        assert_eq!(judge(target, source.as_bytes()).0, Ok(true), "{source}");
    }
}
