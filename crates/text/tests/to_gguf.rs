//! Tokenizers of Hugging Face folders as GGUF metadata: what was written is read back and gives the same ids on nasty text.

mod nasty;

use pocketune_formats::folder::Folder;
use pocketune_formats::gguf::Header;
use pocketune_formats::{Gguf, Mapped};
use pocketune_text::{ChatTemplate, Result, Tokenizer, write_gguf};
use serde_json::{Value, json};

fn folder(files: &[(&str, String)]) -> Folder {
    let held = |(name, text): &(&str, String)| (String::from(*name), Mapped::from_bytes(name, text.as_bytes()));
    Folder::held("model", files.iter().map(held))
}

fn written(folder: &Folder, tokens: usize) -> Result<(Gguf, Vec<String>)> {
    let mut header = Header::default();
    let notes = write_gguf(folder, tokens, &mut header)?;
    let (gguf, _) = Gguf::read(&Mapped::from_bytes("model.gguf", header.finish()), 0).unwrap();
    Ok((gguf, notes))
}

fn ids(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, add_special, &mut ids);
    ids
}

/// Compares on every nasty text, less what GGUF treats differently: the unknown token has a type of its own and is not looked for, and a mark
/// that somebody typed is a space.
fn compare_ids(expected: &Tokenizer, read: &Tokenizer, name: &str) {
    for text in nasty::texts().into_iter().map(|text| text.replace("<unk>", "<un>").replace('▁', "_")) {
        let shown: String = text.chars().take(60).collect();
        for add_special in [false, true] {
            let want = ids(expected, &text, add_special);
            assert_eq!(ids(read, &text, add_special), want, "{name}: {shown:?}");
            assert_eq!(read.decode(&want, true), expected.decode(&want, true), "{name}: {shown:?}");
        }
    }
}

/// A tokenizer comes back under that name; how many rows the embedding has beside the tokens makes no difference.
fn compare(json: &str, model: &str, pre: &str) {
    let folder = folder(&[("tokenizer.json", json.into())]);
    let expected = Tokenizer::from_folder(&folder).unwrap();
    for tokens in [expected.vocab_size(), expected.vocab_size() + 37] {
        let (gguf, notes) = written(&folder, tokens).unwrap();
        assert_eq!(notes, [""; 0]);
        assert_eq!(gguf.meta().get_str("tokenizer.ggml.model").unwrap(), Some(model));
        assert_eq!(gguf.meta().get_str("tokenizer.ggml.pre").unwrap(), Some(pre));
        assert_eq!(gguf.meta().array("tokenizer.ggml.tokens").unwrap().unwrap().len(), tokens);
        compare_ids(&expected, &Tokenizer::from_gguf(&gguf).unwrap(), pre);
    }
}

#[test]
fn byte_level_tokenizers_are_named_by_what_they_do_and_read_text_as_before() {
    compare(include_str!("fixtures/smollm_like.json"), "gpt2", "smollm");
    compare(include_str!("fixtures/qwen_like.json"), "gpt2", "qwen2");
    compare(include_str!("fixtures/llama3_like.json"), "gpt2", "llama-bpe");
}

#[test]
fn sentence_piece_like_tokenizers_read_text_as_before() {
    compare(include_str!("fixtures/llama2_like.json"), "llama", "default");
    compare(include_str!("fixtures/gemma_like.json"), "llama", "default");
}

#[test]
fn ends_padding_and_template_go_along() {
    let json: Value = serde_json::from_str(include_str!("fixtures/smollm_like.json")).unwrap();
    let added: Vec<&str> =
        json["added_tokens"].as_array().unwrap().iter().map(|token| token["content"].as_str().unwrap()).collect();
    let config = json!({
        "bos_token": added[0], "eos_token": { "content": added[1] }, "pad_token": added[1], "chat_template": "{{ messages }}",
    });
    let folder = folder(&[("tokenizer.json", json.to_string()), ("tokenizer_config.json", config.to_string())]);
    let expected = Tokenizer::from_folder(&folder).unwrap();
    let (gguf, _) = written(&folder, expected.vocab_size()).unwrap();
    let read = Tokenizer::from_gguf(&gguf).unwrap();
    assert!(expected.bos().is_some() && expected.eos().is_some());
    assert_eq!((read.bos(), read.eos()), (expected.bos(), expected.eos()));
    let pad = gguf.meta().get_u64("tokenizer.ggml.padding_token_id").unwrap();
    assert_eq!(pad, expected.eos().map(u64::from));
    assert_eq!(gguf.meta().get_str("tokenizer.chat_template").unwrap(), Some("{{ messages }}"));
    assert!(ChatTemplate::from_gguf(&gguf).unwrap().is_some());
}

#[test]
fn what_gguf_has_no_name_for_is_refused_or_noted() {
    let mut json: Value = serde_json::from_str(include_str!("fixtures/smollm_like.json")).unwrap();
    json["added_tokens"][0]["rstrip"] = true.into();
    let (_, notes) = written(&folder(&[("tokenizer.json", json.to_string())]), 1000).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("whitespace"), "{notes:?}");
    let refusal = |json: &Value| {
        written(&folder(&[("tokenizer.json", json.to_string())]), 1000).expect_err("refused").to_string()
    };
    let mut other = json.clone();
    other["pre_tokenizer"] = json!({ "type": "ByteLevel", "add_prefix_space": true, "use_regex": true });
    assert!(refusal(&other).contains("splits text like none"), "{}", refusal(&other));
    let mut other = json.clone();
    other["normalizer"] = json!({ "type": "Lowercase" });
    assert!(refusal(&other).contains("splits text like none"), "{}", refusal(&other));
    let mut other = json;
    other["pre_tokenizer"] = Value::Null;
    assert!(refusal(&other).contains("neither byte-level nor like SentencePiece"), "{}", refusal(&other));
    let missing = written(&folder(&[]), 10).err().unwrap().to_string();
    assert!(missing.contains("tokenizer.json"), "{missing}");
}

#[test]
fn real_tokenizers_read_text_as_before_or_are_refused_by_what_they_do() {
    let Ok(root) = std::env::var("POCKETUNE_TOKENIZERS") else {
        println!("skipped: POCKETUNE_TOKENIZERS names no folder of model folders");
        return;
    };
    let mut written_ones = 0;
    for entry in std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap()) {
        let folder = Folder::open(&entry.path()).unwrap();
        let Ok(expected) = Tokenizer::from_folder(&folder) else { continue };
        let name = entry.file_name().into_string().unwrap();
        match written(&folder, expected.vocab_size()) {
            Ok((gguf, notes)) => {
                println!("{name}: written, {notes:?}");
                compare_ids(&expected, &Tokenizer::from_gguf(&gguf).unwrap(), &name);
                written_ones += 1;
            }
            Err(error) => assert!(error.to_string().contains("GGUF"), "{name}: {error}"),
        }
    }
    assert!(written_ones > 0);
}
