//! Handmade bad adapters of mlx-lm, each with the sentence that a user reads.

use std::path::Path;

use pocketune_formats::lora::LoraFile;

use crate::handmade::{Place, safetensors};

const CONFIG: &str = r#"{"fine_tune_type": "lora", "lora_parameters": {"rank": 2, "scale": 20.0}}"#;

fn said(folder: &Path) -> String {
    let Err(error) = LoraFile::open(folder) else { panic!("{} was taken", folder.display()) };
    let error = error.to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
    error.replace(&folder.display().to_string(), "DIR")
}

/// A file of one pair: `[in, r]` and `[r, out]`, with as many bytes as it says.
fn pair(a: &str, b: &str, a_shape: [usize; 2], b_shape: [usize; 2]) -> Vec<u8> {
    let (a_end, b_end) = (4 * a_shape[0] * a_shape[1], 4 * b_shape[0] * b_shape[1]);
    let entry = |name: &str, shape: [usize; 2], start: usize, end: usize| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
    };
    let header = format!("{{{},{}}}", entry(a, a_shape, 0, a_end), entry(b, b_shape, a_end, a_end + b_end));
    safetensors(&header, a_end + b_end)
}

fn good() -> Vec<u8> {
    pair("x.q_proj.lora_a", "x.q_proj.lora_b", [3, 2], [2, 5])
}

#[test]
fn a_good_one_is_taken() {
    let place = Place::new();
    place.file("adapter_config.json", CONFIG);
    place.file("adapters.safetensors", good());
    let lora = LoraFile::open(place.path()).unwrap();
    let pair = &lora.pairs[0];
    assert_eq!((pair.rank, pair.cols, pair.rows, pair.scale), (2, 3, 5, 20.0));
}

#[test]
fn configurations_that_are_no_plain_lora_are_refused() {
    let scale = |value: &str| format!(r#"{{"lora_parameters": {{"scale": {value}}}}}"#);
    let kind = |value: &str| format!(r#"{{"fine_tune_type": {value}, "lora_parameters": {{"scale": 1.0}}}}"#);
    let cases = [
        (String::new(), "the file is empty"),
        ("{".into(), "malformed JSON: EOF while parsing an object"),
        ("[]".into(), "malformed JSON: invalid type: sequence, expected a map"),
        ("null".into(), "malformed JSON: invalid type: null"),
        ("{} {}".into(), "malformed JSON: trailing characters"),
        ("{}".into(), "the field lora_parameters.scale is missing"),
        (r#"{"lora_parameters": null}"#.into(), "the field lora_parameters.scale is missing"),
        (r#"{"lora_parameters": []}"#.into(), "the field lora_parameters.scale is missing"),
        (r#"{"lora_parameters": "scale"}"#.into(), "the field lora_parameters.scale is missing"),
        (r#"{"lora_parameters": {"rank": 8}}"#.into(), "the field lora_parameters.scale is missing"),
        (r#"{"scale": 20.0}"#.into(), "the field lora_parameters.scale is missing"),
        (scale("\"20\""), "lora_parameters.scale is \"20\", where a number is wanted"),
        (scale("null"), "lora_parameters.scale is null, where a number is wanted"),
        (scale("true"), "lora_parameters.scale is true, where a number is wanted"),
        (scale("[20]"), "lora_parameters.scale is [20], where a number is wanted"),
        (scale("1e999"), "malformed JSON: number out of range"),
        (scale("NaN"), "malformed JSON: expected value"),
        (kind("\"full\""), "fine_tune_type is \"full\", which pocketune does not support"),
        (kind("\"LoRA\""), "fine_tune_type is \"LoRA\", which pocketune does not support"),
        (kind("7"), "fine_tune_type is 7, which pocketune does not support"),
        (kind("{}"), "fine_tune_type is {}, which pocketune does not support"),
        (kind(r#""a\nb""#), "fine_tune_type is "),
        (format!("{}{}", "[".repeat(200), "]".repeat(200)), "malformed JSON: "),
    ];
    for (config, words) in cases {
        let place = Place::new();
        place.file("adapter_config.json", &config);
        place.file("adapters.safetensors", good());
        let error = said(place.path());
        assert!(error.contains(words), "{config}: {error}");
    }
}

#[test]
fn tensors_that_are_no_pairs_are_refused() {
    let (a, b) = ("x.q_proj.lora_a", "x.q_proj.lora_b");
    let cases = [
        (Vec::new(), "adapters.safetensors"),
        (safetensors("{}", 0), "the file holds no LoRA tensors"),
        (safetensors("[]", 0), "adapters.safetensors"),
        (
            safetensors(&format!(r#"{{"{a}":{{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}}}"#), 8),
            "adapters.safetensors",
        ),
        (pair(a, "x.q_proj.weight", [3, 2], [2, 5]), "is not part of a LoRA pair"),
        (pair(a, "x.v_proj.lora_b", [3, 2], [2, 5]), "has a lora_"),
        (pair("lora_a", "lora_b", [3, 2], [2, 5]), "is not part of a LoRA pair"),
        (pair(a, b, [3, 2], [4, 5]), "has the shape [4, 5], where r = 2"),
        (pair(a, b, [3, 0], [0, 5]), "has the shape [0, 5], where r = 0"),
        (pair(a, "x.q_proj.lora_b\\n", [3, 2], [2, 5]), "is not part of a LoRA pair"),
        (
            safetensors(
                &format!(
                    r#"{{"{a}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},"{b}":{{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}}}"#
                ),
                16,
            ),
            "has the shape [2]",
        ),
        (
            safetensors(
                &format!(
                    r#"{{"{a}":{{"dtype":"I8","shape":[1,1],"data_offsets":[0,1]}},"{b}":{{"dtype":"I8","shape":[1,1],"data_offsets":[1,2]}}}}"#
                ),
                2,
            ),
            "x.q_proj.lora_",
        ),
    ];
    for (number, (file, words)) in cases.into_iter().enumerate() {
        let place = Place::new();
        place.file("adapter_config.json", CONFIG);
        place.file("adapters.safetensors", file);
        let error = said(place.path());
        assert!(error.contains(words), "case {number}: {error}");
    }
}

#[test]
fn files_that_are_missing_or_too_large_are_refused() {
    let place = Place::new();
    place.file("adapters.safetensors", good());
    assert!(said(place.path()).contains("adapter_config.json"));
    place.file("adapter_config.json", format!("{CONFIG}{}", " ".repeat(1 << 20)));
    assert!(said(place.path()).contains("adapter_config.json"));
}
