//! `pocketune merge`: the merged model is `W + scale B A`, computes what the model does with the adapter beside it, keeps the bytes of everything
//! else, says what rounding ate, and leaves nothing behind where it is refused or stopped.

use std::path::{Path, PathBuf};

use pocketune_formats::ModelFiles;
use serde_json::{Value, json};

use crate::adapters;
use crate::models::{FOLDERS, Golden, demo, demo_data};
use crate::packed;
use crate::place::Place;
#[cfg(target_os = "linux")]
use crate::quantizing::keeps_its_budget;
use crate::quantizing::{killed_in_the_middle, large};

fn loss(place: &Place, model: &Path, adapter: Option<&Path>, data: &Path) -> f64 {
    let mut run = place.pocketune("eval --precision f32 --log-format jsonl").model(model).data(data);
    if let Some(adapter) = adapter {
        run = run.with("--adapter", adapter);
    }
    serde_json::from_str::<Value>(&run.succeeds().stdout).unwrap()["loss"].as_f64().unwrap()
}

fn floats(model: &Path, tensor: &str) -> Vec<f32> {
    let files = ModelFiles::open(model).unwrap();
    let data = files.tensor(tensor).unwrap().unwrap().data;
    data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn furthest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_stays_within_its_budget() {
    let place = Place::new();
    place.pocketune("train --iters 1").into("adapter").succeeds();
    for words in ["", "--type q8_0"] {
        let merge = || place.pocketune("merge --no-loss --adapter adapter --output out.gguf").words(words);
        keeps_its_budget(|| merge().model(demo()));
    }
}

#[test]
fn a_merged_folder_computes_what_the_folder_does_with_its_adapter() {
    for name in FOLDERS.into_iter().chain(["qwen2_dora", "llama_dora", "llama_ends", "llama_vera"]) {
        let place = Place::new();
        let golden = Golden::new(name);
        let (folder, adapter) = (golden.folder(&place), golden.adapter());
        let data = place.texts("data.jsonl", &golden.records());
        let merge = place.pocketune("merge --json --precision f32 --output merged").model(&folder).data(&data);
        let said = merge.with("--adapter", &adapter).succeeds().stdout;
        let merged = place.path("merged");
        let [base, want, got] = [
            loss(&place, &folder, None, &data),
            loss(&place, &folder, Some(&adapter), &data),
            loss(&place, &merged, None, &data),
        ];
        assert!((got - want).abs() < 1e-5 && (base - want).abs() > 1e-3, "{name}: {got}, not {want}; without {base}");
        let report: Value = serde_json::from_str(&said).unwrap();
        for (key, loss) in [("base", base), ("adapter", want), ("merged", got)] {
            assert!((report["loss"][key].as_f64().unwrap() - loss).abs() < 1e-5, "{name}: {report}");
        }
        assert!((report["kept"].as_f64().unwrap() - 1.0).abs() < 1e-3, "{name}: {report}");
        let generate = |model: &Path, words: &str| {
            place.pocketune("generate --precision f32 -n 12 --prompt AB").words(words).model(model)
        };
        let beside = generate(&folder, "").with("--adapter", &adapter).succeeds().stdout;
        assert_eq!(generate(&merged, "").succeeds().stdout, beside, "{name}");
    }
}

#[test]
fn a_merged_file_computes_the_same_whatever_the_formats_of_model_and_adapter() {
    for name in ["llama", "qwen2", "gemma3_text", "llama_vera"] {
        let place = Place::new();
        let golden = Golden::new(name);
        let (folder, file) = (golden.folder(&place), golden.gguf(&place));
        let data = place.texts("data.jsonl", &golden.records());
        let want = loss(&place, &folder, Some(&golden.adapter()), &data);
        let mut merged = None;
        for to in ["peft", "gguf", "mlx"] {
            let adapter = place.path(to);
            place
                .pocketune("convert --to")
                .word(to)
                .with("--adapter", golden.adapter())
                .with("--output", &adapter)
                .model(&folder)
                .succeeds();
            for model in [&folder, &file] {
                let out = place.path("merged.gguf");
                place
                    .pocketune("merge --no-loss")
                    .with("--adapter", &adapter)
                    .with("--output", &out)
                    .model(model)
                    .succeeds();
                let got = loss(&place, &out, None, &data);
                assert!((got - want).abs() < 1e-5, "{name}, {to} into {}: {got}, not {want}", model.display());
                let q = floats(&out, "blk.0.attn_q.weight");
                assert!(furthest(merged.get_or_insert(q.clone()), &q) < 1e-6, "{name}, {to}");
            }
        }
    }
}

#[test]
fn magnitudes_are_merged_into_every_form_alone_and_whole() {
    let place = Place::new();
    let golden = Golden::new("llama_dora");
    let (folder, file, adapter) = (golden.folder(&place), golden.gguf(&place), golden.adapter());
    let data = place.texts("data.jsonl", &golden.records());
    let want = loss(&place, &folder, Some(&adapter), &data);
    let merge =
        |words: &str| place.pocketune("merge --no-loss --output merged.gguf").with("--adapter", &adapter).words(words);
    for model in [&folder, &file] {
        merge("").model(model).succeeds();
        let got = loss(&place, &place.path("merged.gguf"), None, &data);
        assert!((got - want).abs() < 1e-5, "{}: {got}, not {want}", model.display());
        std::fs::remove_file(place.path("merged.gguf")).unwrap();
    }
    merge("--scale 0.5").model(&file).refuses(&["--scale 0.5", "DoRA"]);
    let other = Golden::new("llama").adapter();
    merge("").with("--adapter", &other).model(&file).refuses(&["llama_dora", "is merged alone"]);
}

#[test]
fn the_merged_weights_are_the_sum_of_the_weights_and_every_adapters_product() {
    let place = Place::new();
    let golden = Golden::new("qwen3");
    let (folder, adapter) = (golden.folder(&place), golden.adapter());
    let factors = adapters::tensors(&adapter);
    let config = adapters::config(&adapter);
    let (rank, alpha) = (config["r"].as_u64().unwrap() as usize, config["lora_alpha"].as_f64().unwrap());
    let path = "model.layers.1.mlp.down_proj";
    let [a, b] = ["A", "B"].map(|factor| &factors[&format!("base_model.model.{path}.lora_{factor}.weight")]);
    let base = floats(&folder, &format!("{path}.weight"));
    let (rows, cols) = (b.len() / rank, a.len() / rank);
    for (words, factor) in
        [("", 1.0), ("--scale 0.25", 0.25), ("--scale -1", -1.0), ("--adapter ADAPTER --scale 2 --scale -0.5", 1.5)]
    {
        let out = place.path(&format!("merged{factor}"));
        let words = words.replace("ADAPTER", adapter.to_str().unwrap());
        let merge = place.pocketune("merge --no-loss").with("--adapter", &adapter).words(&words);
        merge.with("--output", &out).model(&folder).succeeds();
        let mut want = base.clone();
        for row in 0..rows {
            for col in 0..cols {
                let dot: f64 = (0..rank).map(|k| f64::from(b[row * rank + k]) * f64::from(a[k * cols + col])).sum();
                want[row * cols + col] += (factor * alpha / rank as f64 * dot) as f32;
            }
        }
        let got = floats(&out, &format!("{path}.weight"));
        assert!(furthest(&got, &want) < 1e-6 && furthest(&got, &base) > 1e-3, "{factor}");
    }
}

#[test]
fn a_scale_of_zero_gives_the_bytes_of_the_base_and_its_files_go_along() {
    let place = Place::new();
    let golden = Golden::new("llama");
    let folder = golden.folder(&place);
    place.file("llama/tokenizer_config.json", "{}");
    let merge = |words: &str| place.pocketune("merge --scale 0").words(words).with("--adapter", golden.adapter());
    merge("--output merged").model(&folder).succeeds();
    let files = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<_> = files.filter(|name| name != "config.v4.json").collect();
    assert!(names.len() > 4, "{names:?}");
    for name in names {
        let [was, is] = [&folder, &place.path("merged")].map(|folder| std::fs::read(folder.join(&name)).unwrap());
        assert!(was == is, "{name:?} differs");
    }
    let file = golden.gguf(&place);
    merge("--output merged.gguf").model(&file).succeeds();
    assert!(std::fs::read(&file).unwrap() == std::fs::read(place.path("merged.gguf")).unwrap());
}

#[test]
fn what_rounding_eats_is_said_and_the_recommended_type_keeps_it() {
    let place = Place::new();
    // Two small steps: a change far below the steps of four bits.
    place.pocketune("train --iters 2 --learning-rate 1e-4 --batch-size 1").into("adapter").succeeds();
    let merge = |words: &str| -> Value {
        let merge = place.pocketune("merge --json --precision f32 --adapter adapter").words(words);
        serde_json::from_str(&merge.model(demo()).data(demo_data()).succeeds().stdout).unwrap()
    };
    let eaten = merge("--output same.gguf");
    let kept = eaten["kept"].as_f64().unwrap();
    assert!(kept < 0.9, "{eaten}");
    assert!(eaten["worst"]["kept"].as_f64().unwrap() <= kept && eaten["worst"]["module"].is_string(), "{eaten}");
    let larger = merge(&format!("--output larger.gguf --type {}", eaten["recommended"]["type"].as_str().unwrap()));
    assert!((larger["kept"].as_f64().unwrap() - 1.0).abs() < 0.15, "{larger}");
    let said = place.pocketune("merge --adapter adapter --output said.gguf").model(demo()).succeeds().stderr;
    for words in
        ["Of the change ", "least in blk.", "Loss on built-in sentences: ", "Rounding spoils the change: --type "]
    {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

#[test]
fn what_can_not_be_merged_is_refused_in_one_line() {
    let place = Place::new();
    let golden = Golden::new("llama");
    let (folder, file) = (golden.folder(&place), golden.gguf(&place));
    let other = Golden::new("opt").adapter();
    let merge = |words: &str| place.pocketune("merge").words(words);
    let ours = |words: &str| merge(words).with("--adapter", golden.adapter());
    merge("--output out").with("--adapter", &other).model(&folder).refuses(&["module "]);
    merge("--adapter missing --output out").model(&folder).refuses(&["missing: no such file or folder"]);
    merge("--output out").model(&folder).misused(&["--adapter"]);
    ours("--type q9 --output out.gguf").model(&file).misused(&["q9"]);
    ours("--type q8_0 --output out").model(&folder).refuses(&["--type q8_0", ".gguf"]);
    ours("--output out").model(&file).refuses(&["--output out", ".gguf"]);
    ours("--output llama").model(&folder).refuses(&["--output llama", "the model itself"]);
    ours("--output tmp/none/out.gguf").model(&folder).refuses(&["none"]);
    ours("--scale 1 --scale 2 --output out").model(&folder).refuses(&["--scale: given 2 times for 1 adapter"]);
    ours("--scale nan --output out").model(&folder).refuses(&["--scale NaN"]);
    ours("--output out --data missing.jsonl").model(&folder).refuses(&["missing.jsonl"]);
    place.file("taken/notes.txt", "mine");
    ours("--output taken").model(&folder).refuses(&["--output taken", "something is there"]);
}

#[test]
fn a_tensor_of_another_shape_than_the_configuration_says_is_refused() {
    let place = Place::new();
    let (folder, mut tensors) = packed::golden(&place, "qwen2", "odd", json!({}));
    let name = "model.layers.0.mlp.up_proj.weight";
    let shape = &mut tensors.get_mut(name).unwrap().1;
    *shape = vec![shape[0] / 2, shape[1] * 2];
    packed::write(&folder, &tensors);
    for out in ["out", "out.gguf"] {
        let merge = place.pocketune("merge --no-loss").with("--output", out);
        merge.with("--adapter", Golden::new("qwen2").adapter()).model(&folder).refuses(&[name, "has shape"]);
    }
}

/// An adapter of rank 1 for the large model.
fn adapter_of_large(place: &Place) -> PathBuf {
    let path = "base_model.model.model.layers.0.mlp.up_proj";
    let ones = [1.0_f32; 1024].map(f32::to_le_bytes).concat();
    let view = |shape: Vec<usize>| {
        let bytes = &ones[..4 * shape.iter().product::<usize>()];
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape, bytes).unwrap()
    };
    let tensors = [("lora_A", vec![1, 1024]), ("lora_B", vec![256, 1])];
    let tensors = tensors.map(|(factor, shape)| (format!("{path}.{factor}.weight"), view(shape)));
    place.file("adapter/adapter_model.safetensors", safetensors::serialize(tensors, None).unwrap());
    let config = json!({ "peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["up_proj"], "task_type": "CAUSAL_LM" });
    place.file("adapter/adapter_config.json", config.to_string());
    place.path("adapter")
}

#[test]
fn a_killed_merge_leaves_nothing_under_the_final_name_and_a_full_disk_nothing_at_all() {
    let place = Place::new();
    let (model, adapter) = (large(&place), adapter_of_large(&place));
    let merge = place.pocketune("merge --type q6_k --output out.gguf").with("--adapter", adapter).model(&model);
    killed_in_the_middle(&place, merge);
    let folder = Golden::new("llama").folder(&place);
    let merge = || place.pocketune("merge --no-loss --output merged").with("--adapter", Golden::new("llama").adapter());
    let before = place.listing();
    merge().model(&folder).through("ulimit -f 20; exec \"$@\"").fails(&["merged"]);
    assert_eq!(place.listing(), before);
    merge().model(&folder).succeeds();
}

/// A folder of 268 MB, almost all of it a hole.
fn large_folder(place: &Place) -> PathBuf {
    let config = json!({
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 256, "num_attention_heads": 16, "num_hidden_layers": 1,
        "vocab_size": 65536, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "tie_word_embeddings": true,
    });
    place.file("large/config.json", config.to_string());
    let in_block = |name: &str| format!("model.layers.0.{name}.weight");
    let shapes = [
        ("model.embed_tokens.weight".to_string(), vec![65536, 1024]),
        ("model.norm.weight".to_string(), vec![1024]),
        (in_block("input_layernorm"), vec![1024]),
        (in_block("post_attention_layernorm"), vec![1024]),
        (in_block("self_attn.q_proj"), vec![1024, 1024]),
        (in_block("self_attn.k_proj"), vec![1024, 1024]),
        (in_block("self_attn.v_proj"), vec![1024, 1024]),
        (in_block("self_attn.o_proj"), vec![1024, 1024]),
        (in_block("mlp.gate_proj"), vec![256, 1024]),
        (in_block("mlp.up_proj"), vec![256, 1024]),
        (in_block("mlp.down_proj"), vec![1024, 256]),
    ];
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in shapes {
        let start = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name, json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, end] }));
    }
    let header = Value::from(header).to_string();
    let beginning = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let path = place.file("large/model.safetensors", &beginning);
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len((beginning.len() + end) as u64).unwrap();
    place.path("large")
}

#[test]
fn a_merge_into_a_folder_that_is_killed_leaves_no_model_there_and_the_next_one_is_whole() {
    let place = Place::new();
    let (model, adapter) = (large_folder(&place), adapter_of_large(&place));
    let merge = || place.pocketune("merge --no-loss --output merged").with("--adapter", &adapter).model(&model);
    let merged = place.path("merged");
    let mut child = merge().start();
    let begun = |(path, bytes): &(PathBuf, u64)| path.starts_with(&merged) && *bytes > 1 << 20;
    while !place.listing().iter().any(begun) {
        assert!(child.try_wait().unwrap().is_none(), "it was done before it could be killed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for name in ["model.safetensors", "config.json"] {
        assert!(!merged.join(name).exists(), "{name} is under its final name");
    }
    merge().succeeds();
    let row = &floats(&merged, "model.layers.0.mlp.up_proj.weight")[..1024];
    assert!(row.iter().all(|&x| x == 1.0), "{:?}", &row[..4]);
    assert_eq!(std::fs::read(merged.join("config.json")).unwrap(), std::fs::read(model.join("config.json")).unwrap());
}
