//! `tokenizer.json`: reading it, and what it then does with text.

use pocketune_text::Tokenizer;

use super::{Target, accepted};
use crate::seeds::Seed;

pub const TARGET: Target = Target {
    name: "tokenizer_json",
    run,
    seeds,
    words: &[
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"\"\"",
        b"\"type\":\"Sequence\"",
        b"\"type\":\"Replace\"",
        b"\"type\":\"Prepend\"",
        b"\"NFKD\"",
        b"\"Lowercase\"",
        b"\"Regex\":",
        b"\"String\":",
        b"(a+)+",
        b"{1000}",
        b"[^a-z]",
        b"(?i)",
        b"|",
        b"\"ByteFallback\"",
        b"\"Metaspace\"",
        b"\"byte_fallback\":true",
        b"\"unk_token\":\"a\"",
        b"\"ignore_merges\":true",
        b"\"fuse_unk\":true",
        b"\\u0000",
        b"\xe2\x96\x81",
    ],
};

/// Text that meets added tokens, spaces, marks, unknown characters and numbers.
const TEXT: &str = "a ab  abc <s>word ▁b\u{301}\u{FDFA} 1234\n<s> \u{1F600}aaaaaaaaaaaaaaaa </s>";

/// Text to ids and back.
pub fn exercise(tokenizer: &Tokenizer) {
    let mut ids = Vec::new();
    tokenizer.encode(TEXT, true, &mut ids);
    let _ = tokenizer.decode(&ids, false);
    let _ = (tokenizer.decode(&ids, true), tokenizer.token_id("<s>"), tokenizer.heap_bytes());
}

fn run(bytes: &[u8]) -> bool {
    let Some(tokenizer) = accepted(Tokenizer::from_json_reader(bytes)) else { return false };
    exercise(&tokenizer);
    true
}

/// A tokenizer of a few tokens with these other parts.
pub fn small(parts: &str) -> String {
    format!(
        r#"{{"added_tokens":[{{"id":8,"content":"<s>","special":true}},{{"id":9,"content":"word","single_word":true,"normalized":true}}],{parts}"model":{{"type":"BPE","dropout":null,"unk_token":"u","fuse_unk":false,"byte_fallback":false,"vocab":{{"u":0,"a":1,"b":2,"ab":3,"▁":4,"▁a":5,"c":6,"abc":7}},"merges":["a b",["▁","a"],"ab c"]}}}}"#
    )
}

fn seeds() -> Vec<Seed> {
    let cheap = [
        "",
        r#""normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},{"type":"Replace","pattern":{"String":" "},"content":"▁"},{"type":"NFC"}]},"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]},"#,
        r#""normalizer":{"type":"Lowercase"},"pre_tokenizer":{"type":"Split","pattern":{"Regex":"[a-z]+|[0-9]{1,3}"},"behavior":"Isolated","invert":false},"#,
        r#""pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":true},"decoder":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},"#,
        r#""pre_tokenizer":{"type":"ByteLevel","add_prefix_space":true,"use_regex":false},"decoder":{"type":"ByteLevel"},"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[8],"tokens":["<s>"]}}},"#,
    ];
    let mut seeds: Vec<Seed> = cheap.iter().map(|parts| Seed::common(small(parts))).collect();
    seeds.push(Seed::rare(include_bytes!("../../../text/tests/fixtures/llama3_like.json")));
    seeds.push(Seed::rare(include_bytes!("../../../text/tests/fixtures/gpt2_like.json")));
    seeds.push(Seed::rare(include_bytes!("../../../text/tests/fixtures/gemma_like.json")));
    seeds
}
