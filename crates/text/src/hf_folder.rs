//! The tokenizer of a Hugging Face folder: tokenizer.json, and the ends of a text from the small files beside it. It
//! refuses folders without tokenizer.json; older vocabularies (vocab.json with merges.txt, tokenizer.model) are not read. Files are
//! opened as [`Folder`] allows: no links that lead elsewhere, no pipes.

use crate::error::{Result, TextError};
use crate::tokenizer::Tokenizer;
use pocketune_formats::Mapped;
use pocketune_formats::folder::Folder;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::io;

/// The largest configuration file that is read; Gemma 3's tokenizer_config.json has 1.2 MB.
const MAX_FILE: usize = 8 << 20;

/// The largest field that is read of one: parsing may take sixteen times as much.
const MAX_FIELD: usize = 1 << 19;

/// The most tokens that a reply may end with; real models name up to three.
const MAX_ENDS: usize = 64;

/// What tokenizer_config.json says of the ends of a text, not yet parsed.
#[derive(Deserialize)]
struct TokenizerConfig<'a> {
    #[serde(borrow)]
    bos_token: Option<&'a RawValue>,
    #[serde(borrow)]
    eos_token: Option<&'a RawValue>,
    #[serde(borrow)]
    pad_token: Option<&'a RawValue>,
}

/// A token, as text or as an object.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenJson {
    Text(String),
    Object { content: String },
}

/// What config.json and generation_config.json say of the ends of a text, not yet parsed.
#[derive(Deserialize)]
struct ModelConfig<'a> {
    #[serde(borrow)]
    bos_token_id: Option<&'a RawValue>,
    #[serde(borrow)]
    eos_token_id: Option<&'a RawValue>,
}

/// An id, or several of which the first counts.
#[derive(Deserialize)]
#[serde(untagged)]
enum IdJson {
    One(u32),
    Many(Vec<u32>),
}

impl Tokenizer {
    /// Reads the tokenizer of a Hugging Face model folder. The end of a text is the one that tokenizer_config.json
    /// names; failing that, generation_config.json's or config.json's.
    pub fn from_folder(folder: &Folder) -> Result<Self> {
        let Some(file) = folder.stream("tokenizer.json")? else {
            let needed_for = "the tokenizer of a Hugging Face folder is read from it";
            return Err(TextError::MissingFile { path: folder.path().join("tokenizer.json"), needed_for });
        };
        let mut tokenizer =
            Self::from_json_reader(file).map_err(|error| error.of_file(&folder.path().join("tokenizer.json")))?;
        let (mut bos, mut eos) = (None, None);
        let mut what = "tokenizer_config.json";
        if let Some(file) = folder.small(what, MAX_FILE)? {
            let config: TokenizerConfig = parse(what, file.bytes())?;
            bos = named(&tokenizer, "bos_token", field(what, config.bos_token)?)?;
            eos = named(&tokenizer, "eos_token", field(what, config.eos_token)?)?;
        }
        for name in ["generation_config.json", "config.json"] {
            if bos.is_some() && eos.is_some() {
                break;
            }
            what = name;
            let Some(file) = folder.small(what, MAX_FILE)? else { continue };
            let config: ModelConfig = parse(what, file.bytes())?;
            let id = |json| -> Result<Option<u32>> {
                let id = match field(what, json)? {
                    Some(IdJson::One(id)) => Some(id),
                    Some(IdJson::Many(ids)) => ids.first().copied(),
                    None => None,
                };
                Ok(id.filter(|&id| tokenizer.token_bytes(id).is_some()))
            };
            bos = bos.or(id(config.bos_token_id)?);
            eos = eos.or(id(config.eos_token_id)?);
        }
        tokenizer.set_ends(bos, eos);
        Ok(tokenizer)
    }
}

/// The tokens that end a reply by generation_config.json of a folder; none where there is no such file.
///
/// # Errors
/// When the file is malformed or names too many.
pub fn generation_ends(folder: &Folder) -> Result<Vec<u32>> {
    let what = "generation_config.json";
    let Some(file) = folder.small(what, MAX_FILE)? else { return Ok(Vec::new()) };
    let config: ModelConfig = parse(what, file.bytes())?;
    match field(what, config.eos_token_id)? {
        None => Ok(Vec::new()),
        Some(IdJson::One(id)) => Ok(vec![id]),
        Some(IdJson::Many(ids)) if ids.len() <= MAX_ENDS => Ok(ids),
        Some(IdJson::Many(_)) => {
            Err(TextError::TooLarge { what: format!("the list eos_token_id of {what}"), limit: MAX_ENDS as u64 })
        }
    }
}

fn named(tokenizer: &Tokenizer, key: &str, token: Option<TokenJson>) -> Result<Option<u32>> {
    let Some(TokenJson::Text(text) | TokenJson::Object { content: text }) = token else { return Ok(None) };
    match tokenizer.token_id(&text) {
        None => Err(TextError::tokenizer(format!("tokenizer_config.json names {text:?} as {key}, which is no token"))),
        found => Ok(found),
    }
}

/// The token that tokenizer_config.json fills batches with.
pub(crate) fn pad_token(folder: &Folder) -> Result<Option<String>> {
    let what = "tokenizer_config.json";
    let Some(file) = tokenizer_config(folder)? else { return Ok(None) };
    let config: TokenizerConfig = parse(what, file.bytes())?;
    Ok(field(what, config.pad_token)?.map(|token| match token {
        TokenJson::Text(text) | TokenJson::Object { content: text } => text,
    }))
}

/// Parses a small JSON file.
pub(crate) fn parse<'a, T: Deserialize<'a>>(what: &str, bytes: &'a [u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|source| TextError::Json { what: what.into(), source })
}

/// Parses one field of it.
pub(crate) fn field<T: DeserializeOwned>(what: &str, json: Option<&RawValue>) -> Result<Option<T>> {
    match json.map(RawValue::get) {
        None | Some("null") => Ok(None),
        Some(json) if json.len() > MAX_FIELD => {
            Err(TextError::TooLarge { what: format!("a field of {what}"), limit: MAX_FIELD as u64 })
        }
        Some(json) => parse(what, json.as_bytes()).map(Some),
    }
}

/// The text of a small file of a folder; `None` when there is none.
pub(crate) fn text(folder: &Folder, name: &str) -> Result<Option<String>> {
    let Some(file) = folder.small(name, MAX_FILE)? else { return Ok(None) };
    let text = std::str::from_utf8(file.bytes());
    text.map(|text| Some(text.to_owned())).map_err(|error| TextError::io(file.path(), io::Error::other(error)))
}

/// The content of tokenizer_config.json; `None` when there is none.
pub(crate) fn tokenizer_config(folder: &Folder) -> Result<Option<Mapped>> {
    Ok(folder.small("tokenizer_config.json", MAX_FILE)?)
}
