//! Handmade bad safetensors files, each with the sentence that a user reads. Headers that lie about dims (CVE-2026-7482), products
//! that overflow (CVE-2025-53630) and tensors that share bytes are among them.

use crate::handmade::{safetensors, string};
use crate::safetensors_file::said;

/// One entry of a header.
fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

#[test]
fn entries_that_lie_about_themselves_are_refused() {
    let cases = [
        (("F32", "[2]", "[0,4]"), "tensor \"a\" of type F32 and the shape [2] can't lie from 0 to 4"),
        (("F32", "[1]", "[4,0]"), "tensor \"a\" of type F32 and the shape [1] can't lie from 4 to 0"),
        (("F16", "[3]", "[0,4]"), "tensor \"a\" of type F16 and the shape [3] can't lie from 0 to 4"),
        (
            ("F32", "[4611686018427387904,4]", "[0,4]"),
            "tensor \"a\" of type F32 and the shape [4611686018427387904, 4] can't lie from 0 to 4",
        ),
        (
            ("F32", "[4294967296,4294967296]", "[0,0]"),
            "tensor \"a\" of type F32 and the shape [4294967296, 4294967296] can't lie from 0 to 0",
        ),
        (
            ("F32", "[0,18446744073709551615,2]", "[0,4]"),
            "tensor \"a\" of type F32 and the shape [0, 18446744073709551615, 2] can't lie from 0 to 4",
        ),
        (("F4", "[1]", "[0,0]"), "tensor \"a\" of type F4 and the shape [1] can't lie from 0 to 0"),
        (
            ("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"),
            "tensor \"a\" of type F32 and the shape [1, 1, 1, 1, 1, 1, 1, 1] can't lie from 0 to 4",
        ),
        (("F32", "[-1]", "[0,4]"), "invalid value: integer `-1`, expected usize"),
        (("F32", "[1.5]", "[0,4]"), "invalid type: floating point `1.5`, expected usize"),
        (
            ("F32", "[18446744073709551616]", "[0,4]"),
            "invalid type: floating point `1.8446744073709552e+19`, expected usize",
        ),
        (("F32", "\"1\"", "[0,4]"), "invalid type: string \"1\", expected a sequence"),
        (("F32", "null", "[0,4]"), "invalid type: null, expected a sequence"),
        (("Q4_0", "[1]", "[0,4]"), "unknown variant `Q4_0`, expected one of `BOOL`"),
        (("f32", "[1]", "[0,4]"), "unknown variant `f32`, expected one of `BOOL`"),
        (("F32", "[1]", "[0]"), "invalid length 1, expected a tuple of size 2"),
        (("F32", "[1]", "[0,4,8]"), "trailing characters"),
        (("F32", "[1]", "[0,-4]"), "invalid value: integer `-4`, expected usize"),
        (("F32", "[1]", "{}"), "invalid type: map, expected a tuple of size 2"),
    ];
    for ((dtype, shape, offsets), sentence) in cases {
        let line = said(safetensors(&format!("{{{}}}", entry("a", dtype, shape, offsets)), 4));
        assert!(line.starts_with(&format!("the header is malformed: {sentence}")), "{line}");
    }
}

#[test]
fn tensors_that_collide_or_leave_holes_are_refused() {
    let pair = |first: &str, second: &str| {
        let (a, b) = (entry("a", "F32", "[1]", first), entry("b", "F32", "[1]", second));
        said(safetensors(&format!("{{{a},{b}}}"), 8))
    };
    assert_eq!(pair("[0,4]", "[2,6]"), "tensor \"b\" begins at byte 2 of the data, where byte 4 is free");
    assert_eq!(pair("[0,4]", "[0,4]"), "tensor \"b\" begins at byte 0 of the data, where byte 4 is free");
    assert_eq!(pair("[4,8]", "[8,12]"), "tensor \"a\" begins at byte 4 of the data, where byte 0 is free");
    assert_eq!(pair("[0,4]", "[5,9]"), "tensor \"b\" begins at byte 5 of the data, where byte 4 is free");
    let (once, again) = (entry("a", "F32", "[1]", "[0,4]"), entry("a", "F32", "[1]", "[4,8]"));
    assert_eq!(said(safetensors(&format!("{{{once},{again}}}"), 8)), "two tensors are named \"a\"");
}

#[test]
fn headers_that_are_no_list_of_tensors_are_refused() {
    let cases = [
        ("", "EOF while parsing a value"),
        ("[]", "invalid type: sequence, expected an object of tensors"),
        ("null", "invalid type: null, expected an object of tensors"),
        (r#"{"a":3}"#, "invalid type: integer `3`, expected struct TensorInfo"),
        (r#"{"a":{}}"#, "missing field `dtype`"),
        (r#"{"a":{"dtype":"F32"}}"#, "missing field `shape`"),
        (r#"{"a":{"dtype":"F32","dtype":"F32"}}"#, "duplicate field `dtype`"),
        (r#"{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}} x"#, "trailing characters"),
        ("{\"a\u{1}\":1}", "control character"),
        (r#"{"\ud800":1}"#, "unexpected end of hex escape"),
    ];
    for (header, sentence) in cases {
        let line = said(safetensors(header, 4));
        assert!(line.starts_with("the header is malformed: ") && line.contains(sentence), "{header}: {line}");
    }
    assert!(said(string(b"{\"\xff\":1}")).contains("invalid unicode code point"));
}
