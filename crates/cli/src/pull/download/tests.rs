//! Pulls from servers on this machine that lie, break off, redirect and refuse; and, with `POCKETUNE_NETWORK=1`, from the real one.
//!
//! Nothing here needs a network unless that variable is set.

mod archives;
mod from_hub;
mod from_pypi;
mod server;

use std::path::Path;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::part::hexadecimal;
use super::settings::Settings;

/// Settings with `variable` pointed at a local server, no proxy and little patience.
fn settings(variables: &[(&str, &str)]) -> Settings {
    let lookup = |asked: &str| variables.iter().find(|(name, _)| *name == asked).map(|(_, value)| (*value).to_owned());
    let settings = Settings::from_lookup(lookup).expect("good settings");
    Settings { patience: Duration::from_millis(500), ..settings }
}

/// The names in a folder, hidden ones too, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries: Vec<_> = std::fs::read_dir(folder).map(|entries| entries.flatten().collect()).unwrap_or_default();
    let mut names: Vec<String> = entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

#[test]
fn a_setting_that_is_no_address_is_named() {
    for variable in ["PIP_INDEX_URL", "HF_ENDPOINT"] {
        let error = Settings::from_lookup(|asked| (asked == variable).then(|| "file:///srv".to_owned()));
        assert_eq!(
            error.expect_err("no address").to_string(),
            format!("{variable}: file:///srv is no http(s) address")
        );
    }
    let empty = Settings::from_lookup(|_| Some(" ".to_owned())).expect("an empty variable is no variable");
    assert_eq!((empty.index.as_str(), empty.hub.as_str()), ("https://pypi.org/simple", "https://huggingface.co"));
    assert!(empty.hub_token.is_none() && empty.certificates.is_none());
}

#[test]
fn a_certificate_file_that_is_none_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("certificates.pem");
    let with = |file: &Path| settings(&[("SSL_CERT_FILE", file.to_str().expect("UTF-8"))]);
    let error = super::http::Http::new(&with(&file)).err().expect("missing").to_string();
    assert!(error.starts_with("SSL_CERT_FILE: ") && error.contains("certificates.pem"), "{error}");
    std::fs::write(&file, "nothing").expect("written");
    let error = super::http::Http::new(&with(&file)).err().expect("empty").to_string();
    assert!(error.ends_with("certificates.pem: no certificate in it"), "{error}");
}

#[test]
fn the_real_model_is_pulled_where_there_is_a_network() {
    if std::env::var("POCKETUNE_NETWORK").as_deref() != Ok("1") {
        eprintln!("skipped: set POCKETUNE_NETWORK=1 to fetch 93 MB");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = super::run("smollm2-135m", Some(folder.path())).expect("fetched");
    assert_eq!(path, folder.path().join("smollm2-135m.gguf"));
    assert_eq!(names(folder.path()), ["smollm2-135m.gguf"]);
    super::run("smollm2-135m", Some(folder.path())).expect("there already");
}
