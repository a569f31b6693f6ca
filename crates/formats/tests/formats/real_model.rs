//! A real model file, where `POCKETUNE_SMOLLM2` names SmolLM2-135M-Instruct as a Q4_1 GGUF.

use std::path::Path;

use pocketune_formats::{BlockType, ModelFiles};

#[test]
fn smollm2_opens_with_its_tensors_and_vocabulary() {
    let Ok(path) = std::env::var("POCKETUNE_SMOLLM2") else {
        println!("skipped: POCKETUNE_SMOLLM2 does not name a SmolLM2-135M-Instruct Q4_1 GGUF");
        return;
    };
    let model = ModelFiles::open(Path::new(&path)).unwrap();
    let meta = model.gguf().unwrap().meta();
    assert_eq!(meta.get_str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(meta.get_u64("llama.block_count").unwrap(), Some(30));
    assert_eq!(meta.get_u64("llama.embedding_length").unwrap(), Some(576));
    let tokens = meta.array("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens.strings().unwrap().nth(1), Some(&b"<|im_start|>"[..]));
    assert_eq!(tokens.len(), 49_152);
    assert_eq!(model.tensors().len(), 272);
    assert_eq!(model.tensors().map(|info| info.elements()).sum::<usize>(), 134_515_008);
    let gate = model.tensor("blk.29.ffn_gate.weight").unwrap().unwrap();
    assert_eq!((gate.ty, gate.shape), (BlockType::Q4_1, &[1536, 576][..]));
}
