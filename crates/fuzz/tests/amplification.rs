//! Files of megabytes that say much in few bytes: whatever the parser makes of them, it holds at most twice the file plus 16 MiB, and
//! takes under a second. Small inputs, as the fuzzer makes them, would never show it.

use pocketune_fuzz::drive::judge;
use pocketune_fuzz::measure::Counting;
use pocketune_fuzz::seeds::safetensors;
use pocketune_fuzz::targets;

#[global_allocator]
static COUNTING: Counting = Counting;

/// As many of `each` as fit into `bytes`.
fn filled(bytes: usize, each: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for i in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(&each(i));
    }
    text
}

fn keeps_the_rules(target: &str, what: &str, bytes: impl AsRef<[u8]>) {
    let target = targets::ALL.iter().find(|each| each.name == target).unwrap();
    let (verdict, taken) = judge(target, bytes.as_ref());
    println!(
        "{} {what}: {} bytes, held {}, {:?}, {verdict:?}",
        target.name,
        bytes.as_ref().len(),
        taken.bytes,
        taken.time
    );
    assert!(verdict.is_ok(), "{} {what}: {verdict:?}", target.name);
}

#[test]
fn safetensors_headers() {
    let entries = filled((4 << 20) - 200, |i| format!(r#""{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}},"#));
    keeps_the_rules("safetensors", "empty tensors", safetensors(&format!("{{{}}}", entries.trim_end_matches(',')), 0));
    let shape = filled((4 << 20) - 200, |_| "1,".into());
    let one = format!(r#"{{"a":{{"dtype":"U8","shape":[{shape}1],"data_offsets":[0,1]}}}}"#);
    keeps_the_rules("safetensors", "a long shape", safetensors(&one, 1));
    let notes = filled((4 << 20) - 200, |i| format!(r#""{i:x}":"","#));
    keeps_the_rules("safetensors", "notes", safetensors(&format!(r#"{{"__metadata__":{{{notes}"z":""}}}}"#), 0));
}

#[test]
fn gguf_counts() {
    let header = |tensors: u64, entries: u64| {
        [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &entries.to_le_bytes()].concat()
    };
    let name = |i: u64| [&4u64.to_le_bytes()[..], format!("{i:04x}").as_bytes()].concat();
    let mut entries = header(0, 65_536);
    (0..65_536).for_each(|i| entries.extend([&name(i)[..], &0u32.to_le_bytes(), &[1]].concat()));
    keeps_the_rules("gguf", "entries", entries);
    let mut tensors = header(65_536, 0);
    let rest = [1u32.to_le_bytes().as_slice(), &32u64.to_le_bytes(), &20u32.to_le_bytes()].concat();
    (0..65_536u64).for_each(|i| tensors.extend([&name(i)[..], &rest, &(32 * i).to_le_bytes()].concat()));
    tensors.resize(tensors.len().next_multiple_of(32) + 65_536 * 32, 0);
    keeps_the_rules("gguf", "tensors", tensors);
}

#[test]
fn configurations_and_indices() {
    let zeros = filled((1 << 20) - 100, |_| "0,".into());
    keeps_the_rules("config", "zeros", format!("{{\"a\":[{zeros}0]}}"));
    keeps_the_rules("config", "objects", format!("{{\"a\":[{}0]}}", filled(140_000, |_| r#"{"a":0},"#.into())));
    let names = filled(600_000, |i| format!(r#""{i:x}":"a.safetensors","#));
    keeps_the_rules("index", "names", format!(r#"{{"weight_map":{{{names}"x":"b.safetensors"}}}}"#));
    keeps_the_rules(
        "peft",
        "modules",
        format!(
            r#"{{"peft_type":"LORA","r":1,"lora_alpha":1,"target_modules":[{}"a"]}}"#,
            filled(120_000, |_| r#""a","#.into())
        ),
    );
    keeps_the_rules("records", "zeros", format!("{{\"text\": \"a\", \"x\": [{zeros}0]}}"));
    keeps_the_rules(
        "records",
        "objects",
        format!("{{\"messages\": [{}0]}}", filled(140_000, |_| r#"{"a":0},"#.into())),
    );
    keeps_the_rules("records", "one long text", format!("{{\"text\": \"{}\"}}", "a,[{".repeat(2 << 20)));
}

#[test]
fn tokenizer_configurations() {
    let zeros = filled(8 << 20, |_| "0,".into());
    for field in ["bos_token", "chat_template", "added_tokens_decoder"] {
        let text = format!("{{\"{field}\":[{}0]}}", &zeros[..(8 << 20) - 100]);
        keeps_the_rules("tokenizer_config", field, text);
        let text = format!("{{\"{field}\":[{}0]}}", &zeros[..(1 << 19) - 100]);
        keeps_the_rules("tokenizer_config", field, text);
    }
}

#[test]
fn tokenizers() {
    let file = |parts: &str, model: &str| format!(r#"{{{parts}"model":{{"type":"BPE",{model}}}}}"#);
    let small = r#""vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]"#;
    let zeros = filled(8 << 20, |_| "0,".into());
    keeps_the_rules("tokenizer_json", "far ids", file("", r#""vocab":{"a":524287},"merges":[]"#));
    let tokens = filled(7 << 20, |i| format!(r#""{i:x}":{i},"#));
    keeps_the_rules("tokenizer_json", "tokens", file("", &format!(r#""vocab":{{{tokens}"-":524287}},"merges":[]"#)));
    let merges = filled(12 << 20, |_| r#""a b","#.into());
    keeps_the_rules(
        "tokenizer_json",
        "merges",
        file("", &format!(r#""vocab":{{"a":0,"b":1,"ab":2}},"merges":[{merges}"a b"]"#)),
    );
    for part in ["normalizer", "pre_tokenizer", "post_processor", "decoder"] {
        keeps_the_rules(
            "tokenizer_json",
            part,
            file(&format!(r#""{part}":{{"type":"Sequence","x":[{zeros}0]}},"#), small),
        );
    }
    let added = filled(4 << 20, |i| format!(r#"{{"id":{},"content":"{i:x}"}},"#, 10 + i));
    keeps_the_rules(
        "tokenizer_json",
        "added tokens",
        file(&format!(r#""added_tokens":[{}],"#, added.trim_end_matches(',')), small),
    );
    let added = filled(800_000, |i| format!(r#"{{"id":{},"content":"{i:08x}"}},"#, 10 + i));
    keeps_the_rules(
        "tokenizer_json",
        "some added tokens",
        file(&format!(r#""added_tokens":[{}],"#, added.trim_end_matches(',')), small),
    );
    let long = "x".repeat(8 << 20);
    keeps_the_rules("tokenizer_json", "a long token", file("", &format!(r#""vocab":{{"{long}":0}},"merges":[]"#)));
    keeps_the_rules("tokenizer_json", "a long key", file("", &format!(r#""{long}":0,{small}"#)));
    keeps_the_rules(
        "tokenizer_json",
        "a long added token",
        file(&format!(r#""added_tokens":[{{"id":5,"content":"{long}"}}],"#), small),
    );
    let ids = "1,".repeat(1000);
    let repeated = r#"{"SpecialToken":{"id":"s"}},"#.repeat(1000);
    let around = format!(
        r#""post_processor":{{"type":"TemplateProcessing","single":[{repeated}{{"Sequence":{{}}}}],"special_tokens":{{"s":{{"ids":[{ids}1]}}}}}},"#
    );
    keeps_the_rules("tokenizer_json", "special tokens around", file(&around, small));
}

#[test]
fn patterns_and_steps_of_tokenizers() {
    let file = |parts: &str| format!(r#"{{{parts},"model":{{"type":"BPE","vocab":{{"a":0}},"merges":[]}}}}"#);
    let split =
        |pattern: &str| format!(r#"{{"type":"Split","pattern":{{"Regex":"{pattern}"}},"behavior":"Isolated"}}"#);
    let sequence = |steps: Vec<String>| {
        file(&format!(r#""pre_tokenizer":{{"type":"Sequence","pretokenizers":[{}]}}"#, steps.join(",")))
    };
    let dear = [
        r"\\p{L}".repeat(340),
        r"(?i)\\w{30}".into(),
        r"(\\p{L}|\\p{N}){20}".into(),
        r"[^\\s\\p{L}]+".repeat(100),
        "a{1000}{1000}".into(),
    ];
    for pattern in &dear {
        for count in [1, 6, 40] {
            keeps_the_rules("tokenizer_json", &pattern[..8], sequence(vec![split(pattern); count]));
        }
    }
    keeps_the_rules("tokenizer_json", "thirds", sequence(vec![split(r"(?i)[a-z\\p{Lu}]{12}"); 6]));
    let double = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aaaaaaaaaaaaaaaa"}"#;
    for count in [1, 2, 16, 1000] {
        let steps = vec![double; count].join(",");
        keeps_the_rules(
            "tokenizer_json",
            "replacements",
            file(&format!(r#""normalizer":{{"type":"Sequence","normalizers":[{steps}]}}"#)),
        );
    }
    let marks = ["▁", "_", "-"].map(|mark| {
        format!(r#"{{"type":"Metaspace","replacement":"{mark}","prepend_scheme":"always"}},{}"#, split("[^x]"))
    });
    keeps_the_rules("tokenizer_json", "marks", sequence(marks.to_vec()));
}

#[test]
fn configurations() {
    keeps_the_rules("yaml", "keys", filled(1 << 20, |i| format!("{i:x}:\n")));
    keeps_the_rules("yaml", "a list", format!("a: [{}]", "b,".repeat(1 << 19)));
    keeps_the_rules("yaml", "dashes", format!("a:\n{}", "- b\n".repeat(1 << 18)));
    keeps_the_rules("yaml", "a long value", format!("a: {}", "b ".repeat(1 << 19)));
}

#[test]
fn checkpoints() {
    let file = |header: &str| {
        let before = [b"pocketune state\n", &(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        // The checksum is mended by the target.
        [&before[..], &[0; 32]].concat()
    };
    let terms = filled((1 << 20) - 200, |i| format!(r#""{i:x}":"","#));
    keeps_the_rules("checkpoint", "terms", file(&format!(r#"{{"format":1,"terms":{{{terms}"z":""}}}}"#)));
    let zeros = filled((1 << 20) - 200, |_| "0,".into());
    keeps_the_rules("checkpoint", "an unknown list", file(&format!(r#"{{"format":1,"x":[{zeros}0]}}"#)));
}

#[test]
fn adapters_of_mlx() {
    let zeros = filled((1 << 20) - 200, |_| "0,".into());
    keeps_the_rules("mlx", "a list", format!("{{\"lora_parameters\":{{\"scale\":1.0,\"keys\":[{zeros}0]}}}}\n---\n"));
    let objects = filled((1 << 20) - 200, |i| format!(r#""{i:x}":{{}},"#));
    keeps_the_rules("mlx", "objects", format!("{{{objects}\"lora_parameters\":{{\"scale\":1.0}}}}\n---\n"));
}
