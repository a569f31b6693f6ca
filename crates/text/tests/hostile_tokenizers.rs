//! Broken and hostile tokenizer files are refused in one line, never by a panic or by memory that a number asks for.

use pocketune_formats::folder::Folder;
use pocketune_text::{ChatTemplate, Tokenizer};

fn refusal(json: &str) -> String {
    match Tokenizer::from_json_reader(json.as_bytes()) {
        Ok(_) => panic!("accepted: {json}"),
        Err(error) => error.to_string(),
    }
}

fn model(model: &str) -> String {
    format!("{{\"model\": {model}}}")
}

#[test]
fn what_is_wrong_with_a_file_is_said_in_one_line() {
    let cases = [
        (String::new(), "EOF"),
        ("[]".into(), "expected struct"),
        ("{}".into(), "missing field `model`"),
        (model("{\"type\": \"Unigram\", \"vocab\": []}"), "the model is Unigram; only BPE is supported"),
        (model("{\"vocab\": [[\"a\", 0.5]], \"merges\": []}"), "a BPE vocabulary, from token to id"),
        (model("{\"vocab\": {\"a\": 4294967295}, \"merges\": []}"), "above the limit"),
        (model("{\"vocab\": {\"a\": -1}, \"merges\": []}"), "invalid value"),
        (model("{\"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}"), "two tokens have the id 0"),
        (model("{\"merges\": [], \"vocab\": {}}"), "the merges come before the vocabulary"),
        (
            model("{\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}"),
            "merge 0 speaks of `ab`, which is no token",
        ),
        (model("{\"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]}"), "not two tokens with a space between"),
        (model("{\"vocab\": {\"a\": 0}, \"merges\": [[\"a\"]]}"), "a merge is not a pair"),
        (
            model("{\"vocab\": {}, \"merges\": [], \"unk_token\": \"?\"}"),
            "the unknown token `?` is not in the vocabulary",
        ),
        (model("{\"vocab\": {}, \"merges\": [], \"dropout\": 0.1}"), "dropout"),
        (
            model("{\"vocab\": {}, \"merges\": [], \"end_of_word_suffix\": \"</w>\"}"),
            "a end_of_word_suffix is not supported",
        ),
        (
            "{\"normalizer\": {\"type\": \"Precompiled\"}, \"model\": {\"vocab\": {}, \"merges\": []}}".into(),
            "unknown variant `Precompiled`",
        ),
    ];
    for (json, expected) in cases {
        let line = refusal(&json);
        assert!(line.contains(expected) && !line.contains('\n'), "{json}: {line}");
    }
}

#[test]
fn a_pattern_that_could_run_for_ever_is_refused() {
    let json = r#"{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?=(a+)+$)b"}, "behavior": "Isolated"},
                   "model": {"vocab": {}, "merges": []}}"#;
    assert!(refusal(json).contains("is not supported"));
}

