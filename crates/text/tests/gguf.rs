//! Tokenizers in GGUF files: SentencePiece against its own ids, byte-level against the same vocabulary in tokenizer.json,
//! and a real model where POCKETUNE_SMOLLM2 names its file.

mod nasty;

use pocketune_formats::{Gguf, Mapped};
use pocketune_text::{ChatTemplate, Tokenizer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes metadata in the GGUF format, and no tensors.
#[derive(Default)]
struct Writer {
    entries: u64,
    bytes: Vec<u8>,
}

impl Writer {
    fn string(&mut self, text: &str) {
        self.bytes.extend((text.len() as u64).to_le_bytes());
        self.bytes.extend(text.as_bytes());
    }

    fn key(&mut self, key: &str, kind: u32) -> &mut Self {
        self.entries += 1;
        self.string(key);
        self.bytes.extend(kind.to_le_bytes());
        self
    }

    fn text(mut self, key: &str, text: &str) -> Self {
        self.key(key, 8).string(text);
        self
    }

    fn number(mut self, key: &str, number: u32) -> Self {
        self.key(key, 4).bytes.extend(number.to_le_bytes());
        self
    }

    fn array<T>(mut self, key: &str, kind: u32, items: &[T], write: impl Fn(&mut Self, &T)) -> Self {
        self.key(key, 9).bytes.extend(kind.to_le_bytes());
        self.bytes.extend((items.len() as u64).to_le_bytes());
        items.iter().for_each(|item| write(&mut self, item));
        self
    }

    fn texts(self, key: &str, items: &[String]) -> Self {
        self.array(key, 8, items, |writer, item| writer.string(item))
    }

    fn types(self, items: &[i32]) -> Self {
        self.array("tokenizer.ggml.token_type", 5, items, |writer, item| writer.bytes.extend(item.to_le_bytes()))
    }

    fn gguf(self) -> Gguf {
        let mut file = b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        file.extend(self.entries.to_le_bytes());
        file.extend(self.bytes);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, file).unwrap();
        Gguf::read(&Mapped::open(&path).unwrap(), 0).unwrap().0
    }
}

fn list<T>(value: &Value, each: impl Fn(&Value) -> Option<T>) -> Vec<T> {
    value.as_array().unwrap().iter().map(|item| each(item).unwrap()).collect()
}

fn ids(tokenizer: &Tokenizer, text: &str, add_special: bool) -> Vec<u32> {
    let mut ids = Vec::new();
    tokenizer.encode(text, add_special, &mut ids);
    ids
}

#[test]
fn sentence_piece_by_scores_gives_the_ids_of_sentence_piece() {
    let golden: Value = serde_json::from_str(include_str!("fixtures/sentencepiece.json")).unwrap();
    let scores = list(&golden["scores"], |item| item.as_f64().map(|score| score as f32));
    let bos = golden["bos"].as_u64().unwrap() as u32;
    let gguf = Writer::default()
        .text("tokenizer.ggml.model", "llama")
        .texts("tokenizer.ggml.tokens", &list(&golden["tokens"], |item| item.as_str().map(str::to_owned)))
        .array("tokenizer.ggml.scores", 6, &scores, |writer, item| writer.bytes.extend(item.to_le_bytes()))
        .types(&list(&golden["types"], |item| item.as_i64().map(|kind| kind as i32)))
        .number("tokenizer.ggml.bos_token_id", bos)
        .number("tokenizer.ggml.eos_token_id", golden["eos"].as_u64().unwrap() as u32)
        .gguf();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let expected = list(&case["ids"], |item| item.as_u64().map(|id| id as u32));
        assert_eq!(ids(&tokenizer, text, false), expected, "{text:?}");
        assert_eq!(tokenizer.decode(&expected, true), case["decoded"].as_str().unwrap());
        let with_bos = ids(&tokenizer, text, true);
        assert_eq!((with_bos[0], &with_bos[1..]), (bos, &expected[..]));
    }
}

