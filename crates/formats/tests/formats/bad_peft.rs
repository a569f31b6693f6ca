//! Handmade bad adapters beside those of `adapter.rs`, each with the sentence that a user reads.

use std::path::Path;

use pocketune_formats::peft::Adapter;

use crate::adapter::{CONFIG_OF_PEFT, adapter_tensors};
use crate::handmade::{Place, safetensors};

fn said(folder: &Path) -> String {
    let error = Adapter::open(folder).unwrap_err().to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
    error.replace(&folder.display().to_string(), "DIR")
}

#[test]
fn configurations_that_are_no_plain_lora_are_refused() {
    let replaced = |from: &str, to: &str| {
        assert!(CONFIG_OF_PEFT.contains(from), "{from}");
        CONFIG_OF_PEFT.replace(from, to)
    };
    let cases = [
        ("{".to_string(), "malformed JSON: EOF while parsing an object"),
        ("[]".into(), "malformed JSON: invalid type: sequence, expected a map"),
        ("{}".into(), "the field peft_type is missing"),
        (replaced("\"LORA\"", "null"), "peft_type is null; only \"LORA\" and \"VERA\" are read"),
        (replaced("\"r\": 4", "\"r\": -4"), "r is -4, where a whole number of at least 1 is wanted"),
        (replaced("\"r\": 4", "\"r\": 4.5"), "r is 4.5, where a whole number of at least 1 is wanted"),
        (replaced("\"r\": 4", "\"r\": 1e300"), "r is 1e+300, where a whole number of at least 1 is wanted"),
        (replaced("\"r\": 4", "\"r\": \"4\""), "r is \"4\", where a whole number of at least 1 is wanted"),
        (replaced("\"r\": 4,", ""), "the field r is missing"),
        (
            replaced("\"lora_alpha\": 6", "\"lora_alpha\": -6"),
            "lora_alpha is -6, where a number of at least 0 is wanted",
        ),
        (replaced("\"lora_alpha\": 6", "\"lora_alpha\": 1e999"), "malformed JSON: number out of range"),
        (replaced("[\"v_proj\", \"q_proj\"]", "[1]"), "target_modules is [1], where a list of module names"),
        (replaced("[\"v_proj\", \"q_proj\"]", "null"), "target_modules is null, where a list of module names"),
        (replaced("\"target_modules\": [\"v_proj\", \"q_proj\"],", ""), "the field target_modules is missing"),
        (
            replaced("\"layers_to_transform\": null", "\"layers_to_transform\": {}"),
            "layers_to_transform is {}, where a list",
        ),
        (
            replaced("\"layers_to_transform\": null", "\"layers_to_transform\": [1e30]"),
            "layers_to_transform is [1e+30], where a list",
        ),
        (replaced("\"x/y\"", "7"), "base_model_name_or_path is 7, where a name is wanted"),
        (
            replaced("\"alpha_pattern\": {}", "\"alpha_pattern\": {\"q\": \"1\"}"),
            "alpha_pattern is {\"q\":\"1\"}, where names of modules, each with a number of at least 0",
        ),
        (
            replaced("\"loftq_config\": {}", "\"loftq_config\": {\"a\": 1}"),
            "loftq_config is {\"a\":1}, which pocketune does not support",
        ),
        (
            replaced("\"lora_bias\": false", "\"lora_bias\": true"),
            "lora_bias is true, which pocketune does not support",
        ),
        (
            replaced("\"trainable_token_indices\": null", "\"trainable_token_indices\": [1]"),
            "trainable_token_indices is [1], which",
        ),
        (
            replaced("\"use_qalora\": false", "\"use_qalora\": true"),
            "use_qalora is true, which pocketune does not support",
        ),
        (replaced("\"use_bdlora\": null", "\"\\u001b[2J\": 1"), "\\u{1b}[2J is 1, which pocketune does not support"),
        (format!("{{\"a\": {}", "[".repeat(20_000)), "malformed JSON: recursion limit exceeded"),
        (
            format!("{{\"a\": [{}1]}}", "1,".repeat(33_000)),
            "malformed JSON: 33003 values, where at most 32768 are read",
        ),
    ];
    for (config, sentence) in cases {
        let place = Place::new();
        place.file("adapter_config.json", &config);
        place.file("adapter_model.safetensors", adapter_tensors());
        let line = said(place.path());
        assert!(line.starts_with(&format!("DIR/adapter_config.json: {sentence}")), "{line}");
    }
}

