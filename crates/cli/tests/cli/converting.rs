//! Adapters for other runtimes: what goes out and comes back is the same to the bit, rows lie where each runtime looks for them, and what
//! does not fit is refused in one line.

use pocketune_formats::lora::{Kind, LoraFile};

use crate::adapters;
use crate::models::{Golden, demo};
use crate::place::Place;

#[test]
fn an_adapter_comes_back_from_every_runtime_as_it_was() {
    for golden in ["llama", "qwen2", "gemma3_text"].map(Golden::new) {
        let place = Place::new();
        let want = adapters::tensors(&golden.adapter());
        for model in [golden.gguf(&place), golden.folder(&place)] {
            for (kind, name) in [("gguf", "there.gguf"), ("mlx", "there")] {
                let there = place.path(name);
                let convert = |words: &str| place.pocketune("convert").words(words).model(&model);
                convert(&format!("--to {kind}"))
                    .with("--adapter", golden.adapter())
                    .with("--output", &there)
                    .succeeds();
                convert("--to peft").with("--adapter", &there).with("--output", place.path("back")).succeeds();
                assert_eq!(adapters::tensors(&place.path("back")), want, "{} by {kind}", golden.name);
                let (back, first) = (adapters::config(&place.path("back")), adapters::config(&golden.adapter()));
                let scale =
                    |config: &serde_json::Value| config["lora_alpha"].as_f64().unwrap() / config["r"].as_f64().unwrap();
                assert_eq!(scale(&back), scale(&first));
                std::fs::remove_dir_all(place.path("back")).unwrap();
            }
        }
    }
}

/// With its magnitudes, its ranks and its scales; llama.cpp has no place for magnitudes.
#[test]
fn dora_goes_to_mlx_and_back_and_not_to_gguf() {
    for name in ["llama_dora", "qwen2_dora"] {
        let (golden, place) = (Golden::new(name), Place::new());
        let model = golden.folder(&place);
        let convert = |words: &str| place.pocketune("convert").words(words).model(&model);
        let adapter = golden.adapter();
        convert("--to mlx --output there").with("--adapter", &adapter).succeeds();
        convert("--to peft --output back --adapter there").succeeds();
        let (first, back) = (LoraFile::open(&adapter).unwrap(), LoraFile::open(&place.path("back")).unwrap());
        assert_eq!(first.pairs.len(), back.pairs.len());
        for (first_pair, back_pair) in first.pairs.iter().zip(&back.pairs) {
            assert_eq!(first.magnitude(first_pair), back.magnitude(back_pair));
            assert!(first.magnitude(first_pair).is_some());
            // MLX knows one rank and one scale: what is added is the same.
            let change = |file: &LoraFile, pair: &pocketune_formats::lora::Pair| -> Vec<f64> {
                let (a, b, scale) = (file.a(pair), file.b(pair), pair.scale);
                let element = |row: usize, col: usize| -> f64 {
                    let ranks = 0..pair.rank;
                    ranks.map(|r| scale * f64::from(b[row * pair.rank + r]) * f64::from(a[r * pair.cols + col])).sum()
                };
                (0..pair.rows * pair.cols).map(|at| element(at / pair.cols, at % pair.cols)).collect()
            };
            for (first, back) in change(&first, first_pair).into_iter().zip(change(&back, back_pair)) {
                assert!((first - back).abs() < 1e-6, "{name} {}: {first} and {back}", first_pair.module);
            }
        }
        convert("--to gguf --output out.gguf").with("--adapter", &adapter).refuses(&["out.gguf", "magnitudes", "DoRA"]);
    }
    let (golden, place) = (Golden::new("llama_ends"), Place::new());
    let model = golden.folder(&place);
    let convert = place.pocketune("convert --to gguf --output out.gguf").model(&model);
    convert.with("--adapter", golden.adapter()).refuses(&["lm_head is not a linear of a block"]);
}

