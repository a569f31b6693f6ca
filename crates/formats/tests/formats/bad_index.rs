//! Handmade bad index files and folders, each with the sentence that a user reads.

use std::path::Path;

use pocketune_formats::ModelFiles;

use crate::handmade::{CONFIG, Place, safetensors};

const INDEX: &str = "model.safetensors.index.json";

fn said(folder: &Path) -> String {
    let error = ModelFiles::open(folder).unwrap_err().to_string();
    assert!(!error.contains(char::is_control), "{error:?}");
    error.replace(&folder.display().to_string(), "DIR")
}

fn with(index: impl AsRef<[u8]>) -> Place {
    let place = Place::new();
    place.file("config.json", CONFIG);
    place.file(INDEX, index);
    let tensor = r#"{"x":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
    place.file("a.safetensors", safetensors(tensor, 4));
    place
}

#[test]
fn an_index_of_another_shape_is_refused() {
    let many: String = (0..1025).map(|i| format!(r#""t{i}":"s{i}","#)).collect();
    let cases = [
        ("[]".to_string(), "malformed JSON: invalid length 0, expected struct Index with 1 element"),
        ("{}".into(), "malformed JSON: missing field `weight_map`"),
        (r#"{"weight_map":[]}"#.into(), "malformed JSON: invalid type: sequence, expected a map"),
        (r#"{"weight_map":{"x":1}}"#.into(), "malformed JSON: invalid type: integer `1`, expected a string"),
        (r#"{"weight_map":{"x":"a.safetensors"}"#.into(), "malformed JSON: EOF while parsing an object"),
        (r#"{"weight_map":{"x":null}}"#.into(), "malformed JSON: invalid type: null, expected a string"),
        (format!(r#"{{"weight_map":{{{many}"x":"a"}}}}"#), "1026 shards, where at most 1024 are read"),
        (
            format!(r#"{{"m":[{}1]}}"#, "1,".repeat(40_000)),
            "malformed JSON: 40003 values, where at most 32768 are read",
        ),
        (format!("{{\"a\":{}", "[".repeat(20_000)), "malformed JSON: EOF while parsing a list"),
        ("{\"weight_map\":{\"x\":\"a\u{0}\"}}".into(), "malformed JSON: control character"),
        ("null".into(), "malformed JSON: invalid type: null, expected struct Index"),
        ("7".into(), "malformed JSON: invalid type: integer `7`, expected struct Index"),
        ("\"weight_map\"".into(), "malformed JSON: invalid type: string \"weight_map\", expected struct Index"),
        (r#"{"weight_map":null}"#.into(), "malformed JSON: invalid type: null, expected a map"),
        (
            r#"{"weight_map":{"x":["a.safetensors"]}}"#.into(),
            "malformed JSON: invalid type: sequence, expected a string",
        ),
        (r#"{"weight_map":{"x":"a"},"weight_map":{}}"#.into(), "malformed JSON: duplicate field `weight_map`"),
        (r#"{"weight_map":{"x":"a"}} {}"#.into(), "malformed JSON: trailing characters"),
        (r#"{"weight_map":{"x":"a",}}"#.into(), "malformed JSON: trailing comma"),
        (r#"{"weight_map":{"x":"\ud800"}}"#.into(), "malformed JSON: unexpected end of hex escape"),
        (r#"{weight_map:{}}"#.into(), "malformed JSON: key must be a string"),
    ];
    for (index, sentence) in cases {
        let line = said(with(&index).path());
        assert!(line.starts_with(&format!("DIR/{INDEX}: {sentence}")), "{line}");
    }
    let large = said(with(vec![b' '; (4 << 20) + 1]).path());
    assert_eq!(large, format!("DIR/{INDEX}: 4194305 bytes, where at most 4194304 are read"));
    assert_eq!(said(with("").path()), format!("DIR/{INDEX}: the file is empty; was its download interrupted?"));
}

#[test]
fn names_that_steer_a_terminal_or_hide_are_refused() {
    for name in
        ["a\\nb", "\\u001b[2J", "a\\u0085", "..\\\\..\\\\a", "\\u0000", "", ".", "./a.safetensors", "a/../b", "a/"]
    {
        let line = said(with(format!(r#"{{"weight_map":{{"x":"{name}"}}}}"#)).path());
        assert!(line.ends_with("is not a plain file name inside the folder"), "{line}");
    }
}

#[cfg(unix)]
#[test]
fn a_shard_that_is_no_file_is_refused_without_waiting_for_it() {
    use std::os::unix::fs::symlink;

    let index = r#"{"weight_map":{"x":"shard"}}"#;
    let place = with(index);
    let shard = place.path().join("shard");
    assert!(std::process::Command::new("mkfifo").arg(&shard).status().unwrap().success());
    assert_eq!(
        said(place.path()),
        "DIR/shard: a FIFO, not a regular file"
            .replace("DIR/shard", &shard.canonicalize().unwrap().display().to_string())
            .replace(&place.path().display().to_string(), "DIR")
    );
    std::fs::remove_file(&shard).unwrap();
    std::fs::create_dir(&shard).unwrap();
    assert!(said(place.path()).ends_with("shard: a folder, not a regular file"));
    std::fs::remove_dir(&shard).unwrap();
    symlink("/dev/zero", &shard).unwrap();
    assert_eq!(said(place.path()), "DIR/shard: a link that leads out of its folder, to /dev/zero");
    std::fs::remove_file(&shard).unwrap();
    symlink("shard", &shard).unwrap();
    assert!(said(place.path()).starts_with("DIR/shard: "), "a link to itself");
    std::fs::remove_file(&shard).unwrap();
    symlink("nowhere", &shard).unwrap();
    assert_eq!(said(place.path()), "DIR/shard: no such file or folder");
}
