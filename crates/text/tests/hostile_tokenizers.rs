//! Broken and hostile tokenizer files are refused in one line, never by a panic or by memory that a number asks for.

use pocketune_text::Tokenizer;

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
        ("{\"normalizer\": {\"type\": \"Precompiled\"}}".into(), "unknown variant `Precompiled`"),
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
fn deep_nesting_is_refused_rather_than_followed() {
    let deep = "{\"type\": \"Sequence\", \"normalizers\": [".repeat(10_000);
    assert!(refusal(&format!("{{\"normalizer\": {deep}")).contains("recursion limit"));
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
    let line = Tokenizer::from_hf_folder(folder.path()).err().unwrap().to_string();
    assert!(line.contains("tokenizer.json: not found"), "{line}");
}
