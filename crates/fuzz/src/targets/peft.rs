//! A PEFT adapter: `adapter_config.json`, a line of three dashes, `adapter_model.safetensors`.

use pocketune_formats::peft::Adapter;

use super::{BETWEEN, Target, accepted, folder_of_two};
use crate::seeds::{Seed, f32_tensors};

pub const TARGET: Target = Target {
    name: "peft",
    run,
    seeds,
    words: &[
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"-1",
        b"0",
        b"1e999",
        b"\"r\":",
        b"\"lora_alpha\":",
        b"\"target_modules\":",
        b"\"all-linear\"",
        b"\"layers_to_transform\":",
        b"\"use_dora\":true",
        b"\"bias\":\"all\"",
        b".lora_A.weight",
        b".lora_B.weight",
        b"\"peft_type\":\"VERA\"",
        b".vera_lambda_d",
        b"base_model.vera_A",
        b"\"modules_to_save\":[\"classifier\"]",
        b"classifier.dense.weight",
        b"base_model.model.",
        b"\"dtype\":\"BF16\"",
        b"\"dtype\":\"I8\"",
    ],
};

fn run(bytes: &[u8]) -> bool {
    let files = folder_of_two(["adapter_config.json", "adapter_model.safetensors"], bytes);
    let Some(adapter) = accepted(Adapter::read(&files)) else { return false };
    let _ = adapter.pairs().map(|pair| adapter.config().scale_of(pair.module)).sum::<f64>();
    adapter.pairs().all(|pair| adapter.pair(pair.module).is_some())
}

fn seeds() -> Vec<Seed> {
    let seed = |config: &str, tensors: &[(&str, &[usize])]| {
        Seed::common([config.as_bytes(), BETWEEN, &f32_tensors(tensors)].concat())
    };
    vec![
        seed(
            r#"{"peft_type":"LORA","r":1,"lora_alpha":1,"target_modules":["query"],"modules_to_save":["classifier","score"],"task_type":"SEQ_CLS"}"#,
            &[
                ("base_model.model.classifier.dense.weight", &[2, 2]),
                ("base_model.model.classifier.out_proj.bias", &[3]),
                ("base_model.model.roberta.encoder.layer.0.attention.self.query.lora_A.weight", &[1, 2]),
                ("base_model.model.roberta.encoder.layer.0.attention.self.query.lora_B.weight", &[2, 1]),
            ],
        ),
        seed(
            r#"{"peft_type":"LORA","r":2,"lora_alpha":4,"target_modules":["q_proj"],"bias":"none","layers_to_transform":[0],"task_type":"CAUSAL_LM"}"#,
            &[
                ("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", &[2, 3]),
                ("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight", &[3, 2]),
            ],
        ),
        seed(
            r#"{"peft_type":"LORA","r":1,"lora_alpha":0.5,"target_modules":"all-linear","rank_pattern":{},"use_dora":false}"#,
            &[("base_model.model.x.lora_A.weight", &[1, 0]), ("base_model.model.x.lora_B.weight", &[0, 1])],
        ),
        seed(
            r#"{"peft_type":"VERA","r":2,"d_initial":0.1,"projection_prng_key":0,"save_projection":true,"target_modules":["q_proj"]}"#,
            &[
                ("base_model.vera_A", &[2, 3]),
                ("base_model.vera_B", &[4, 2]),
                ("base_model.model.x.q_proj.vera_lambda_d", &[2]),
                ("base_model.model.x.q_proj.vera_lambda_b", &[3]),
            ],
        ),
    ]
}
