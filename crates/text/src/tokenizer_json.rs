//! tokenizer.json, read as a stream: each entry of the vocabulary and each merge goes straight into the packed arrays, so
//! loading peaks at what the tokenizer keeps. It refuses models other than BPE, files above [`MAX_FILE`], merges that
//! come before the vocabulary they speak of, and BPE options that no language model uses.

use crate::added::AddedToken;
use crate::bpe::{Bpe, Fallback, Rule};
use crate::byte_level;
use crate::decode::Decoding;
use crate::error::{Result, TextError};
use crate::limits;
use crate::merges::Merges;
use crate::normalize::Normalizer;
use crate::parts_json::{DecoderJson, NormalizerJson, PostProcessorJson, PreTokenizerJson};
use crate::split::Splitter;
use crate::tokenizer::{Parts, Tokenizer};
use crate::vocab::Vocab;
use pocketune_formats::mapped;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// The largest tokenizer.json that is read; Gemma 3's has 33 MB.
const MAX_FILE: u64 = 256 << 20;

/// The longest token, and the longest other word; the longest known token has 256 bytes.
const MAX_TOKEN: usize = 1 << 16;

/// The largest part beside vocabulary, merges and added tokens; the largest known have some kilobytes.
const MAX_PART: usize = 1 << 16;

impl Tokenizer {
    /// Reads a Hugging Face tokenizer.json. The file does not name the ends of a text; see [`Tokenizer::from_folder`].
    pub fn from_json_file(path: &Path) -> Result<Self> {
        let file = BufReader::with_capacity(1 << 16, mapped::open_regular(path)?);
        Self::from_json_reader(file).map_err(|error| error.of_file(path))
    }

    /// Reads a Hugging Face tokenizer.json from anything that can be read.
    pub fn from_json_reader(reader: impl BufRead) -> Result<Self> {
        FileJson::read(reader)?.assemble()
    }
}

/// The file; its small parts are kept as text until their size is known, because parsing them takes many times as much.
#[derive(Deserialize)]
pub(crate) struct FileJson {
    #[serde(default, deserialize_with = "read_added")]
    pub added_tokens: Vec<AddedToken>,
    normalizer: Option<Box<RawValue>>,
    pre_tokenizer: Option<Box<RawValue>>,
    post_processor: Option<Box<RawValue>>,
    decoder: Option<Box<RawValue>>,
    #[serde(deserialize_with = "read_model")]
    pub model: ModelJson,
}

/// What is done to text before BPE, and whether words become bytes after it.
pub(crate) struct Before {
    pub normalizers: Vec<Normalizer>,
    pub splitters: Vec<Splitter>,
    pub byte_level: bool,
}

impl FileJson {
    /// Reads the file; no more than [`MAX_FILE`] of it.
    pub fn read(reader: impl BufRead) -> Result<Self> {
        let mut limited = reader.take(MAX_FILE);
        let read = serde_json::from_reader(&mut limited);
        if limited.limit() == 0 {
            return Err(TextError::TooLarge { what: "tokenizer.json".into(), limit: MAX_FILE });
        }
        read.map_err(|source| TextError::Json { what: "tokenizer.json".into(), source })
    }

    /// Normalizers and splitters.
    pub fn before(&mut self) -> Result<Before> {
        let mut before = Before { normalizers: Vec::new(), splitters: Vec::new(), byte_level: false };
        if let Some(json) = part::<NormalizerJson>("normalizer", self.normalizer.take())? {
            json.steps(&mut before.normalizers)?;
        }
        if let Some(json) = part::<PreTokenizerJson>("pre_tokenizer", self.pre_tokenizer.take())? {
            json.steps(&mut before.splitters, &mut before.byte_level)?;
        }
        limits::check_steps(&before.normalizers, &before.splitters)?;
        Ok(before)
    }

    fn assemble(mut self) -> Result<Tokenizer> {
        let Before { normalizers, splitters, byte_level } = self.before()?;
        let (mut decoding, mut around) = (Decoding::default(), (Vec::new(), Vec::new()));
        if let Some(json) = part::<DecoderJson>("decoder", self.decoder)? {
            json.apply(&mut decoding)?;
        }
        if let Some(json) = part::<PostProcessorJson>("post_processor", self.post_processor)? {
            json.around(&mut around)?;
        }
        let bpe = self.model.assemble(byte_level)?;
        Tokenizer::assemble(Parts { bpe, added: self.added_tokens, normalizers, splitters, decoding, around })
    }
}