#[test]
fn parts_that_cost_more_than_any_real_ones_are_refused() {
    let with =
        |part: &str, json: &str| format!(r#"{{"{part}": {json}, "model": {{"vocab": {{"a": 0}}, "merges": []}}}}"#);
    let sequence = |part: &str, list: &str, steps: Vec<&str>| {
        with(part, &format!(r#"{{"type": "Sequence", "{list}": [{}]}}"#, steps.join(", ")))
    };
    let split = r#"{"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated"}"#;
    let mark = r#"{"type": "Metaspace", "replacement": "_", "split": false}"#;
    let grow = r#"{"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaa"}"#;
    let long = "x".repeat(257);
    let cases = [
        (
            sequence("normalizer", "normalizers", vec![r#"{"type": "NFC"}"#; 17]),
            "times longer text through normalizers",
        ),
        (
            sequence(
                "normalizer",
                "normalizers",
                vec![r#"{"type": "Strip", "strip_left": true, "strip_right": true}"#; 17],
            ),
            "17 normalizers, where at most 16 are read",
        ),
        (
            sequence("normalizer", "normalizers", vec![grow; 2]),
            "81 times longer text through normalizers, where at most 64 are read",
        ),
        (sequence("pre_tokenizer", "pretokenizers", vec![split; 7]), "7 patterns, where at most 6 are read"),
        (
            sequence("pre_tokenizer", "pretokenizers", vec![mark; 2]),
            "2 splitters that put a mark in front, where at most 1 are read",
        ),
        (
            with("normalizer", &format!(r#"{{"type": "Prepend", "prepend": "{long}"}}"#)),
            "257 bytes that a step puts into the text, where at most 256",
        ),
        (
            with("normalizer", &format!(r#"{{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{long}"}}"#)),
            "257 bytes that a step puts",
        ),
        (
            with("normalizer", r#"{"type": "Replace", "pattern": {"Regex": "a*"}, "content": "b"}"#),
            "it matches the empty text",
        ),
        (
            with("normalizer", r#"{"type": "Replace", "pattern": {"String": ""}, "content": "b"}"#),
            "it matches the empty text",
        ),
        (with("normalizer", r#"{"type": "a\nb"}"#), "unknown variant `a\\nb`"),
        (
            with("decoder", r#"{"type": "Replace", "pattern": {"String": ""}, "content": "b"}"#),
            "a decoder replaces the empty text",
        ),
        (
            with("decoder", r#"{"type": "Replace", "pattern": {"Regex": "a"}, "content": "b"}"#),
            "replaces by regex is not supported",
        ),
        (
            with("decoder", r#"{"type": "Strip", "content": " ", "start": 0, "stop": 1}"#),
            "strips the end is not supported",
        ),
        (
            with("decoder", &format!("[{}0]", "0,".repeat(40_000))),
            "the decoder of tokenizer.json is larger than the limit of 65536 bytes",
        ),
        (
            with(
                "pre_tokenizer",
                &format!(
                    r#"{{"type": "Split", "pattern": {{"Regex": "{}"}}, "behavior": "Isolated"}}"#,
                    "a".repeat(2049)
                ),
            ),
            "it has 2049 bytes, where at most 2048 are read",
        ),
        (
            with("pre_tokenizer", r#"{"type": "Split", "pattern": {"Regex": "(?i)\\w{900}"}, "behavior": "Isolated"}"#),
            "is not supported",
        ),
        (
            with("pre_tokenizer", r#"{"type": "Split", "pattern": {"Regex": "a(?<=b)"}, "behavior": "Isolated"}"#),
            "is not supported",
        ),
        (
            with(
                "pre_tokenizer",
                r#"{"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false}, {"type": "Digits", "individual_digits": true}]}"#,
            ),
            "a pre-tokenizer after ByteLevel is not supported",
        ),
        (
            with(
                "post_processor",
                r#"{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "s"}}], "special_tokens": {}}"#,
            ),
            "the template names `s`, which its special_tokens lack",
        ),
        (
            with(
                "post_processor",
                &format!(
                    r#"{{"type": "TemplateProcessing", "single": [{{"SpecialToken": {{"id": "s"}}}}], "special_tokens": {{"s": {{"ids": [{}1]}}}}}}"#,
                    "1,".repeat(64)
                ),
            ),
            "65 special tokens around every text, where at most 64 are read",
        ),
        (with("added_tokens", r#"[{"id": 524288, "content": "x"}]"#), "token id 524288 is above the limit of 524288"),
        (
            with("added_tokens", &format!(r#"[{{"id": 5, "content": "{}"}}]"#, "x".repeat(1 << 19))),
            "524288 bytes of added tokens, where at most 262144 are read",
        ),
        (
            model(&format!(r#"{{"vocab": {{"{}": 0}}, "merges": []}}"#, "x".repeat(65_537))),
            "a token of 65537 bytes, where at most 65536 are read",
        ),
    ];
    for (json, expected) in cases {
        let line = refusal(&json);
        assert!(line.contains(expected) && !line.contains('\n'), "{expected}: {line}");
    }
}

#[cfg(unix)]
#[test]
fn files_that_are_pipes_or_links_out_of_the_folder_are_refused_without_waiting() {
    use std::os::unix::fs::symlink;
    let folder = tempfile::tempdir().unwrap();
    let open = || Folder::open(folder.path()).unwrap();
    let path = folder.path().join("tokenizer.json");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let line = Tokenizer::from_folder(&open()).err().unwrap().to_string();
    assert!(line.ends_with("tokenizer.json: a FIFO, not a regular file"), "{line}");
    std::fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    let line = Tokenizer::from_folder(&open()).err().unwrap().to_string();
    assert!(line.ends_with("tokenizer.json: a link that leads out of its folder, to /etc/passwd"), "{line}");
    symlink("/dev/zero", folder.path().join("chat_template.jinja")).unwrap();
    let line = ChatTemplate::from_folder(&open()).err().unwrap().to_string();
    assert!(line.contains("chat_template.jinja: a link that leads out"), "{line}");
}

#[test]
fn deep_nesting_is_refused_rather_than_followed() {
    let deep = "{\"type\": \"Sequence\", \"normalizers\": [".repeat(1000) + &"]}".repeat(1000);
    let line = refusal(&format!("{{\"normalizer\": {deep}, \"model\": {{\"vocab\": {{}}, \"merges\": []}}}}"));
    assert!(line.contains("recursion limit"), "{line}");
}

#[test]
fn every_shortened_file_is_refused_without_a_panic() {
    let whole = include_str!("fixtures/gpt2_like.json").trim_end();
    for len in (0..whole.len()).step_by(37).filter(|&len| whole.is_char_boundary(len)) {
        assert!(Tokenizer::from_json_reader(&whole.as_bytes()[..len]).is_err());
    }
    assert!(Tokenizer::from_json_reader(whole.as_bytes()).is_ok());
}

#[test]
fn a_folder_without_its_tokenizer_names_the_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    let line = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).err().unwrap().to_string();
    assert!(line.contains("tokenizer.json: not found"), "{line}");
}
