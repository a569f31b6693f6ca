//! Handmade bad GGUF files, each with the sentence that a user reads. The attacks of candle#3533, CVE-2025-53630,
//! CVE-2026-27940 and CVE-2026-7482 are among them.

use pocketune_formats::ModelFiles;

use crate::handmade::{ARRAY, BOOL, Place, STRING, U32, array, entry, gguf, good_gguf, header, string, tensor};

const F32_TYPE: u32 = 0;
const Q4_1_TYPE: u32 = 3;

/// Opens each file and compares what is said, without the path.
fn said(files: Vec<(Vec<u8>, &str)>) {
    let place = Place::new();
    for (bytes, sentence) in files {
        let path = place.file("bad.gguf", bytes);
        let error = ModelFiles::open(&path).expect_err(sentence).to_string();
        assert_eq!(error, format!("{}: {sentence}", path.display()));
    }
}

fn one_tensor(entry: Vec<u8>, data: usize) -> Vec<u8> {
    gguf(&[], &[entry], data)
}

fn one_entry(entry: Vec<u8>) -> Vec<u8> {
    gguf(&[entry], &[], 0)
}

#[test]
fn headers_that_lie_are_refused_before_memory_is_taken_for_them() {
    let mut bomb = header(3, u64::MAX, 1);
    bomb.resize(64, 0);
    let mut many_entries = header(3, 0, 1 << 40);
    many_entries.resize(64, 0);
    let mut crowd = header(3, 70_000, 0);
    crowd.resize(70_000 * 25 + 24, 0);
    let mut big_endian = good_gguf();
    big_endian[4..8].copy_from_slice(&3u32.to_be_bytes());
    said(vec![
        (b"GGUF".to_vec(), "truncated: version at byte 4 needs 4 bytes, 0 are left"),
        (header(3, 0, 0)[..20].to_vec(), "truncated: number of metadata entries at byte 16 needs 8 bytes, 4 are left"),
        (header(1, 0, 0), "GGUF version 1; versions 2 and 3 are read"),
        (header(4, 0, 0), "GGUF version 4; versions 2 and 3 are read"),
        (big_endian, "a big-endian GGUF file; only little-endian ones are read"),
        (
            bomb,
            "claims 18446744073709551615 tensors, which need 461168601842738790375 bytes at least; 40 are left at byte 24",
        ),
        (
            many_entries,
            "claims 1099511627776 metadata entries, which need 15393162788864 bytes at least; 40 are left at byte 24",
        ),
        (crowd, "claims 70000 tensors; at most 65536 are read"),
    ]);
}

#[test]
fn metadata_that_lies_is_refused() {
    let long_key = "k".repeat(1025);
    said(vec![
        (
            one_entry([&u64::MAX.to_le_bytes()[..], &[0; 16]].concat()),
            "truncated: metadata key at byte 32 needs 18446744073709551615 bytes, 32 are left",
        ),
        (one_entry(entry("", U32, [0; 8])), "metadata key at byte 24 is empty"),
        (one_entry(entry(&long_key, U32, [0; 4])), "metadata key at byte 24 is 1025 bytes long; at most 1024 are read"),
        (one_entry(entry(b"\xff\xfe", U32, [0; 4])), "metadata key at byte 24 is not UTF-8"),
        (one_entry(entry("k", 13, [0; 8])), "metadata \"k\" has value type 13, which GGUF does not define"),
        (one_entry(entry("k\n", 99, [0; 8])), "metadata \"k\\n\" has value type 99, which GGUF does not define"),
        (one_entry(entry("k", BOOL, [2])), "metadata \"k\" has a bool that is 2, neither 0 nor 1"),
        (
            one_entry(entry("k", ARRAY, array(BOOL, 3, [1, 0, 7]))),
            "metadata \"k\" has a bool that is 7, neither 0 nor 1",
        ),
        (
            one_entry(entry("k", ARRAY, array(ARRAY, 1, array(U32, 1, [0; 4])))),
            "metadata \"k\" is an array of arrays, which is not read",
        ),
        (
            one_entry(entry("k", ARRAY, array(U32, u64::MAX, []))),
            "claims 18446744073709551615 elements of a metadata array, which need 73786976294838206460 bytes at least; 15 are \
             left at byte 49",
        ),
        (
            one_entry(entry("k", ARRAY, array(STRING, 1 << 33, []))),
            "claims 8589934592 elements of a metadata array, which need 68719476736 bytes at least; 15 are left at byte 49",
        ),
        (
            one_entry(entry("k", STRING, 1_000_000u64.to_le_bytes())),
            "truncated: metadata string at byte 45 needs 1000000 bytes, 19 are left",
        ),
        (
            gguf(&[entry("k", U32, [0; 4]), entry("j", U32, [0; 4]), entry("k", U32, [1; 4])], &[], 0),
            "metadata \"k\" is there twice",
        ),
    ]);
}

