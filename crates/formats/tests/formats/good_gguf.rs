//! What a well-formed GGUF file gives, and what its metadata says when asked for the wrong type.

use pocketune_formats::{BlockType, Mapped, ModelFiles};

use crate::handmade::{self, Place};

fn good() -> (Place, ModelFiles) {
    let place = Place::new();
    let model = ModelFiles::open(&place.file("m.gguf", handmade::good_gguf())).unwrap();
    (place, model)
}

#[test]
fn tensors_have_rows_first_and_the_bytes_of_the_file() {
    let (_place, model) = good();
    let embed = model.tensor("token_embd.weight").unwrap().unwrap();
    assert_eq!((embed.ty, embed.shape, embed.data.len()), (BlockType::Q4_1, &[3, 32][..], 60));
    assert!(embed.data.iter().enumerate().all(|(i, &byte)| byte == i as u8));
    let norm = model.tensor("output_norm.weight").unwrap().unwrap();
    assert_eq!((norm.ty, norm.shape, norm.data[0]), (BlockType::F32, &[5][..], 64));
    assert_eq!(norm.data, &model.files()[norm.file].bytes()[norm.offset..][..20]);
    assert!(model.tensor("missing").unwrap().is_none());
    let names: Vec<&str> = model.tensors().map(|info| &*info.name).collect();
    assert_eq!(names, ["token_embd.weight", "output_norm.weight", "odd.weight"]);
}

#[test]
fn a_tensor_of_an_unsupported_type_is_listed_but_not_given() {
    let (place, model) = good();
    assert_eq!(model.tensors().find(|info| &*info.name == "odd.weight").unwrap().element.name(), "iq4_nl");
    let error = model.tensor("odd.weight").unwrap_err().to_string();
    let path = place.path().join("m.gguf");
    assert_eq!(
        error,
        format!(
            "{}: tensor \"odd.weight\" has elements of type iq4_nl; supported are f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, \
             q4_k, q5_k, q6_k",
            path.display()
        )
    );
}

#[test]
fn metadata_is_found_by_key_and_type() {
    let (_place, model) = good();
    let meta = model.gguf().unwrap().meta();
    assert_eq!(meta.get_str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(meta.get_u64("llama.block_count").unwrap(), Some(30));
    assert_eq!(meta.get_f32("llama.rope.freq_base").unwrap(), Some(1e5));
    assert_eq!(meta.get_bool("tokenizer.ggml.add_bos_token").unwrap(), Some(true));
    assert_eq!(meta.get_u64("absent").unwrap(), None);
    let tokens = meta.array("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens.strings().unwrap().collect::<Vec<_>>(), ["<s>".as_bytes(), "Ġthe".as_bytes(), b""]);
    let scores = meta.array("tokenizer.ggml.scores").unwrap().unwrap();
    assert_eq!(scores.f32s().unwrap().collect::<Vec<_>>(), [0.0, -1.5, 2.0]);
    let types = meta.array("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!(types.integers().unwrap().collect::<Vec<_>>(), [3, 1, -1]);
}

#[test]
fn asking_for_another_type_names_the_key_and_both_types() {
    let (place, model) = good();
    let meta = model.gguf().unwrap().meta();
    let tokens = meta.array("tokenizer.ggml.tokens").unwrap().unwrap();
    let path = place.path().join("m.gguf");
    let said = [
        (
            meta.get_u64("general.architecture").map(|_| ()),
            "metadata \"general.architecture\" is a string, where an integer is wanted",
        ),
        (meta.get_u64("negative").map(|_| ()), "metadata \"negative\" is -7, where a number of at least 0 is wanted"),
        (
            meta.get_f32("llama.block_count").map(|_| ()),
            "metadata \"llama.block_count\" is an integer, where a float is wanted",
        ),
        (
            meta.get_bool("tokenizer.ggml.tokens").map(|_| ()),
            "metadata \"tokenizer.ggml.tokens\" is an array of string, where a bool is wanted",
        ),
        (meta.get_str("latin").map(|_| ()), "metadata \"latin\" is not UTF-8"),
        (
            meta.array("tokenizer.ggml.add_bos_token").map(|_| ()),
            "metadata \"tokenizer.ggml.add_bos_token\" is a bool, where an array is wanted",
        ),
        (
            tokens.f32s().map(|_| ()),
            "metadata \"tokenizer.ggml.tokens\" is an array of string, where an array of f32 is wanted",
        ),
    ];
    for (result, sentence) in said {
        assert_eq!(result.unwrap_err().to_string(), format!("{}: {sentence}", path.display()));
    }
}

#[test]
fn a_model_that_is_part_of_the_program_opens_like_a_file() {
    let bytes: &'static [u8] = Box::leak(handmade::good_gguf().into_boxed_slice());
    let model = ModelFiles::from_gguf(Mapped::from_static("(embedded)", bytes)).unwrap();
    assert_eq!(model.tensor("output_norm.weight").unwrap().unwrap().data[0], 64);
    let error = ModelFiles::from_gguf(Mapped::from_static("(embedded)", &bytes[..30])).unwrap_err().to_string();
    assert!(error.starts_with("(embedded): claims 3 tensors"), "{error}");
}

#[test]
fn version_2_is_read_like_version_3() {
    let mut bytes = handmade::good_gguf();
    bytes[4] = 2;
    let model = ModelFiles::open(&Place::new().file("m.gguf", bytes));
    assert_eq!(model.unwrap().gguf().unwrap().version(), 2);
}

#[test]
fn released_bytes_read_the_same_again() {
    let (_place, model) = good();
    let file = &model.files()[0];
    let before = file.bytes().to_vec();
    file.read_ahead(0, before.len());
    file.release(0, before.len());
    file.release(usize::MAX, 2);
    assert_eq!(file.bytes(), before);
}