/// Parses one of the small parts.
fn part<T: DeserializeOwned>(name: &'static str, json: Option<Box<RawValue>>) -> Result<Option<T>> {
    let Some(json) = json else { return Ok(None) };
    if json.get().len() > MAX_PART {
        return Err(TextError::TooLarge { what: format!("the {name} of tokenizer.json"), limit: MAX_PART as u64 });
    }
    serde_json::from_str(json.get())
        .map_err(|source| TextError::Json { what: format!("the {name} of tokenizer.json"), source })
}

/// Reads the added tokens, which are bounded together: the search for them takes some fifty bytes for each of theirs.
fn read_added<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Vec<AddedToken>, D::Error> {
    deserializer.deserialize_seq(AddedVisitor)
}

struct AddedVisitor;

impl<'de> Visitor<'de> for AddedVisitor {
    type Value = Vec<AddedToken>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of added tokens")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Vec<AddedToken>, A::Error> {
        let mut tokens: Vec<AddedToken> = Vec::new();
        while let Some(token) = seq.next_element()? {
            tokens.push(token);
            limits::check_added(&tokens).map_err(Error::custom)?;
        }
        Ok(tokens)
    }
}

/// The `model` part, its tables filled while it is read.
pub(crate) struct ModelJson {
    pub vocab: Vocab,
    pub merges: Merges,
    pub unk_token: Option<String>,
    fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

impl ModelJson {
    fn assemble(self, byte_level: bool) -> Result<Bpe> {
        let Self { mut vocab, merges, unk_token, fuse_unk, byte_fallback, ignore_merges } = self;
        let unk = match unk_token {
            Some(token) => Some(vocab.get(token.as_bytes()).ok_or_else(|| {
                TextError::tokenizer(format!("the unknown token `{token}` is not in the vocabulary"))
            })?),
            None => None,
        };
        let byte_tokens = byte_fallback.then(|| Fallback::find_byte_tokens(&vocab));
        if byte_level {
            vocab.rewrite(byte_level::raw_bytes);
        }
        let fallback = Fallback { byte_tokens, unk, fuse_unk };
        Ok(Bpe::new(vocab, Rule::Ranks(merges), fallback, ignore_merges, byte_level))
    }
}

fn read_model<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<ModelJson, D::Error> {
    deserializer.deserialize_map(ModelVisitor)
}

struct ModelVisitor;

impl<'de> Visitor<'de> for ModelVisitor {
    type Value = ModelJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a BPE model")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<ModelJson, A::Error> {
        let (mut vocab, mut merges) = (None, None);
        let (mut unk_token, mut fuse_unk, mut byte_fallback, mut ignore_merges) = (None, None, None, None);
        let mut key = String::new();
        while map.next_key_seed(TextSeed(&mut key))?.is_some() {
            match (key.as_str(), &vocab) {
                ("type", _) => match map.next_value::<String>()?.as_str() {
                    "BPE" => {}
                    other => return Err(Error::custom(format_args!("the model is {other}; only BPE is supported"))),
                },
                ("vocab", _) => vocab = Some(map.next_value_seed(VocabSeed)?),
                ("merges", Some(vocab)) => merges = Some(map.next_value_seed(MergesSeed(vocab))?),
                ("merges", None) => return Err(Error::custom("the merges come before the vocabulary")),
                ("unk_token", _) => unk_token = map.next_value()?,
                ("fuse_unk", _) => fuse_unk = map.next_value()?,
                ("byte_fallback", _) => byte_fallback = map.next_value()?,
                ("ignore_merges", _) => ignore_merges = map.next_value()?,
                ("dropout", _) => match map.next_value::<Option<f32>>()? {
                    None | Some(0.0) => {}
                    Some(_) => return Err(Error::custom("dropout makes ids random and is not supported")),
                },
                ("continuing_subword_prefix" | "end_of_word_suffix", _) => {
                    if map.next_value::<Option<String>>()?.is_some_and(|affix| !affix.is_empty()) {
                        return Err(Error::custom(format_args!("a {key} is not supported")));
                    }
                }
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(ModelJson {
            vocab: vocab.ok_or_else(|| Error::missing_field("vocab"))?,
            merges: merges.ok_or_else(|| Error::missing_field("merges"))?,
            unk_token,
            fuse_unk: fuse_unk.unwrap_or(false),
            byte_fallback: byte_fallback.unwrap_or(false),
            ignore_merges: ignore_merges.unwrap_or(false),
        })
    }
}

/// Reads `{"token": id, …}` into the arena, one entry at a time.
struct VocabSeed;

impl<'de> DeserializeSeed<'de> for VocabSeed {
    type Value = Vocab;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Vocab, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for VocabSeed {
    type Value = Vocab;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a BPE vocabulary, from token to id")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Vocab, A::Error> {
        let mut vocab = Vocab::new();
        let mut token = String::new();
        while map.next_key_seed(TextSeed(&mut token))?.is_some() {
            let id = map.next_value()?;
            vocab.insert(id, token.as_bytes()).map_err(Error::custom)?;
        }
        vocab.index();
        Ok(vocab)
    }
}

/// Reads a string into a buffer that is reused.
struct TextSeed<'a>(&'a mut String);

impl<'de> DeserializeSeed<'de> for TextSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for TextSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> std::result::Result<(), E> {
        if text.len() > MAX_TOKEN {
            return Err(E::custom(format_args!("a token of {} bytes, where at most {MAX_TOKEN} are read", text.len())));
        }
        self.0.clear();
        self.0.push_str(text);
        Ok(())
    }
}