#[test]
fn tensors_that_are_no_pairs_of_the_rank_are_refused() {
    let name = |suffix: &str| format!("base_model.model.x.{suffix}");
    let two = |a: (&str, &str), b: (&str, &str), data: usize| {
        let one = |(name, rest): (&str, &str)| format!(r#""{name}":{{{rest}}}"#);
        safetensors(&format!("{{{},{}}}", one(a), one(b)), data)
    };
    let (a, b) = (name("lora_A.weight"), name("lora_B.weight"));
    let good = r#""dtype":"F32","shape":[4,1],"data_offsets":[0,16]"#;
    let cases = [
        (
            two((&a, good), (&b, r#""dtype":"F32","shape":[4],"data_offsets":[16,32]"#), 32),
            format!("tensor {b:?} has the shape [4], where r = 4 asks for [out, r]"),
        ),
        (
            two((&a, good), (&b, r#""dtype":"F32","shape":[1,2,2],"data_offsets":[16,32]"#), 32),
            format!("tensor {b:?} has the shape [1, 2, 2], where r = 4 asks for [out, r]"),
        ),
        (
            two((&a, good), (&b, r#""dtype":"F32","shape":[4,1],"data_offsets":[16,32]"#), 32),
            format!("tensor {b:?} has the shape [4, 1], where r = 4 asks for [out, r]"),
        ),
        (
            two((&a, good), ("base_model.model.lora_B.weight", r#""dtype":"F32","shape":[1,4],"data_offsets":[16,32]"#), 32),
            "tensor \"base_model.model.lora_B.weight\" is not part of a LoRA pair (names end in .lora_A.weight or .lora_B.weight)".into(),
        ),
        (
            two(("x.lora_A.weight", good), (&b, r#""dtype":"F32","shape":[1,4],"data_offsets":[16,32]"#), 32),
            "tensor \"x.lora_A.weight\" is not part of a LoRA pair (names end in .lora_A.weight or .lora_B.weight)".into(),
        ),
        (
            two((&a, good), (&a, r#""dtype":"F32","shape":[4,1],"data_offsets":[16,32]"#), 32),
            format!("two tensors are named {a:?}"),
        ),
        (
            two((&a, good), (&b, r#""dtype":"I32","shape":[1,4],"data_offsets":[16,32]"#), 32),
            format!("tensor {b:?} has elements of type i32; supported are f32, f16, bf16"),
        ),
        (vec![0; 7], "not a safetensors file: 7 bytes, too short for the length of a header".into()),
    ];
    for (tensors, sentence) in cases {
        let place = Place::new();
        place.file("adapter_config.json", CONFIG_OF_PEFT);
        place.file("adapter_model.safetensors", tensors);
        let line = said(place.path());
        assert!(line.starts_with(&format!("DIR/adapter_model.safetensors: {sentence}")), "{line}");
    }
}

#[test]
fn a_vera_adapter_that_lacks_its_random_matrices_or_a_vector_is_refused() {
    const CONFIG: &str = r#"{"peft_type":"VERA","r":2,"target_modules":["q_proj"]}"#;
    let of = |tensors: &[(&str, &[usize])]| {
        let mut at = 0;
        let entries = tensors.iter().map(|(name, shape)| {
            let (start, bytes) = (at, 4 * shape.iter().product::<usize>());
            at += bytes;
            format!(r#""{name}":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{}]}}"#, start + bytes)
        });
        let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; at]].concat()
    };
    let (d, b) = ("base_model.model.l.q_proj.vera_lambda_d", "base_model.model.l.q_proj.vera_lambda_b");
    let shared: [(&str, &[usize]); 2] = [("base_model.vera_A", &[2, 3]), ("base_model.vera_B", &[4, 2])];
    let with = |vectors: &[(&'static str, &'static [usize])]| of(&[&shared[..], vectors].concat());
    for (config, tensors, sentence) in [
        (
            CONFIG.replace('}', r#","save_projection":false}"#),
            with(&[(d, &[2]), (b, &[4])]),
            "save_projection is false",
        ),
        (CONFIG.into(), of(&[(d, &[2]), (b, &[4])]), "the tensor base_model.vera_A is missing"),
        (CONFIG.into(), with(&[(d, &[2])]), "has a vera_lambda_d but no vera_lambda_b"),
        (CONFIG.into(), with(&[(d, &[3]), (b, &[4])]), "where [2] is wanted"),
        (CONFIG.into(), with(&[(d, &[2]), (b, &[5])]), "where at most [4] is wanted"),
        (CONFIG.into(), with(&[(d, &[2]), (b, &[4]), ("base_model.model.l.lora_A.weight", &[2, 3])]), "is not VeRA's"),
        (CONFIG.into(), with(&[]), "holds no LoRA tensors"),
    ] {
        let place = Place::new();
        place.file("adapter_config.json", config);
        place.file("adapter_model.safetensors", tensors);
        let line = said(place.path());
        assert!(line.contains(sentence), "{line}");
    }
    let place = Place::new();
    place.file("adapter_config.json", CONFIG);
    place.file("adapter_model.safetensors", with(&[(d, &[2]), (b, &[4])]));
    assert!(Adapter::open(place.path()).is_ok());
}
