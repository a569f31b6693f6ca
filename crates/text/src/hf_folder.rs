//! The tokenizer of a Hugging Face folder: tokenizer.json, and the ends of a text from the small files beside it. It
//! refuses folders without tokenizer.json; older vocabularies (vocab.json with merges.txt, tokenizer.model) are not read.

use crate::error::{Result, TextError};
use crate::tokenizer::Tokenizer;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

/// The largest configuration file that is read; Gemma 3's tokenizer_config.json has 1.2 MB.
const MAX_FILE: u64 = 32 << 20;

/// What tokenizer_config.json says of the ends of a text.
#[derive(Deserialize)]
struct TokenizerConfig {
    bos_token: Option<TokenJson>,
    eos_token: Option<TokenJson>,
}

/// A token, as text or as an object.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenJson {
    Text(String),
    Object { content: String },
}

/// What config.json and generation_config.json say of the ends of a text.
#[derive(Deserialize)]
struct ModelConfig {
    bos_token_id: Option<IdJson>,
    eos_token_id: Option<IdJson>,
}

/// An id, or several of which the first counts.
#[derive(Deserialize)]
#[serde(untagged)]
enum IdJson {
    One(u32),
    Many(Vec<u32>),
}

impl IdJson {
    fn first(&self) -> Option<u32> {
        match self {
            Self::One(id) => Some(*id),
            Self::Many(ids) => ids.first().copied(),
        }
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a Hugging Face model folder. The end of a text is the one that tokenizer_config.json
    /// names; failing that, generation_config.json's or config.json's.
    pub fn from_hf_folder(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            let needed_for = "the tokenizer of a Hugging Face folder is read from it";
            return Err(TextError::MissingFile { path, needed_for });
        }
        let mut tokenizer = Self::from_json_file(&path)?;
        let (mut bos, mut eos) = (None, None);
        if let Some(config) = read_json::<TokenizerConfig>(&folder.join("tokenizer_config.json"))? {
            bos = named(&tokenizer, "bos_token", config.bos_token)?;
            eos = named(&tokenizer, "eos_token", config.eos_token)?;
        }
        for name in ["generation_config.json", "config.json"] {
            if bos.is_some() && eos.is_some() {
                break;
            }
            let Some(config) = read_json::<ModelConfig>(&folder.join(name))? else { continue };
            let known = |id: &u32| tokenizer.token_bytes(*id).is_some();
            bos = bos.or(config.bos_token_id.as_ref().and_then(IdJson::first).filter(known));
            eos = eos.or(config.eos_token_id.as_ref().and_then(IdJson::first).filter(known));
        }
        tokenizer.set_ends(bos, eos);
        Ok(tokenizer)
    }
}

fn named(tokenizer: &Tokenizer, key: &str, token: Option<TokenJson>) -> Result<Option<u32>> {
    let Some(TokenJson::Text(text) | TokenJson::Object { content: text }) = token else { return Ok(None) };
    match tokenizer.token_id(&text) {
        None => Err(TextError::tokenizer(format!("tokenizer_config.json names `{text}` as {key}, which is no token"))),
        found => Ok(found),
    }
}

/// Reads a small JSON file; `None` when there is none.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(reader) = open(path)? else { return Ok(None) };
    let parsed = serde_json::from_reader(reader);
    parsed.map(Some).map_err(|source| TextError::Json { what: path.display().to_string(), source })
}

/// Opens a small file; `None` when there is none.
pub(crate) fn open(path: &Path) -> Result<Option<impl Read + use<>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|source| TextError::io(path, source))?,
    };
    let size = file.metadata().map_err(|source| TextError::io(path, source))?.len();
    if size > MAX_FILE {
        return Err(TextError::TooLarge { what: path.display().to_string(), limit: MAX_FILE });
    }
    Ok(Some(BufReader::new(file.take(MAX_FILE))))
}
