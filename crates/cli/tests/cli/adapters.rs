//! Reads the adapters that runs wrote, with code that is not the program's own.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::reports::losses;

pub type Tensors = BTreeMap<String, Vec<f32>>;

pub const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// The bytes of the tensors' file, to compare two runs with.
pub fn bytes(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("adapter_model.safetensors")).unwrap()
}

pub fn config(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("adapter_config.json")).unwrap()).unwrap()
}

/// The tensors of an adapter.
pub fn tensors(folder: &Path) -> Tensors {
    read(&folder.join("adapter_model.safetensors"))
}

/// The f32 tensors of a safetensors file.
pub fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let f32s = file.iter().filter(|(_, tensor)| tensor.dtype() == safetensors::Dtype::F32);
    f32s.map(|(name, tensor)| {
        let words = tensor.data().chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap()));
        (name.to_string(), words.collect())
    })
    .collect()
}

/// The tensors whose names begin so, under the rest of them.
pub fn under(all: &Tensors, prefix: &str) -> Tensors {
    let rest = |(name, values): (&String, &Vec<f32>)| Some((name.strip_prefix(prefix)?.to_string(), values.clone()));
    all.iter().filter_map(rest).collect()
}

/// Whether ten updates by a method reported the losses and ended in the adapter that are expected of it, to 1e-4.
pub fn agrees(method: &str, expected: &Tensors, stdout: &str, adapter: &Path) {
    let losses = losses(stdout);
    assert_eq!(losses.len(), 10, "{method}");
    for (got, want) in losses.iter().zip(&expected[&format!("{method}.losses")]) {
        assert!((got - f64::from(*want)).abs() < 1e-4 * got, "{method}: {got} instead of {want}");
    }
    let off = distance(&tensors(adapter), &under(expected, &format!("{method}.final.")));
    assert!(off < 1e-4, "{method}: the adapter is off by {off:e}");
}

/// Largest difference of any tensor, relative to that tensor's largest expected element.
pub fn distance(got: &Tensors, want: &Tensors) -> f32 {
    assert_eq!(got.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>());
    let of = |(got, want): (&Vec<f32>, &Vec<f32>)| {
        assert_eq!(got.len(), want.len());
        let scale = want.iter().fold(f32::MIN_POSITIVE, |a, b| a.max(b.abs()));
        got.iter().zip(want).fold(0.0_f32, |a, (got, want)| a.max((got - want).abs())) / scale
    };
    got.values().zip(want.values()).map(of).fold(0.0, f32::max)
}