/// Reads the list of merges against a vocabulary.
struct MergesSeed<'a>(&'a Vocab);

impl<'de> DeserializeSeed<'de> for MergesSeed<'_> {
    type Value = Merges;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Merges, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for MergesSeed<'_> {
    type Value = Merges;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Merges, A::Error> {
        let mut merges = Merges::new();
        let mut joined = String::new();
        while seq.next_element_seed(MergeSeed { vocab: self.0, merges: &mut merges, joined: &mut joined })?.is_some() {}
        merges.index();
        Ok(merges)
    }
}

/// Reads one merge: `"left right"` in older files, `["left", "right"]` in newer ones.
struct MergeSeed<'a> {
    vocab: &'a Vocab,
    merges: &'a mut Merges,
    joined: &'a mut String,
}

impl MergeSeed<'_> {
    /// Adds the merge whose parts are `joined[..cut]` and `joined[cut..]`.
    fn add<E: Error>(self, cut: usize) -> std::result::Result<(), E> {
        add_merge(self.vocab, self.merges, self.joined, cut).map_err(E::custom)
    }
}

/// Adds the merge of `joined[..cut]` with `joined[cut..]`, all three of which must be tokens.
pub(crate) fn add_merge(vocab: &Vocab, merges: &mut Merges, joined: &str, cut: usize) -> Result<()> {
    let find = |part: &str| {
        vocab.get(part.as_bytes()).ok_or_else(|| {
            TextError::tokenizer(format!("merge {} speaks of `{part}`, which is no token", merges.len()))
        })
    };
    let (left, right, new) = (find(&joined[..cut])?, find(&joined[cut..])?, find(joined)?);
    merges.push(left, right, new)
}

impl<'de> DeserializeSeed<'de> for MergeSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for MergeSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge of two tokens")
    }

    fn visit_str<E: Error>(self, text: &str) -> std::result::Result<(), E> {
        match text.split_once(' ') {
            Some((left, right)) if !right.contains(' ') => {
                self.joined.clear();
                self.joined.push_str(left);
                self.joined.push_str(right);
                self.add(left.len())
            }
            _ => Err(E::custom(format_args!("the merge `{text}` is not two tokens with a space between"))),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<(), A::Error> {
        let mut right = String::new();
        if seq.next_element_seed(TextSeed(self.joined))?.is_none()
            || seq.next_element_seed(TextSeed(&mut right))?.is_none()
            || seq.next_element::<IgnoredAny>()?.is_some()
        {
            return Err(Error::custom("a merge is not a pair"));
        }
        let cut = self.joined.len();
        self.joined.push_str(&right);
        self.add(cut)
    }
}
