//! Paths that are no model: what a user reads; and what `inspect` prints of those that are.

use std::path::Path;

use pocketune_formats::inspect::describe;
use pocketune_formats::{Mapped, ModelFiles};

use crate::handmade::{self, CONFIG, HEADER, HEADER_DATA, Place, safetensors};

fn said(path: &Path) -> String {
    let error = ModelFiles::open(path).unwrap_err().to_string();
    error.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&error).to_string()
}

#[test]
fn each_kind_of_wrong_path_has_its_own_sentence() {
    let place = Place::new();
    let ends = "; a model is a .gguf file or a folder with config.json and model.safetensors";
    assert_eq!(said(&place.path().join("nothing")), "no such file or folder");
    assert_eq!(said(&place.file("empty", "")), "the file is empty; was its download interrupted?");
    assert_eq!(said(&place.file("x", "hello")), format!("neither \"GGUF\" nor anything known at its beginning{ends}"));
    assert_eq!(said(&place.file("x", "PK\x03\x04")), format!("a ZIP archive or PyTorch checkpoint{ends}"));
    assert_eq!(
        said(&place.file("x", "version https://git-lfs.github.com/spec/v1\n")),
        format!("a Git LFS pointer instead of the file itself (run `git lfs pull`){ends}")
    );
    assert_eq!(
        said(&place.file("x", "\n<!doctype html>")),
        format!("a web page, perhaps saved by a failed download{ends}")
    );
    assert_eq!(
        said(&place.file("x", safetensors(HEADER, HEADER_DATA))),
        format!("a safetensors file alone, without a configuration (give its folder instead){ends}")
    );
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let place = Place::new();
    let fifo = place.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(said(&fifo), "a FIFO, not a regular file");
    assert_eq!(said(Path::new("/dev/zero")), "a device, not a regular file");
    assert!(Mapped::open(place.path()).unwrap_err().to_string().ends_with("a folder, not a regular file"));
}

#[test]
fn inspect_shows_a_gguf_file() {
    let path = Place::new();
    let path = path.file("m.gguf", handmade::good_gguf());
    let text = describe(&path).unwrap();
    let text = text.strip_prefix(&path.display().to_string()).unwrap();
    let want = r#": GGUF version 3, 0.0 MB, 3 tensors, 133 parameters

Metadata
  general.architecture          llama
  llama.block_count             30
  llama.rope.freq_base          100000.0
  tokenizer.ggml.add_bos_token  true
  tokenizer.ggml.tokens         3 x string: "<s>", "Ġthe", ""
  tokenizer.ggml.scores         3 x f32: 0.0, -1.5, 2.0
  tokenizer.ggml.token_type     3 x i32: 3, 1, -1
  negative                      -7
  latin                         caf�

Tensors
  token_embd.weight   q4_1    3 x 32  60 bytes
  output_norm.weight  f32     5       20 bytes
  odd.weight          iq4_nl  32      18 bytes

By type
  f32     1 tensor, 5 parameters, 0.0 MB
  iq4_nl  1 tensor, 32 parameters, 0.0 MB
  q4_1    1 tensor, 96 parameters, 0.0 MB
"#;
    assert_eq!(text, want);
}

#[test]
fn inspect_escapes_and_cuts_what_a_file_says() {
    let place = Place::new();
    let loud = format!("\x1b[31mred\n{}", "x".repeat(1000));
    let bytes = handmade::gguf(&[handmade::entry("k", handmade::STRING, handmade::string(&loud))], &[], 0);
    let text = describe(&place.file("m.gguf", bytes)).unwrap();
    assert!(text.contains("  k  \\u{1b}[31mred\\nxxx"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 200), "{text}");
}

#[test]
fn inspect_shows_a_folder_and_a_lone_safetensors_file() {
    let place = Place::new();
    place.file("config.json", CONFIG);
    let weights = place.file("model.safetensors", safetensors(HEADER, HEADER_DATA));
    let folder = describe(place.path()).unwrap();
    for line in [
        "Hugging Face folder, 0.0 MB, 3 tensors, 8 parameters",
        "  model_type   \"llama\"",
        "  a  f32   2 x 2  16 bytes",
    ] {
        assert!(folder.contains(line), "{folder}");
    }
    assert!(describe(&weights).unwrap().contains(": safetensors, 0.0 MB, 3 tensors"));
}
