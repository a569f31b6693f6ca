//! A configuration file. The reader of the command line's crate, which has no library, is built in here.

use super::{Target, accepted};
use crate::seeds::Seed;

#[path = "../../../cli/src/config/yaml.rs"]
mod reader;

pub const TARGET: Target = Target {
    name: "yaml",
    run,
    seeds,
    words: &[
        b": ",
        b"- ",
        b"[",
        b"]",
        b", ",
        b"\"",
        b"'",
        b"#",
        b" #",
        b"~",
        b"null",
        b"&a",
        b"*a",
        b"!!",
        b"|",
        b">",
        b"{",
        b"}",
        b"---\n",
        b"\n",
        b"\r\n",
        b"\t",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\xc2\x85",
        b"\\",
        b"iters: ",
    ],
};

fn run(bytes: &[u8]) -> bool {
    // What is no text is refused where the file is read.
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Some(entries) = accepted(reader::parse(text)) else { return false };
    for value in entries.iter().flat_map(|entry| &entry.values) {
        // A text with both quotes, or with a line's end, has no form here; none comes from a quoted text either.
        if value.contains(['"', '\'', '\n', '\r', '\\', '\t']) {
            continue;
        }
        let back = reader::parse(&format!("key: {}\n", reader::written(value)));
        assert!(back.is_ok_and(|back| back[0].values == [value.as_str()]), "written, {value:?} reads back as another");
    }
    true
}

fn seeds() -> Vec<Seed> {
    vec![
        Seed::common(
            "---\n# all\nmodel: m.gguf # here\niters: 5\nsample: \"a # b: c\"\nlora_targets: [q_proj, 'v_proj']\nkeys:\n  - a\n- b\nnone: ~\n",
        ),
        Seed::common("learning_rate: 1e-4\nmask-prompt: true\nbetween: \"22:00-06:30\"\ndata: 'my notes/é.jsonl'\n"),
    ]
}
