//! The header of a safetensors file, and the place of each tensor in it.

use pocketune_formats::{Mapped, safetensors_file};

use super::{JSON, Target, accepted};
use crate::seeds::{Seed, f32_tensors, safetensors};

pub const TARGET: Target = Target { name: "safetensors", run, seeds, words: JSON };

fn run(bytes: &[u8]) -> bool {
    let file = Mapped::from_bytes("m.safetensors", bytes);
    let Some(tensors) = accepted(safetensors_file::read(&file, 0)) else { return false };
    for info in &tensors {
        let _ = info.elements();
        assert_eq!(bytes[info.offset..info.offset + info.bytes].len(), info.bytes);
    }
    true
}

fn seeds() -> Vec<Seed> {
    let mixed = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"c":{"dtype":"I64","shape":[1],"data_offsets":[22,30]}}"#;
    vec![
        Seed::common(safetensors(mixed, 30)),
        Seed::common(f32_tensors(&[("model.embed_tokens.weight", &[4, 2]), ("empty", &[0, 7]), ("scalar", &[])])),
        Seed::common(safetensors("{}", 0)),
        Seed::common(safetensors(r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}      "#, 2)),
    ]
}