/// llama.cpp's converter turns rows of queries and keys as it turns those of the weights:
/// `reshape(heads, 2, d / 2, r).swapaxes(1, 2)`.
#[test]
fn rows_of_queries_and_keys_lie_in_llama_cpps_order() {
    let place = Place::new();
    place.pocketune("train --iters 2 --lora-rank 3").into("adapter").succeeds();
    let file = place.path("adapter.gguf");
    let convert = place.pocketune("export --to gguf --adapter adapter").model(demo());
    convert.with("--output", &file).succeeds();
    let (gguf, peft) = (LoraFile::open(&file).unwrap(), adapters::tensors(&place.path("adapter")));
    assert_eq!((gguf.kind, gguf.architecture.as_deref(), gguf.pairs.len()), (Kind::Gguf, Some("llama"), 4 * 7));
    let d = 32;
    for (name, path) in [("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj")]
    {
        let pair = gguf.pairs.iter().find(|pair| pair.module == format!("blk.1.{name}")).unwrap();
        assert_eq!((pair.rank, pair.cols, pair.scale), (3, 192, 2.0));
        let want = &peft[&format!("base_model.model.model.layers.1.{path}.lora_B.weight")];
        let mut turned = Vec::new();
        for head in 0..pair.rows / d {
            for at in 0..d {
                let row = if name == "attn_v" { at } else { at % 2 * (d / 2) + at / 2 };
                turned.extend_from_slice(&want[(head * d + row) * 3..][..3]);
            }
        }
        assert_eq!(gguf.b(pair), turned, "{name}");
        assert_eq!(gguf.a(pair), peft[&format!("base_model.model.model.layers.1.{path}.lora_A.weight")]);
    }
}

#[test]
fn mlx_finds_transposed_factors_the_scale_itself_and_paths_inside_a_layer() {
    let place = Place::new();
    place.pocketune("train --iters 2 --lora-rank 3 --lora-alpha 12 --lora-targets q,down").into("adapter").succeeds();
    place.pocketune("convert --adapter adapter --to mlx --output mlx").succeeds();
    let shown = place.pocketune("inspect mlx").succeeds().stdout;
    assert!(shown.contains("MLX adapter, scale 4") && shown.contains("self_attn.q_proj.lora_a"), "{shown}");
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("mlx/adapter_config.json")).unwrap()).unwrap();
    let lora = &config["lora_parameters"];
    assert_eq!(
        (config["fine_tune_type"].as_str(), lora["rank"].as_u64(), lora["scale"].as_f64()),
        (Some("lora"), Some(3), Some(4.0))
    );
    assert_eq!(lora["keys"], serde_json::json!(["mlp.down_proj", "self_attn.q_proj"]));
    let (mlx, peft) =
        (adapters::read(&place.path("mlx/adapters.safetensors")), adapters::tensors(&place.path("adapter")));
    let (a, want) = (
        &mlx["model.layers.2.mlp.down_proj.lora_a"],
        &peft["base_model.model.model.layers.2.mlp.down_proj.lora_A.weight"],
    );
    for (at, x) in a.iter().enumerate() {
        assert_eq!(*x, want[at % 3 * 512 + at / 3]);
    }
}

#[test]
fn what_can_not_be_converted_is_refused_in_one_line() {
    let place = Place::new();
    place.pocketune("train --iters 1").into("adapter").succeeds();
    let other = Golden::new("qwen2").gguf(&place);
    let convert = |words: &str| place.pocketune("convert --output out").words(words);
    convert("--adapter adapter --to gguf").refuses(&["adapter", "--model"]);
    convert("--adapter adapter --to gguf").model(&other).refuses(&["adapter: module ", "and the model's has"]);
    convert("--adapter missing --to peft").refuses(&["missing: no such file or folder"]);
    convert("--to peft").with("--adapter", demo()).refuses(&["general.type is"]);
    convert("--adapter adapter --to onnx").misused(&["onnx"]);
    place.file("mlx/adapter_config.json", r#"{"fine_tune_type": "full", "lora_parameters": {"scale": 2.0}}"#);
    place.file("mlx/adapters.safetensors", "");
    convert("--adapter mlx --to peft").refuses(&["fine_tune_type is \"full\""]);
    place.file("mlx/adapter_config.json", r#"{"lora_parameters": {"rank": 2}}"#);
    convert("--adapter mlx --to peft").refuses(&["lora_parameters.scale is missing"]);
}
