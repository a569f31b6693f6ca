//! Safetensors headers, good and bad, through a folder as users have them.

use pocketune_formats::{BlockType, ModelFiles};

use crate::handmade::{CONFIG, HEADER, HEADER_DATA, Place, safetensors};

fn open(bytes: Vec<u8>) -> (Place, pocketune_formats::Result<ModelFiles>) {
    let place = Place::new();
    place.file("config.json", CONFIG);
    place.file("model.safetensors", bytes);
    let model = ModelFiles::open(place.path());
    (place, model)
}

pub fn said(bytes: Vec<u8>) -> String {
    let (place, model) = open(bytes);
    let prefix = format!("{}: ", place.path().join("model.safetensors").display());
    model.unwrap_err().to_string().strip_prefix(&prefix).expect("the path comes first").to_string()
}

#[test]
fn tensors_come_in_the_order_of_the_data() {
    let (_place, model) = open(safetensors(HEADER, HEADER_DATA));
    let model = model.unwrap();
    let names: Vec<&str> = model.tensors().map(|info| &*info.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let b = model.tensor("b").unwrap().unwrap();
    assert_eq!((b.ty, b.shape, b.data), (BlockType::BF16, &[3][..], &[16, 17, 18, 19, 20, 21][..]));
    let error = model.tensor("c").unwrap_err().to_string();
    assert!(error.contains("tensor \"c\" has elements of type i64; supported are f32, f16, bf16"), "{error}");
}

#[test]
fn headers_that_lie_are_refused() {
    assert_eq!(said(vec![1, 2, 3]), "not a safetensors file: 3 bytes, too short for the length of a header");
    assert_eq!(
        said(vec![0xff; 64]),
        "claims a header of 18446744073709551615 bytes; at most 4194304 are read. Is it a safetensors file?"
    );
    assert_eq!(
        said(safetensors(HEADER, 0)[..100].to_vec()),
        format!("truncated: a header of {} bytes in a file of 100; was its download interrupted?", HEADER.len())
    );
    assert_eq!(
        said(safetensors(HEADER, HEADER_DATA - 1)),
        "the header describes 30 bytes of data, 29 are there; was its download interrupted?"
    );
    assert_eq!(said(safetensors("{", 0)), "the header is malformed: EOF while parsing an object at line 1 column 1");
}

#[test]
fn offsets_whose_sum_wraps_around_are_refused() {
    // Eight tensors of almost 2^61 bytes end just below 2^64: the length of header and data together wraps to a small
    // number.
    let size = (1u64 << 61) - 1;
    let tensors: Vec<String> = (0..8u64)
        .map(|i| format!(r#""{i}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{},{}]}}"#, i * size, (i + 1) * size))
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    assert_eq!(
        said(safetensors(&header, 64)),
        "the header describes 18446744073709551608 bytes of data, 64 are there; was its download interrupted?"
    );
}

#[test]
fn nested_json_does_not_overflow_the_stack() {
    assert!(said(safetensors(&format!("{{\"a\":{}", "[".repeat(100_000)), 0)).contains("malformed"));
}
