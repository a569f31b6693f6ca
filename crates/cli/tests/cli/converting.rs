//! Adapters for other runtimes: what goes out and comes back is the same to the bit, rows lie where each runtime looks for them, and what
//! does not fit is refused in one line.

use std::path::Path;

use pocketune_formats::lora::{Kind, LoraFile};
use pocketune_formats::{Gguf, Mapped};

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
}

/// llama.cpp picks rows of the embedding's first factor, mlx-lm too; the head's factors are those of any linear.
#[test]
fn adapters_at_the_ends_lie_where_each_runtime_looks_for_them_and_come_back() {
    let (golden, place) = (Golden::new("llama_ends"), Place::new());
    let (model, adapter) = (golden.folder(&place), golden.adapter());
    let mut want = adapters::tensors(&adapter);
    want.retain(|name, _| name.contains(".lora_"));
    let convert = |words: &str| place.pocketune("convert").words(words).model(&model);
    for (kind, name) in [("gguf", "there.gguf"), ("mlx", "there")] {
        convert(&format!("--to {kind} --output {name}")).with("--adapter", &adapter).succeeds();
        convert(&format!("--to peft --output back --adapter {name}")).succeeds();
        assert!(adapters::tensors(&place.path("back")) == want, "by {kind}");
        std::fs::remove_dir_all(place.path("back")).unwrap();
    }
    let (rank, vocab, hidden) = (4, 128, 64);
    let of = |name: &str| &want[&format!("base_model.model.{name}")];
    let a = of("model.embed_tokens.lora_embedding_A");
    let turned: Vec<f32> = (0..vocab * rank).map(|at| a[at % rank * vocab + at / rank]).collect();
    let file = Mapped::open(&place.path("there.gguf")).unwrap();
    let (_, tensors) = Gguf::read(&file, 0).unwrap();
    let floats = |name: &str, shape: [usize; 2]| -> Vec<f32> {
        let info = tensors.find(name).unwrap();
        assert_eq!(*info.shape, shape, "{name}");
        let bytes = &file.bytes()[info.offset..info.offset + info.bytes];
        bytes.as_chunks().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
    };
    assert_eq!(floats("token_embd.weight.lora_a", [vocab, rank]), turned);
    let b = of("model.embed_tokens.lora_embedding_B");
    assert_eq!(&floats("token_embd.weight.lora_b", [hidden, rank]), b);
    assert_eq!(&floats("output.weight.lora_a", [rank, hidden]), of("lm_head.lora_A.weight"));
    assert_eq!(&floats("output.weight.lora_b", [vocab, rank]), of("lm_head.lora_B.weight"));
    let mlx = adapters::read(&place.path("there/adapters.safetensors"));
    assert_eq!(mlx["model.embed_tokens.lora_a"], turned);
    let keys = &adapters::config(&place.path("there"))["lora_parameters"]["keys"];
    assert_eq!(*keys, serde_json::json!(["lm_head", "model.embed_tokens", "self_attn.q_proj"]));
}

#[test]
fn one_end_of_a_model_whose_ends_are_one_matrix_stays_pefts() {
    let (golden, place) = (Golden::new("gemma3_text_ends"), Place::new());
    let model = golden.folder(&place);
    let convert =
        |words: &str| place.pocketune("convert --output out").words(words).with("--adapter", golden.adapter());
    convert("--to gguf").model(&model).refuses(&["is an end of the model", "one matrix"]);
    convert("--to mlx").model(&model).refuses(&["is an end of the model", "one matrix"]);
    convert("--to mlx").refuses(&["is an end of the model", "--model"]);
    convert("--to peft").succeeds();
    let merge = place.pocketune("merge --output merged --no-loss").model(&model);
    merge.with("--adapter", golden.adapter()).refuses(&["is an end of the model", "one matrix"]);
}

#[test]
fn an_adapter_of_any_kind_is_used_as_it_is() {
    for (name, kinds) in [
        ("llama", &["gguf", "mlx"][..]),
        ("llama_ends", &["gguf", "mlx"]),
        ("qwen2", &["gguf"]),
        ("llama_dora", &["mlx"]),
    ] {
        let (golden, place) = (Golden::new(name), Place::new());
        let folder = golden.folder(&place);
        place.pocketune("quantize --type f32 --output model.gguf").model(&folder).succeeds();
        let data = place.texts("data.jsonl", &golden.records());
        for model in [folder.clone(), place.path("model.gguf")] {
            let said = |adapter: &Path| {
                let eval = place.pocketune("eval --precision f32 --log-format jsonl").model(&model).data(&data);
                let generate = place.pocketune("generate --precision f32 -n 8 --prompt AB").model(&model);
                [eval, generate].map(|run| run.with("--adapter", adapter).succeeds().stdout)
            };
            let want = said(&golden.adapter());
            for kind in kinds {
                let there = place.path(&format!("there.{kind}"));
                let convert = place.pocketune("convert --to").word(kind).model(&folder);
                convert.with("--adapter", golden.adapter()).with("--output", &there).succeeds();
                assert_eq!(said(&there), want, "{name} by {kind} on {}", model.display());
            }
        }
    }
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_whatever_its_kind() {
    let (golden, place) = (Golden::new("llama"), Place::new());
    let (own, other) = (golden.folder(&place), Golden::new("qwen2").gguf(&place));
    let data = place.texts("data.jsonl", &["AB"]);
    for (kind, words) in [("gguf", ["architecture \"llama\"", "qwen2"]), ("mlx", ["has shape", "the model needs"])] {
        let convert = place.pocketune("convert --to").word(kind).model(&own).with("--adapter", golden.adapter());
        convert.with("--output", kind).succeeds();
        place.pocketune("eval --adapter").word(kind).model(&other).data(&data).refuses(&words);
    }
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
    place.pocketune("train --iters 1 --method vera --lora-rank 4").into("vera").succeeds();
    convert("--adapter vera --to mlx").refuses(&["how many inputs", "--model"]);
    convert("--adapter missing --to peft").refuses(&["missing: no such file or folder"]);
    convert("--to peft").with("--adapter", demo()).refuses(&["general.type is"]);
    convert("--adapter adapter --to onnx").misused(&["onnx"]);
    place.file("mlx/adapter_config.json", r#"{"fine_tune_type": "full", "lora_parameters": {"scale": 2.0}}"#);
    place.file("mlx/adapters.safetensors", "");
    convert("--adapter mlx --to peft").refuses(&["fine_tune_type is \"full\""]);
    place.file("mlx/adapter_config.json", r#"{"lora_parameters": {"rank": 2}}"#);
    convert("--adapter mlx --to peft").refuses(&["lora_parameters.scale is missing"]);
}
