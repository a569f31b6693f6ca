//! A folder with matrices that MLX or bitsandbytes packed: `config.json`, a line of three dashes, `model.safetensors`; every packed matrix is found
//! and its first and last rows are read.

use pocketune_formats::{ModelFiles, PackedMatrix};
use pocketune_kernels::Isa;
use pocketune_kernels::matmul::{Weight, counted_as};

use super::{BETWEEN, Target, accepted, folder_of_two};
use crate::seeds::Seed;

pub const TARGET: Target = Target {
    name: "packed",
    run,
    seeds,
    words: &[
        b"null",
        b"-1",
        b"0",
        b"1e999",
        b"18446744073709551615",
        b"\"quantization\":",
        b"\"group_size\":",
        b"\"bits\":",
        b"\"blocksize\":",
        b"\"nested_blocksize\":",
        b"\"nested_offset\":",
        b"\"shape\":[",
        b"\"dtype\":\"U8\"",
        b"\"dtype\":\"U32\"",
        b"\"dtype\":\"F16\"",
        b".scales",
        b".biases",
        b".absmax",
        b".quant_state.bitsandbytes__nf4",
    ],
};

fn run(bytes: &[u8]) -> bool {
    let files = folder_of_two(["config.json", "model.safetensors"], bytes);
    let Some(model) = accepted(ModelFiles::from_folder(files)) else { return false };
    let names: Vec<String> = model.tensors().map(|info| info.name.to_string()).collect();
    let mut found = false;
    for name in &names {
        let Some(matrix) = accepted(PackedMatrix::find(&model, name)).flatten() else { continue };
        let PackedMatrix { rows, cols, .. } = matrix;
        let ty = counted_as(rows, cols, matrix.bytes());
        let weight = Weight::packed(ty, rows, cols, matrix.packed.map(|part| model.part(part)));
        let mut row = vec![0.0; cols];
        [0, rows - 1].into_iter().for_each(|at| weight.read(Isa::Scalar, at, 0..cols, &mut row));
        found = true;
    }
    found
}

/// A safetensors file of tensors with their types, shapes and bytes.
fn tensors(all: &[(&str, &str, &[usize], &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    let entries: Vec<String> = all
        .iter()
        .map(|(name, ty, shape, bytes)| {
            let start = data.len();
            data.extend_from_slice(bytes);
            format!(r#""{name}":{{"dtype":"{ty}","shape":{shape:?},"data_offsets":[{start},{}]}}"#, data.len())
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

fn seeds() -> Vec<Seed> {
    let seed = |config: &str, all: &[(&str, &str, &[usize], &[u8])]| {
        Seed::common([config.as_bytes(), BETWEEN, &tensors(all)].concat())
    };
    let state = br#"{"quant_type":"nf4","blocksize":32,"dtype":"bfloat16","shape":[2,32]}"#;
    let nested = br#"{"blocksize":32,"dtype":"float16","shape":[2,32],"nested_blocksize":256,"nested_dtype":"float32","nested_offset":0.5}"#;
    let (w, ws) = ("a.weight", "a.weight.quant_state.bitsandbytes__nf4");
    vec![
        seed(
            r#"{"model_type":"llama","quantization":{"group_size":32,"bits":4}}"#,
            &[
                ("a.weight", "U32", &[2, 8], &[0x5a; 64]),
                ("a.scales", "F16", &[2, 2], &[1; 8]),
                ("a.biases", "F16", &[2, 2], &[2; 8]),
            ],
        ),
        seed(
            "{}",
            &[
                (w, "U8", &[32, 1], &[7; 32]),
                ("a.weight.absmax", "F32", &[2], &[1; 8]),
                ("a.weight.quant_map", "F32", &[16], &[3; 64]),
                (ws, "U8", &[state.len()], state),
            ],
        ),
        seed(
            "{}",
            &[
                (w, "U8", &[32, 1], &[7; 32]),
                ("a.weight.absmax", "U8", &[2], &[1; 2]),
                ("a.weight.quant_map", "F32", &[16], &[3; 64]),
                ("a.weight.nested_absmax", "F32", &[1], &[3; 4]),
                ("a.weight.nested_quant_map", "F32", &[256], &[3; 1024]),
                (ws, "U8", &[nested.len()], nested),
            ],
        ),
    ]
}
