//! Folders whose matrices bitsandbytes or MLX packed: every command does with them what it does with the numbers that they stand for, to the bit, and
//! what doesn't fit together is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::bf16;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::adapters;
use crate::models::Golden;
use crate::place::Place;

pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// bitsandbytes' sixteen numbers, nearly.
const TABLE: [f32; 16] =
    [-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0];

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The f32 tensors of a golden folder; `config.json` gets `more`.
pub fn golden(place: &Place, name: &'static str, folder: &str, more: Value) -> (PathBuf, Tensors) {
    let from = Golden::new(name).folder(place);
    let mut tensors = Tensors::new();
    for entry in std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap()) {
        let file = std::fs::read(entry.path()).unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".safetensors") {
            for (name, view) in SafeTensors::deserialize(&file).unwrap().iter() {
                tensors.insert(name.into(), (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
            }
        } else if name == "config.json" {
            let mut config: Value = serde_json::from_slice(&file).unwrap();
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            place.file(&format!("{folder}/config.json"), config.to_string());
        } else if name == "tokenizer.json" {
            place.file(&format!("{folder}/tokenizer.json"), file);
        }
    }
    (place.path(folder), tensors)
}

pub fn write(folder: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap()));
    std::fs::write(folder.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
}

fn is_linear(name: &str) -> bool {
    name.ends_with("_proj.weight")
}

/// Packs a matrix as bitsandbytes does, and gives the numbers that it stands for.
fn nf4(name: &str, shape: &[usize], x: &[f32], nested: bool, out: &mut Tensors) -> Vec<f32> {
    let mut state = json!({ "quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": shape });
    let mut scales: Vec<f32> = x.chunks(64).map(|block| block.iter().fold(0.0, |most, x| x.abs().max(most))).collect();
    let beside = |part: &str| format!("{name}.{part}");
    if nested {
        let map: Vec<f32> = (0..256).map(|i| (i as f32 - 127.5) / 127.5).collect();
        let (offset, outer) = (0.125_f32, 0.5_f32);
        let integers: Vec<u8> = scales.iter().map(|s| ((s - offset) / outer * 127.5 + 127.5).round() as u8).collect();
        scales = integers.iter().map(|i| map[usize::from(*i)] * outer + offset).collect();
        state["nested_blocksize"] = 256.into();
        state["nested_offset"] = offset.into();
        out.insert(beside("absmax"), (Dtype::U8, vec![integers.len()], integers));
        let count = scales.len().div_ceil(256);
        out.insert(beside("nested_absmax"), (Dtype::F32, vec![count], bytes(&vec![outer; count])));
        out.insert(beside("nested_quant_map"), (Dtype::F32, vec![256], bytes(&map)));
    } else {
        out.insert(beside("absmax"), (Dtype::F32, vec![scales.len()], bytes(&scales)));
    }
    let nearest = |x: f32| (0..16).min_by(|a, b| (TABLE[*a] - x).abs().total_cmp(&(TABLE[*b] - x).abs())).unwrap();
    let q: Vec<usize> = x.iter().enumerate().map(|(at, x)| nearest(x / scales[at / 64])).collect();
    let packed: Vec<u8> = q.chunks(2).map(|two| (two[0] << 4 | two[1]) as u8).collect();
    out.insert(name.into(), (Dtype::U8, vec![packed.len(), 1], packed));
    out.insert(beside("quant_map"), (Dtype::F32, vec![16], bytes(&TABLE)));
    let state = state.to_string().into_bytes();
    out.insert(beside("quant_state.bitsandbytes__nf4"), (Dtype::U8, vec![state.len()], state));
    q.iter().enumerate().map(|(at, q)| bf16::from_f32(TABLE[*q] * scales[at / 64]).to_f32()).collect()
}