#[test]
fn alignments_that_make_no_sense_are_refused() {
    let alignment = |ty: u32, value: &[u8]| one_entry(entry("general.alignment", ty, value));
    said(vec![
        (alignment(U32, &[0; 4]), "general.alignment is 0; a power of two from 8 to 65536 is wanted"),
        (alignment(U32, &48u32.to_le_bytes()), "general.alignment is 48; a power of two from 8 to 65536 is wanted"),
        (
            alignment(U32, &(1u32 << 31).to_le_bytes()),
            "general.alignment is 2147483648; a power of two from 8 to 65536 is wanted",
        ),
        (alignment(STRING, &string("32")), "metadata \"general.alignment\" is a string, where an integer is wanted"),
    ]);
}

#[test]
fn tensors_that_lie_about_themselves_are_refused() {
    let long_name = "n".repeat(65);
    let short = {
        let mut bytes = header(3, 1, 0);
        bytes.extend(string("cut.weight.with.a.name.long.enough"));
        bytes
    };
    said(vec![
        (one_tensor(tensor("", &[4, 4], F32_TYPE, 0), 64), "tensor name at byte 24 is empty"),
        (
            one_tensor(tensor(&long_name, &[4], F32_TYPE, 0), 64),
            "tensor name at byte 24 is 65 bytes long; at most 64 are read",
        ),
        (one_tensor(tensor(b"\xc3(", &[4], F32_TYPE, 0), 64), "tensor name at byte 24 is not UTF-8"),
        (one_tensor(tensor("w", &[1; 5], F32_TYPE, 0), 64), "tensor \"w\" has 5 dimensions; at most 4 are read"),
        (one_tensor(tensor("w", &[4, 0], F32_TYPE, 0), 64), "tensor \"w\" has the shape [4, 0]: a dimension of 0"),
        (
            one_tensor(tensor("w", &[1 << 32, 1 << 32], F32_TYPE, 0), 64),
            "tensor \"w\" has the shape [4294967296, 4294967296], more bytes than there are addresses",
        ),
        (
            one_tensor(tensor("w", &[1 << 62], F32_TYPE, 0), 64),
            "tensor \"w\" has the shape [4611686018427387904], more bytes than there are addresses",
        ),
        (
            one_tensor(tensor("w", &[1 << 60], F32_TYPE, 0), 64),
            "tensor \"w\" ends at byte 4611686018427387968 of a file of 128 bytes; was its download interrupted?",
        ),
        (one_tensor(tensor("w", &[4], 4, 0), 64), "tensor \"w\" has element type 4, which this version does not know"),
        (
            one_tensor(tensor("w", &[4], u32::MAX, 0), 64),
            "tensor \"w\" has element type 4294967295, which this version does not know",
        ),
        (
            one_tensor(tensor("w", &[33, 2], Q4_1_TYPE, 0), 64),
            "tensor \"w\" has rows of 33 elements, no whole number of q4_1 blocks of 32",
        ),
        (
            one_tensor(tensor("w", &[4], F32_TYPE, 8), 64),
            "tensor \"w\" is at offset 8, no multiple of the alignment 32",
        ),
        (
            one_tensor(tensor("w", &[17], F32_TYPE, 0), 64),
            "tensor \"w\" ends at byte 132 of a file of 128 bytes; was its download interrupted?",
        ),
        (
            one_tensor(tensor("w", &[4], F32_TYPE, u64::MAX - 31), 64),
            "tensor \"w\" ends at byte 18446744073709551664 of a file of 128 bytes; was its download interrupted?",
        ),
        (short, "truncated: number of dimensions at byte 66 needs 4 bytes, 0 are left"),
    ]);
}

#[test]
fn tensors_that_collide_are_refused() {
    said(vec![
        (
            gguf(&[], &[tensor("w", &[16], F32_TYPE, 0), tensor("v", &[4], F32_TYPE, 32)], 64),
            "tensors \"w\" and \"v\" overlap at byte 128",
        ),
        (
            gguf(&[], &[tensor("w", &[4], F32_TYPE, 0), tensor("w", &[4], F32_TYPE, 32)], 64),
            "two tensors are named \"w\"",
        ),
    ]);
}

#[test]
fn a_file_cut_anywhere_is_refused_with_one_line() {
    let (place, good) = (Place::new(), good_gguf());
    for len in 1..good.len() {
        let path = place.file("cut.gguf", &good[..len]);
        let error = ModelFiles::open(&path).expect_err("it lacks bytes").to_string();
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn one_part_of_a_split_model_is_refused_with_what_to_do() {
    said(vec![(
        one_entry(entry("split.count", 2, 3u16.to_le_bytes())),
        "one of 3 parts of a split model; join them with `llama-gguf-split --merge`",
    )]);
}
