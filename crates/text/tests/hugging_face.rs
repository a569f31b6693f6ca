//! The tokenizer gives the ids of Hugging Face `tokenizers`, on small fixtures of every shape and, where
//! POCKETUNE_TOKENIZERS names a folder of model folders, on full-size ones.

mod nasty;

use pocketune_text::Tokenizer;
use std::path::{Path, PathBuf};

/// Compares ids and decoded text on every nasty text; `extra` is more text.
fn compare(path: &Path, extra: &[String]) {
    let ours = Tokenizer::from_json_file(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let theirs = tokenizers::Tokenizer::from_file(path).unwrap();
    assert_eq!(ours.vocab_size(), theirs.get_vocab(true).values().max().map_or(0, |&id| id as usize + 1));
    for text in nasty::texts().iter().chain(extra) {
        let shown: String = text.chars().take(60).collect();
        for add_special in [true, false] {
            let expected = theirs.encode(text.as_str(), add_special).unwrap();
            let mut ids = Vec::new();
            ours.encode(text, add_special, &mut ids);
            if ids != expected.get_ids() {
                let at = ids.iter().zip(expected.get_ids()).take_while(|(a, b)| a == b).count();
                let around = |ids: &[u32]| ids[at.saturating_sub(3)..(at + 5).min(ids.len())].to_vec();
                let (got, want) = (around(&ids), around(expected.get_ids()));
                let words: Vec<_> = want.iter().map(|&id| theirs.id_to_token(id)).collect();
                panic!("{}: {shown:?} differs at token {at}: {got:?}, not {want:?} {words:?}", path.display());
            }
            for skip_special in [true, false] {
                let expected = theirs.decode(&ids, skip_special).unwrap();
                assert_eq!(ours.decode(&ids, skip_special), expected, "{}: {shown:?}", path.display());
            }
        }
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).with_extension("json")
}

#[test]
fn byte_level_with_single_digits_gives_the_same_ids() {
    compare(&fixture("smollm_like"), &[]);
}

#[test]
fn byte_level_with_stripping_and_normalised_added_tokens_gives_the_same_ids() {
    compare(&fixture("gpt2_like"), &[]);
}

#[test]
fn a_pattern_with_look_ahead_after_nfc_gives_the_same_ids() {
    compare(&fixture("qwen_like"), &[]);
}

#[test]
fn words_taken_whole_and_a_beginning_token_give_the_same_ids() {
    compare(&fixture("llama3_like"), &[]);
}

#[test]
fn sentence_piece_with_a_prepended_mark_gives_the_same_ids() {
    compare(&fixture("llama2_like"), &[]);
}

#[test]
fn sentence_piece_with_metaspace_and_both_ends_gives_the_same_ids() {
    compare(&fixture("mistral_like"), &[]);
}

#[test]
fn sentence_piece_with_runs_as_added_tokens_gives_the_same_ids() {
    compare(&fixture("gemma_like"), &[]);
}

#[test]
fn full_size_tokenizers_give_the_same_ids() {
    let Ok(folder) = std::env::var("POCKETUNE_TOKENIZERS") else {
        println!("skipped: POCKETUNE_TOKENIZERS names no folder of model folders");
        return;
    };
    let extra: Vec<String> =
        std::env::var("POCKETUNE_TEXT").ok().map(|path| std::fs::read_to_string(path).unwrap()).into_iter().collect();
    let mut compared = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().join("tokenizer.json");
        if path.is_file() {
            compare(&path, &extra);
            println!("same ids: {}", path.display());
            compared += 1;
        }
    }
    assert!(compared > 0);
}