/// Packs a matrix as MLX does, and gives the numbers that it stands for.
fn mlx(name: &str, shape: &[usize], x: &[f32], (bits, group): (usize, usize), out: &mut Tensors) -> Vec<f32> {
    let most = (1 << bits) - 1;
    let stem = name.strip_suffix(".weight").unwrap();
    let (mut scales, mut biases, mut words, mut y) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for group in x.chunks(group) {
        let (low, high) = group.iter().fold((f32::MAX, f32::MIN), |(low, high), x| (low.min(*x), high.max(*x)));
        let scale = bf16::from_f32((high - low) / most as f32);
        let bias = bf16::from_f32(low);
        let q: Vec<u32> = group
            .iter()
            .map(|x| ((x - bias.to_f32()) / scale.to_f32()).round().clamp(0.0, most as f32) as u32)
            .collect();
        y.extend(q.iter().map(|q| scale.to_f32() * *q as f32 + bias.to_f32()));
        let word = |some: &[u32]| some.iter().enumerate().fold(0_u32, |word, (at, q)| word | q << (at * bits));
        words.extend(q.chunks(32 / bits).flat_map(|some| word(some).to_le_bytes()));
        scales.extend(scale.to_le_bytes());
        biases.extend(bias.to_le_bytes());
    }
    let groups = vec![shape[0], shape[1] / group];
    out.insert(name.into(), (Dtype::U32, vec![shape[0], shape[1] * bits / 32], words));
    out.insert(format!("{stem}.scales"), (Dtype::BF16, groups.clone(), scales));
    out.insert(format!("{stem}.biases"), (Dtype::BF16, groups, biases));
    y
}

/// A packed folder, and a plain one with the numbers that the first stands for.
fn folders(
    place: &Place,
    name: &'static str,
    more: Value,
    packs: impl Fn(&str) -> bool,
    pack: impl Fn(&str, &[usize], &[f32], &mut Tensors) -> Vec<f32>,
) -> [PathBuf; 2] {
    let (packed, tensors) = golden(place, name, "packed", more);
    let (plain, _) = golden(place, name, "plain", json!({}));
    let (mut of_packed, mut of_plain) = (Tensors::new(), Tensors::new());
    for (name, (dtype, shape, data)) in tensors {
        if !packs(&name) {
            of_packed.insert(name.clone(), (dtype, shape.clone(), data.clone()));
            of_plain.insert(name, (dtype, shape, data));
            continue;
        }
        let x: Vec<f32> = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let y = pack(&name, &shape, &x, &mut of_packed);
        of_plain.insert(name, (Dtype::F32, shape, bytes(&y)));
    }
    write(&packed, &of_packed);
    write(&plain, &of_plain);
    [packed, plain]
}

/// A packed folder and its plain one: by bitsandbytes, or by MLX in so many bits and groups.
fn by_bitsandbytes(place: &Place, nested: bool) -> [PathBuf; 2] {
    folders(place, "llama", json!({}), is_linear, |name, shape, x, out| nf4(name, shape, x, nested, out))
}

fn by_mlx(place: &Place, name: &'static str, bits: usize, group: usize) -> [PathBuf; 2] {
    let more = json!({ "quantization": { "group_size": group, "bits": bits } });
    let packs = |name: &str| is_linear(name) || name.contains("embed_tokens");
    folders(place, name, more, packs, |name, shape, x, out| mlx(name, shape, x, (bits, group), out))
}

/// What a command makes of both is the same file, but for its name.
fn same(place: &Place, words: &str, [packed, plain]: &[PathBuf; 2]) {
    let [packed, plain] = [packed, plain].map(|folder| {
        place.pocketune(words).words("--output out.gguf").model(folder).succeeds();
        let files = pocketune_formats::ModelFiles::open(&place.path("out.gguf")).unwrap();
        let all = files.tensors().map(|info| {
            let tensor = files.tensor(&info.name).unwrap().unwrap();
            (info.name.to_string(), tensor.shape.to_vec(), tensor.data.to_vec())
        });
        all.collect::<Vec<_>>()
    });
    assert_eq!(packed.len(), plain.len());
    for (packed, plain) in packed.iter().zip(&plain) {
        assert!(packed == plain, "{} differs", packed.0);
    }
}

#[test]
fn four_bits_of_bitsandbytes_are_read_exactly() {
    for nested in [false, true] {
        let place = Place::new();
        same(&place, "quantize --type f32", &by_bitsandbytes(&place, nested));
    }
}

#[test]
fn groups_of_mlx_are_read_exactly() {
    for bits in [2, 4, 8] {
        let place = Place::new();
        same(&place, "quantize --type f32", &by_mlx(&place, "qwen2", bits, 16));
    }
}

/// Trains on the plain one, and on the packed one in every way that `ways` names.
fn trains_alike(place: &Place, both: &[PathBuf; 2], ways: &[&str]) {
    let data = place.texts("data.jsonl", &["ABRACADABRA", "SIMSALABIM", "HOCUS POCUS", "ABC"]);
    for precision in ["f32", "bf16"] {
        let trained = |model: &PathBuf, way: &str| {
            let run = place.pocketune("train --iters 3 --batch-size 2 --learning-rate 1e-2").words(way);
            run.with("--precision", precision).model(model).data(&data).into("adapter").succeeds();
            adapters::bytes(&place.path("adapter"))
        };
        let wanted = trained(&both[1], "");
        for way in ways {
            assert!(trained(&both[0], way) == wanted, "{way} in {precision} differs from the plain folder");
        }
    }
}

