//! Random damage to valid files: whatever the bytes, readers answer with a value or with one line, and never panic.

use std::path::Path;

use pocketune_formats::ModelFiles;
use pocketune_formats::inspect::describe;
use pocketune_formats::peft::Adapter;
use proptest::prelude::*;

use crate::adapter::{CONFIG_OF_PEFT, adapter_tensors};
use crate::handmade::{CONFIG, HEADER, HEADER_DATA, Place, good_gguf, safetensors};

/// Overwrites bytes, with an inclination to values that matter, and cuts the end off.
fn damaged(good: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let len = good.len();
    let byte = prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(b'"'), Just(b'9')];
    let kept = prop_oneof![3 => Just(len), 1 => 1..=len];
    (prop::collection::vec((0..len, byte), 0..6), kept).prop_map(move |(changes, kept)| {
        let mut bytes = good.clone();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(kept);
        bytes
    })
}

/// Everything that can be asked of a path is answered, errors in one line.
fn ask_everything(path: &Path) {
    let one_line = |error: pocketune_formats::Error| assert!(!error.to_string().contains('\n'), "{error}");
    if let Err(error) = describe(path) {
        one_line(error);
    }
    match Adapter::open(path) {
        Err(error) => one_line(error),
        Ok(adapter) => assert!(adapter.pairs().all(|pair| !pair.a.data.is_empty() || pair.a.shape.contains(&0))),
    }
    match ModelFiles::open(path) {
        Err(error) => one_line(error),
        Ok(model) => {
            for info in model.tensors() {
                match model.tensor(&info.name) {
                    Ok(tensor) => assert_eq!(tensor.unwrap().data.len(), info.bytes),
                    Err(error) => one_line(error),
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_gguf_files_never_panic(bytes in damaged(good_gguf())) {
        ask_everything(&Place::new().file("m.gguf", bytes));
    }

    #[test]
    fn damaged_safetensors_never_panic(bytes in damaged(safetensors(HEADER, HEADER_DATA))) {
        let place = Place::new();
        place.file("config.json", CONFIG);
        let weights = place.file("model.safetensors", bytes);
        ask_everything(place.path());
        ask_everything(&weights);
    }

    #[test]
    fn damaged_indices_never_panic(bytes in damaged(br#"{"weight_map":{"a":"m.safetensors","b":"m.safetensors"}}"#.to_vec())) {
        let place = Place::new();
        place.file("config.json", CONFIG);
        place.file("m.safetensors", safetensors(HEADER, HEADER_DATA));
        place.file("model.safetensors.index.json", bytes);
        ask_everything(place.path());
    }

    #[test]
    fn damaged_adapters_never_panic(config in damaged(CONFIG_OF_PEFT.into()), tensors in damaged(adapter_tensors())) {
        let place = Place::new();
        place.file("adapter_config.json", config);
        place.file("adapter_model.safetensors", tensors);
        ask_everything(place.path());
    }
}
