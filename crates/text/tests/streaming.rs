//! A stream of ids decodes to the same text as the whole, and shows only whole characters on the way.

mod nasty;

use pocketune_text::Tokenizer;
use std::path::Path;

#[test]
fn a_stream_shows_whole_characters_only_and_ends_in_the_same_text() {
    for name in ["qwen_like", "llama2_like", "gemma_like"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/{name}.json"));
        let tokenizer = Tokenizer::from_json_file(&path).unwrap();
        for text in nasty::texts() {
            let mut ids = Vec::new();
            tokenizer.encode(&text, false, &mut ids);
            let (mut streamed, mut decoder) = (String::new(), tokenizer.decoder(false));
            for &id in &ids {
                decoder.push(id, &mut streamed);
                assert!(!streamed.contains('\u{FFFD}') || text.contains('\u{FFFD}'));
            }
            decoder.finish(&mut streamed);
            assert_eq!(streamed, tokenizer.decode(&ids, false));
        }
    }
}

#[test]
fn a_character_that_never_ends_is_shown_as_one_replacement() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/llama2_like.json");
    let tokenizer = Tokenizer::from_json_file(&path).unwrap();
    let byte = |byte: u8| tokenizer.token_id(&format!("<0x{byte:02X}>")).unwrap();
    let (mut shown, mut decoder) = (String::new(), tokenizer.decoder(false));
    for id in [byte(0xF0), byte(0x9F), byte(0x98)] {
        decoder.push(id, &mut shown);
        assert_eq!(shown, "");
    }
    decoder.finish(&mut shown);
    assert_eq!(shown, "\u{FFFD}");
}