const WAYS: [&str; 3] = ["--threads 1", "--threads 2 --grad-checkpoint block", "--grad-checkpoint selective"];

#[test]
fn training_on_a_packed_folder_gives_the_adapter_of_training_on_its_floats() {
    for nested in [false, true] {
        let place = Place::new();
        trains_alike(&place, &by_bitsandbytes(&place, nested), &WAYS);
    }
    for (name, bits, group) in [("llama", 4, 32), ("qwen2", 4, 16), ("llama", 8, 32)] {
        let place = Place::new();
        trains_alike(&place, &by_mlx(&place, name, bits, group), &WAYS[..1]);
    }
}

#[test]
fn adapters_of_a_packed_folder_with_dora_and_at_its_ends_are_those_of_its_floats() {
    let place = Place::new();
    let both = by_mlx(&place, "llama", 4, 32);
    for way in ["--fine-tune-type dora", "--lora-targets q_proj,embed_tokens,lm_head"] {
        let data = place.texts("data.jsonl", &["ABRACADABRA", "SIMSALABIM"]);
        let of = |model: &PathBuf| {
            let run = place.pocketune("train --iters 2 --learning-rate 1e-2").words(way);
            run.model(model).data(&data).into("adapter").succeeds();
            adapters::bytes(&place.path("adapter"))
        };
        assert!(of(&both[0]) == of(&both[1]), "{way}");
    }
}

#[test]
fn a_packed_folder_is_measured_talks_and_is_merged_as_its_floats_are() {
    for mlx in [false, true] {
        let place = Place::new();
        let both = if mlx { by_mlx(&place, "llama", 4, 32) } else { by_bitsandbytes(&place, true) };
        let data = place.texts("data.jsonl", &["ABRACADABRA", "SIMSALABIM"]);
        place.pocketune("train --iters 3 --learning-rate 1e-2").model(&both[1]).data(&data).into("adapter").succeeds();
        let said = |words: &str| {
            let of = |model: &PathBuf| place.pocketune(words).words("--adapter adapter").model(model).succeeds().stdout;
            both.each_ref().map(of)
        };
        for words in ["eval --log-format jsonl --data data.jsonl", "generate --prompt AB -n 12"] {
            let [packed, plain] = said(words);
            assert_eq!(packed, plain, "{words}");
        }
        same(&place, "merge --type q8_0 --adapter adapter --no-loss", &both);
        let merge = place.pocketune("merge --adapter adapter --output merged").model(&both[0]);
        merge.refuses(&["packed", "let the output end in .gguf"]);
        place.pocketune("plan --memory-budget 64MiB").model(&both[0]).succeeds();
    }
}

#[test]
fn packed_matrices_that_do_not_fit_together_are_refused() {
    let place = Place::new();
    let more = json!({ "quantization": { "group_size": 16, "bits": 4 } });
    let pack = |name: &str, shape: &[usize], x: &[f32], out: &mut Tensors| mlx(name, shape, x, (4, 16), out);
    let [packed, _] = folders(&place, "qwen2", more, is_linear, pack);
    let file = std::fs::read(packed.join("model.safetensors")).unwrap();
    let all: Tensors = SafeTensors::deserialize(&file)
        .unwrap()
        .iter()
        .map(|(name, view)| (name.to_string(), (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    let stem = "model.layers.0.mlp.up_proj";
    let refuses = |tensors: &Tensors, words: &[&str]| {
        write(&packed, tensors);
        place.pocketune("quantize --type q8_0 --output out.gguf").model(&packed).refuses(words);
    };
    let mut without = all.clone();
    without.remove(&format!("{stem}.biases"));
    refuses(&without, &[stem, ".biases is missing"]);
    let mut other = all.clone();
    let scales = other.get_mut(&format!("{stem}.scales")).unwrap();
    scales.1 = vec![1, scales.1.iter().product()];
    refuses(&other, &[stem, ".scales does not have"]);
    let mut other = all;
    let weight = other.get_mut(&format!("{stem}.weight")).unwrap();
    weight.0 = Dtype::U8;
    weight.1 = vec![weight.2.len(), 1];
    refuses(&other, &[stem, "no quant_state of bitsandbytes"]);
}
