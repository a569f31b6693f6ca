//! A model folder from the Hugging Face Hub: the configuration, the tokenizer and the safetensors, and no other file.
//!
//! One request lists the files of the newest commit of `main` with their sizes and hashes; all files are then fetched from that very
//! commit. Files that the Hub keeps outside git have a SHA-256, which is checked; the small ones in git have a size only.
//! `config.json` comes last, so that a folder which has one is complete. No pickle, no code, no other branch.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::PullError;
use super::http::{Http, MAX_PAGE};
use super::name::is_plain;
use super::part::{Expected, Part, is_there};
use super::progress::Progress;
use super::settings::Settings;

/// What makes a folder a model.
const CONFIG: &str = "config.json";
/// The weights, in one file or by way of a table of several.
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// What else is taken where it is there.
const OPTIONAL: &[&str] = &["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"];
/// The most weights files and bytes of one model.
const MAX_SHARDS: usize = 1024;
const MAX_MODEL: u64 = 256 << 30;

/// Fetches `hf:owner/name` into a folder of its own in `into` and gives that folder's path.
pub fn pull(owner: &str, name: &str, settings: &Settings, into: &Path) -> Result<PathBuf, PullError> {
    let http = Http::new(settings)?;
    let mut repository = Repository::list(owner, name, &http, settings)?;
    let plain = repository.choose()?;
    let folder = into.join(format!("{owner}--{name}"));
    fs::create_dir_all(&folder).map_err(|error| PullError::io(&folder, error))?;
    for file in plain {
        repository.fetch(file, &folder)?;
    }
    if repository.files.contains_key(INDEX) && !repository.files.contains_key(WEIGHTS) {
        for shard in repository.shards(&folder.join(INDEX))? {
            repository.fetch(&shard, &folder)?;
        }
    }
    repository.fetch(CONFIG, &folder)?;
    Ok(folder)
}

/// A commit of a repository, and what is left of the bytes that a model may have.
struct Repository<'a> {
    http: &'a Http,
    token: Option<&'a str>,
    /// The address of the listing.
    listing: String,
    /// What comes before a file's name in its address.
    base: String,
    files: BTreeMap<String, Expected>,
    left: u64,
}

/// The Hub's description of a model.
#[derive(Deserialize)]
struct Description {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

/// A file kept outside git.
#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
}

/// The table of a model in several files.
#[derive(Deserialize)]
struct ShardTable {
    weight_map: BTreeMap<String, String>,
}

impl<'a> Repository<'a> {
    fn list(owner: &str, name: &str, http: &'a Http, settings: &'a Settings) -> Result<Self, PullError> {
        let listing = format!("{}/api/models/{owner}/{name}/revision/main?blobs=true", settings.hub);
        let token = settings.hub_token.as_deref();
        let (_, page) = http.page(&listing, "application/json", token).map_err(|error| explained(error, token))?;
        let description: Description =
            serde_json::from_slice(&page).map_err(|error| PullError::listing(&listing, error))?;
        if !is_plain(&description.sha) {
            return Err(PullError::listing(&listing, "the commit it names is none"));
        }
        let files = description.siblings.into_iter().map(|sibling| {
            let sha256 = sibling.lfs.and_then(|lfs| lfs.sha256).map(|hash| hash.to_ascii_lowercase());
            (sibling.rfilename, Expected { size: sibling.size, sha256 })
        });
        let base = format!("{}/{owner}/{name}/resolve/{}", settings.hub, description.sha);
        Ok(Self { http, token, base, files: files.collect(), left: MAX_MODEL, listing })
    }

    /// The files to fetch before `config.json`, the shards aside.
    fn choose(&self) -> Result<Vec<&'static str>, PullError> {
        let there = |file: &&str| self.files.contains_key(*file);
        if !there(&CONFIG) {
            return Err(PullError::listing(&self.listing, format!("the repository has no {CONFIG}")));
        }
        let weights = [WEIGHTS, INDEX].into_iter().find(there);
        let weights = weights.ok_or_else(|| {
            PullError::listing(&self.listing, format!("the repository has no {WEIGHTS}; other formats are not fetched"))
        })?;
        Ok(OPTIONAL.iter().copied().filter(there).chain([weights]).collect())
    }

    /// The weights files that the table at `path` names.
    fn shards(&self, path: &Path) -> Result<BTreeSet<String>, PullError> {
        let fault = |fault: String| PullError::listing(&self.address(INDEX), fault);
        let size = fs::metadata(path).map_err(|error| PullError::io(path, error))?.len();
        if size > MAX_PAGE {
            return Err(PullError::TooLarge { what: INDEX.to_owned(), limit: MAX_PAGE });
        }
        let table = fs::read(path).map_err(|error| PullError::io(path, error))?;
        let table: ShardTable = serde_json::from_slice(&table).map_err(|error| fault(error.to_string()))?;
        let shards: BTreeSet<String> = table.weight_map.into_values().collect();
        if shards.is_empty() || shards.len() > MAX_SHARDS {
            return Err(fault(format!("{} weights files, where 1 to {MAX_SHARDS} are fetched", shards.len())));
        }
        for shard in &shards {
            if !is_plain(shard) || !shard.ends_with(".safetensors") {
                return Err(fault(format!("{shard:?} is no name of a safetensors file")));
            }
            if !self.files.contains_key(shard) {
                return Err(fault(format!("{shard} is not in the repository")));
            }
        }
        Ok(shards)
    }

    fn address(&self, file: &str) -> String {
        format!("{}/{file}", self.base)
    }

    /// Fetches one file of the listing, unless it is there already.
    fn fetch(&mut self, file: &str, folder: &Path) -> Result<(), PullError> {
        let path = folder.join(file);
        let mut expected = self.files.get(file).cloned().unwrap_or_default();
        if is_there(&path, &expected)? {
            return Ok(());
        }
        let answer = self.http.get(&self.address(file), "*/*", self.token);
        let mut answer = answer.map_err(|error| explained(error, self.token))?;
        expected.size = expected.size.or(answer.linked_size).or(answer.length);
        match (&expected.sha256, answer.linked_sha256) {
            (Some(listed), Some(linked)) if *listed != linked => {
                return Err(PullError::Hash { what: file.to_owned(), expected: listed.clone(), got: linked });
            }
            (None, linked) => expected.sha256 = linked,
            _ => {}
        }
        if is_there(&path, &expected)? {
            return Ok(());
        }
        let progress = Progress::new(file, expected.size);
        let part = Part::receive(file, &mut answer.body, &path, &expected, self.left, Some(progress))?;
        self.left -= part.size;
        if file.ends_with(".safetensors") {
            // An older commit's, if there is one: it must not stand beside a mixture of weights.
            remove_if_there(&folder.join(CONFIG))?;
        }
        part.keep()
    }
}

fn remove_if_there(path: &Path) -> Result<(), PullError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(PullError::io(path, error)),
        _ => Ok(()),
    }
}

/// A refusal of the Hub, with what it usually means.
fn explained(error: PullError, token: Option<&str>) -> PullError {
    let PullError::Status { address, status, .. } = error else { return error };
    let hint = match (status, token) {
        (401 | 403, None) => ": no such model, or one whose terms must be accepted first; then set HF_TOKEN",
        (401 | 403, Some(_)) => ": HF_TOKEN is not valid, or its owner has not accepted the model's terms",
        (404, _) => ": no such model, or no such file in it",
        (429, _) => ": too many requests; try again later",
        _ => "",
    };
    PullError::Status { address, status, hint }
}