/// The GGUF form of a byte-level tokenizer.json.
fn byte_level(json: &str, pre: &str) -> Writer {
    let json: Value = serde_json::from_str(json).unwrap();
    let mut tokens: BTreeMap<u64, (String, i32)> = BTreeMap::new();
    for (token, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens.insert(id.as_u64().unwrap(), (token.clone(), 1));
    }
    for token in json["added_tokens"].as_array().unwrap() {
        let kind = if token["special"] == true { 3 } else { 4 };
        tokens.insert(token["id"].as_u64().unwrap(), (token["content"].as_str().unwrap().to_owned(), kind));
    }
    let (texts, types): (Vec<String>, Vec<i32>) = tokens.into_values().unzip();
    let merges =
        list(&json["model"]["merges"], |merge| Some(list(merge, |part| part.as_str().map(str::to_owned)).join(" ")));
    Writer::default()
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", pre)
        .texts("tokenizer.ggml.tokens", &texts)
        .types(&types)
        .texts("tokenizer.ggml.merges", &merges)
}

#[test]
fn byte_level_splittings_by_name_give_the_ids_of_their_tokenizer_json() {
    for (json, pre, bos) in [
        (include_str!("fixtures/smollm_like.json"), "smollm", None),
        (include_str!("fixtures/qwen_like.json"), "qwen2", None),
        (include_str!("fixtures/llama3_like.json"), "llama-bpe", Some("<|begin_of_text|>")),
    ] {
        let expected = Tokenizer::from_json_reader(json.as_bytes()).unwrap();
        let bos = bos.map(|bos| expected.token_id(bos).unwrap());
        let writer = byte_level(json, pre);
        let writer = match bos {
            Some(bos) => writer.number("tokenizer.ggml.bos_token_id", bos),
            None => writer,
        };
        let tokenizer = Tokenizer::from_gguf(&writer.gguf()).unwrap();
        for text in nasty::texts() {
            let shown: String = text.chars().take(60).collect();
            assert_eq!(ids(&tokenizer, &text, true), ids(&expected, &text, true), "{pre}: {shown:?}");
            let tokens = ids(&tokenizer, &text, false);
            assert_eq!(tokenizer.decode(&tokens, true), expected.decode(&tokens, true), "{pre}: {shown:?}");
        }
    }
}

#[test]
fn unknown_kinds_are_refused_by_name() {
    let refusal = |writer: Writer| Tokenizer::from_gguf(&writer.gguf()).err().unwrap().to_string();
    let json = include_str!("fixtures/smollm_like.json");
    assert!(refusal(byte_level(json, "novel")).contains("tokenizer.ggml.pre is `novel`"));
    assert!(refusal(Writer::default().text("tokenizer.ggml.model", "t5")).contains("tokenizer.ggml.model is `t5`"));
    assert!(refusal(Writer::default()).contains("no `tokenizer.ggml.model`"));
    let far = byte_level(json, "smollm").number("tokenizer.ggml.eos_token_id", 9_999_999);
    assert!(refusal(far).contains("`tokenizer.ggml.eos_token_id` is 9999999, which is no token"));
}

#[test]
fn smollm2_reads_wikitext_as_it_was_trained_to() {
    let (Ok(model), Ok(text)) = (std::env::var("POCKETUNE_SMOLLM2"), std::env::var("POCKETUNE_TEXT")) else {
        println!("skipped: POCKETUNE_SMOLLM2 and POCKETUNE_TEXT name no GGUF file and no WikiText-2 test text");
        return;
    };
    let (gguf, _) = Gguf::read(&Mapped::open(Path::new(&model)).unwrap(), 0).unwrap();
    let tokenizer = Tokenizer::from_gguf(&gguf).unwrap();
    let text = std::fs::read_to_string(text).unwrap();
    assert_eq!(ids(&tokenizer, &text, true)[..6], [3717, 446, 6356, 2067, 5131, 46]);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    let tokens = ids(&tokenizer, &text, false);
    assert_eq!(tokenizer.decode(&tokens, false), text);
    assert!(ChatTemplate::from_gguf(&gguf).unwrap().is_some());
}
