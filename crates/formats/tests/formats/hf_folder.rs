//! Hugging Face folders: shards, missing files, and names that try to lead elsewhere.

use std::path::Path;

use pocketune_formats::ModelFiles;

use crate::handmade::{CONFIG, HEADER, HEADER_DATA, Place, safetensors};

const INDEX: &str = "model.safetensors.index.json";

fn one(name: &str) -> Vec<u8> {
    safetensors(&format!(r#"{{"{name}":{{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]}}}}"#), 4)
}

fn said(folder: &Path) -> String {
    let error = ModelFiles::open(folder).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    error.replace(&folder.display().to_string(), "DIR")
}

/// A folder whose index is `weight_map`, without shards.
fn indexed(weight_map: &str) -> Place {
    let place = Place::new();
    place.file("config.json", CONFIG);
    place.file(INDEX, format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{weight_map}}}"#));
    place
}

#[test]
fn a_sharded_model_opens_and_each_tensor_knows_its_file() {
    let place = indexed(r#"{"x":"b.safetensors","y":"a.safetensors"}"#);
    place.file("a.safetensors", one("y"));
    place.file("b.safetensors", one("x"));
    let model = ModelFiles::open(place.path()).unwrap();
    let x = model.tensor("x").unwrap().unwrap();
    assert!(model.files()[x.file].path().ends_with("b.safetensors"));
    assert_eq!(model.folder().map(|folder| folder.path()), Some(place.path()));
    assert_eq!(model.hf_config().unwrap()["hidden_size"], 2);
}

#[test]
fn an_index_that_disagrees_with_its_shards_is_refused() {
    let place = indexed(r#"{"x":"a.safetensors","y":"b.safetensors"}"#);
    assert_eq!(said(place.path()), "DIR/a.safetensors: no such file or folder");
    place.file("a.safetensors", one("x"));
    place.file("b.safetensors", one("z"));
    assert_eq!(
        said(place.path()),
        format!(
            "DIR/{INDEX}: tensor \"y\" should be in \"b.safetensors\" but is not; is a shard missing or from another model?"
        )
    );
    place.file("b.safetensors", one("x"));
    assert_eq!(said(place.path()), "DIR: two tensors are named \"x\"");
}

#[test]
fn names_in_the_index_that_lead_elsewhere_are_refused() {
    for name in ["../a.safetensors", "/etc/passwd", "sub/a", "..", ".", "", "a/", "C:\\\\a", "a\\u0000"] {
        let place = indexed(&format!(r#"{{"x":"{name}"}}"#));
        let sentence = said(place.path());
        assert!(sentence.ends_with("is not a plain file name inside the folder"), "{name}: {sentence}");
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused_but_those_of_the_hugging_face_cache_are_followed() {
    use std::os::unix::fs::symlink;

    let cache = Place::new();
    let (blobs, snapshot) = (cache.path().join("models--x/blobs"), cache.path().join("models--x/snapshots/0123"));
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::write(blobs.join("aa"), CONFIG).unwrap();
    std::fs::write(blobs.join("bb"), safetensors(HEADER, HEADER_DATA)).unwrap();
    symlink("../../blobs/aa", snapshot.join("config.json")).unwrap();
    symlink("../../blobs/bb", snapshot.join("model.safetensors")).unwrap();
    let model = ModelFiles::open(&snapshot).unwrap();
    assert!(model.files()[0].path().ends_with("snapshots/0123/model.safetensors"));

    let elsewhere = Place::new();
    let target = elsewhere.file("secret", CONFIG).canonicalize().unwrap();
    std::fs::remove_file(snapshot.join("config.json")).unwrap();
    symlink(&target, snapshot.join("config.json")).unwrap();
    assert_eq!(
        said(&snapshot),
        format!("DIR/config.json: a link that leads out of its folder, to {}", target.display())
    );
}

#[test]
fn a_folder_that_lacks_something_says_what_and_what_is_there_instead() {
    let place = Place::new();
    assert_eq!(said(place.path()), "DIR: the folder has no config.json");
    place.file("m.gguf", "GGUF");
    assert_eq!(said(place.path()), "DIR: the folder has no config.json; it has \"m.gguf\": give the path of that file");
    place.file("adapter_config.json", "{}");
    assert_eq!(said(place.path()), "DIR: the folder has no config.json; it is an adapter, not a model");
    place.file("config.json", CONFIG);
    assert_eq!(said(place.path()), "DIR: the folder has no model.safetensors, nor an index of shards");
    place.file("pytorch_model.bin", "x");
    assert_eq!(
        said(place.path()),
        "DIR: the folder has no model.safetensors, nor an index of shards; it has \"pytorch_model.bin\", and only safetensors are read"
    );
    place.file("config.json", "[1]");
    assert!(said(place.path()).starts_with("DIR/config.json: malformed JSON: invalid type: sequence, expected a map"));
    place.file("config.json", vec![b' '; (1 << 20) + 1]);
    assert_eq!(said(place.path()), "DIR/config.json: 1048577 bytes, where at most 1048576 are read");
}
