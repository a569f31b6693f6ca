//! Dequantisation against the `gguf` Python package, bit for bit. `oracle/blocks.py` wrote the golden files.

use std::path::Path;

use pocketune_kernels::blocks::{BlockType, dequantize};

#[test]
fn every_type_dequantises_to_the_bits_of_the_gguf_package() {
    for ty in BlockType::ALL {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{}.bin", ty.name()));
        let file = std::fs::read(&path).unwrap();
        let per_block = ty.block_bytes() + 4 * ty.block_len();
        assert_eq!(file.len() % per_block, 0, "{path:?}");
        let count = file.len() / per_block;
        let (blocks, want) = file.split_at(count * ty.block_bytes());
        let mut got = vec![f32::NAN; count * ty.block_len()];
        dequantize(ty, blocks, &mut got);
        for (i, (got, want)) in got.iter().zip(want.as_chunks::<4>().0).enumerate() {
            assert_eq!(got.to_bits(), u32::from_le_bytes(*want), "{} element {i}", ty.name());
        }
    }
}

#[test]
fn ggml_ids_and_names_are_distinct_for_every_type() {
    let from_ids: Vec<BlockType> = (0..64).filter_map(BlockType::from_ggml_id).collect();
    assert_eq!(from_ids.len(), BlockType::ALL.len());
    for ty in BlockType::ALL {
        assert!(from_ids.contains(&ty), "{} has no id", ty.name());
    }
}

#[test]
#[should_panic(expected = "64 elements of q4_1 need another number of bytes")]
fn a_wrong_number_of_bytes_is_a_programming_error() {
    dequantize(BlockType::Q4_1, &[0; 20], &mut [0.0; 64]);
}
