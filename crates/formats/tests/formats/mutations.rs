//! Random damage to valid files: whatever the bytes, readers answer with a value or with one line, and never panic.

use std::path::Path;

use pocketune_formats::inspect::describe;
use pocketune_formats::peft::Adapter;
use pocketune_formats::{ModelFiles, PackedMatrix};
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
                match PackedMatrix::find(&model, &info.name) {
                    Ok(None) => {}
                    Ok(Some(matrix)) => {
                        let packed = matrix.packed.map(|part| model.part(part));
                        packed.read(0, &mut vec![0.0; matrix.rows * matrix.cols]);
                    }
                    Err(error) => one_line(error),
                }
            }
        }
    }
}

/// A matrix that MLX packed and one that bitsandbytes did, 2 by 64 each.
fn packed() -> Vec<u8> {
    let state = br#"{"blocksize":64,"shape":[2,64],"dtype":"float16","nested_blocksize":256,"nested_offset":0.5}"#;
    let tensors: [(&str, &str, &str, &[u8]); 9] = [
        ("m.weight", "U32", "2,8", &[0x5a; 64]),
        ("m.scales", "F16", "2,2", &[0x11; 8]),
        ("m.biases", "BF16", "2,2", &[0x12; 8]),
        ("b.weight", "U8", "64,1", &[0xa5; 64]),
        ("b.weight.absmax", "U8", "2", &[7; 2]),
        ("b.weight.nested_absmax", "F32", "1", &[0x3f; 4]),
        ("b.weight.nested_quant_map", "F32", "256", &[0x3e; 1024]),
        ("b.weight.quant_map", "F32", "16", &[0x3d; 64]),
        ("b.weight.quant_state.bitsandbytes__nf4", "U8", "96", state),
    ];
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for (name, ty, shape, bytes) in tensors {
        let (start, end) = (data.len(), data.len() + bytes.len());
        let shape = shape.replace("96", &bytes.len().to_string());
        header.push(format!(r#""{name}":{{"dtype":"{ty}","shape":[{shape}],"data_offsets":[{start},{end}]}}"#));
        data.extend_from_slice(bytes);
    }
    let mut file = safetensors(&format!("{{{}}}", header.join(",")), 0);
    file.append(&mut data);
    file
}

const CONFIG_OF_MLX: &str = r#"{"model_type":"llama","quantization":{"group_size":32,"bits":4}}"#;

#[test]
fn the_packed_file_is_whole_before_it_is_damaged() {
    let place = Place::new();
    place.file("config.json", CONFIG_OF_MLX);
    place.file("model.safetensors", packed());
    let model = ModelFiles::open(place.path()).unwrap();
    for name in ["m.weight", "b.weight"] {
        let matrix = PackedMatrix::find(&model, name).unwrap().unwrap();
        assert_eq!((matrix.rows, matrix.cols), (2, 64));
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
    fn damaged_packed_matrices_never_panic(config in damaged(CONFIG_OF_MLX.into()), bytes in damaged(packed())) {
        let place = Place::new();
        place.file("config.json", config);
        place.file("model.safetensors", bytes);
        ask_everything(place.path());
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
