//! The tokenizer that a GGUF file carries: byte-level BPE (`gpt2`, whose splitting is named by `tokenizer.ggml.pre`) and
//! SentencePiece (`llama`, merged by score). Ids are those of the model's own tokenizer, so `qwen2` is normalised as
//! Qwen's is. It refuses kinds of models and names of splittings that it does not know, rather than guess.

use crate::added::AddedToken;
use crate::bpe::{Bpe, Fallback, Rule};
use crate::byte_level;
use crate::decode::Decoding;
use crate::error::{Result, TextError};
use crate::limits;
use crate::merges::Merges;
use crate::normalize::Normalizer;
use crate::split::{GPT2, Splitter};
use crate::tokenizer::{Parts, Tokenizer};
use crate::tokenizer_json::add_merge;
use crate::vocab::Vocab;
use pocketune_formats::{Gguf, Meta, MetaArray};

/// The values of `tokenizer.ggml.token_type` that matter here.
pub(crate) const UNKNOWN: i64 = 2;
pub(crate) const CONTROL: i64 = 3;
pub(crate) const USER_DEFINED: i64 = 4;

/// The mark that SentencePiece writes for a space.
pub(crate) const MARK: &str = "▁";

impl Tokenizer {
    /// Reads the tokenizer from the metadata of a GGUF file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self> {
        let meta = gguf.meta();
        let model = meta.get_str("tokenizer.ggml.model")?.ok_or_else(|| missing("tokenizer.ggml.model"))?;
        let (parts, add_bos) = match model {
            "gpt2" => byte_level_parts(meta)?,
            "llama" => sentence_piece_parts(meta)?,
            other => {
                let reason = format!("tokenizer.ggml.model is `{other}`; only `gpt2` and `llama` are supported");
                return Err(TextError::Tokenizer(reason));
            }
        };
        finish(meta, parts, add_bos)
    }
}

fn missing(key: &str) -> TextError {
    TextError::tokenizer(format!("the file has no `{key}`"))
}

fn array<'a>(meta: &'a Meta, key: &str) -> Result<MetaArray<'a>> {
    meta.array(key)?.ok_or_else(|| missing(key))
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| TextError::tokenizer("a token or a merge is not UTF-8"))
}

/// The tokens: those that BPE makes, those that are found in the text, and the unknown one.
fn tokens(meta: &Meta) -> Result<(Vocab, Vec<AddedToken>, Option<u32>)> {
    let (mut vocab, mut added, mut unk) = (Vocab::new(), Vec::new(), None);
    let types = match meta.array("tokenizer.ggml.token_type")? {
        Some(types) => Some(types.integers()?),
        None => None,
    };
    let mut types = types.into_iter().flatten();
    for (id, bytes) in array(meta, "tokenizer.ggml.tokens")?.strings()?.enumerate() {
        let id = u32::try_from(id).map_err(|_| TextError::tokenizer("the vocabulary is too large"))?;
        match types.next() {
            Some(kind @ (CONTROL | USER_DEFINED)) => {
                added.push(AddedToken {
                    id,
                    content: text(bytes)?.to_owned(),
                    single_word: false,
                    lstrip: false,
                    rstrip: false,
                    normalized: false,
                    special: kind == CONTROL,
                });
                limits::check_added(&added)?;
            }
            kind => {
                vocab.insert(id, bytes)?;
                unk = if kind == Some(UNKNOWN) { Some(id) } else { unk };
            }
        }
    }
    vocab.index();
    Ok((vocab, added, unk))
}

fn byte_level_parts(meta: &Meta) -> Result<(Parts, bool)> {
    let (mut vocab, added, _) = tokens(meta)?;
    let mut merges = Merges::new();
    let mut joined = String::new();
    for merge in array(meta, "tokenizer.ggml.merges")?.strings()? {
        let merge = text(merge)?;
        let (left, right) = merge.split_once(' ').ok_or_else(|| {
            TextError::tokenizer(format!("the merge `{merge}` is not two tokens with a space between"))
        })?;
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        add_merge(&vocab, &mut merges, &joined, left.len())?;
    }
    merges.index();
    vocab.rewrite(byte_level::raw_bytes);

    let name = meta.get_str("tokenizer.ggml.pre")?.unwrap_or("default");
    let splitting = splitting(name)?;
    let bpe = Bpe::new(vocab, Rule::Ranks(merges), Fallback::default(), splitting.ignore_merges, true);
    let splitters = splitting.patterns.iter().map(|pattern| Splitter::isolated(pattern)).collect::<Result<_>>()?;
    let normalizers = splitting.nfc.then_some(Normalizer::Nfc).into_iter().collect();
    let around = (Vec::new(), Vec::new());
    let parts = Parts { bpe, added, normalizers, splitters, decoding: Decoding::default(), around };
    Ok((parts, splitting.add_bos))
}

fn sentence_piece_parts(meta: &Meta) -> Result<(Parts, bool)> {
    let (vocab, added, unk) = tokens(meta)?;
    let scores: Vec<f32> = array(meta, "tokenizer.ggml.scores")?.f32s()?.collect();
    if scores.len() < vocab.len() {
        return Err(TextError::tokenizer(format!("{} tokens have only {} scores", vocab.len(), scores.len())));
    }
    let byte_tokens = Some(Fallback::find_byte_tokens(&vocab));
    let bpe = Bpe::new(vocab, Rule::Scores(scores), Fallback { byte_tokens, unk, fuse_unk: false }, false, false);
    let space_prefix = meta.get_bool("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut normalizers = vec![Normalizer::replace_literal(" ", MARK)?];
    if space_prefix {
        normalizers.insert(0, Normalizer::Prepend(" ".to_owned()));
    }
    let decoding = Decoding {
        replace: Some((MARK.to_owned(), " ".to_owned())),
        byte_fallback: true,
        drop_in_first: None,
        strip_start: space_prefix.then_some((' ', 1)),
    };
    let around = (Vec::new(), Vec::new());
    Ok((Parts { bpe, added, normalizers, splitters: Vec::new(), decoding, around }, true))
}

/// Names the ends of a text, and whether they are added.
fn finish(meta: &Meta, mut parts: Parts, add_bos: bool) -> Result<Tokenizer> {
    let id = |key: &str| -> Result<Option<u32>> {
        let known = |id: &u32| parts.bpe.vocab.bytes(*id).is_some() || parts.added.iter().any(|token| token.id == *id);
        match meta.get_u64(key)?.map(|id| (id, u32::try_from(id).ok().filter(known))) {
            Some((id, None)) => Err(TextError::tokenizer(format!("`{key}` is {id}, which is no token"))),
            found => Ok(found.and_then(|(_, id)| id)),
        }
    };
    let (bos, eos) = (id("tokenizer.ggml.bos_token_id")?, id("tokenizer.ggml.eos_token_id")?);
    if meta.get_bool("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos) {
        parts.around.0.extend(bos);
    }
    if meta.get_bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false) {
        parts.around.1.extend(eos);
    }
    let mut tokenizer = Tokenizer::assemble(parts)?;
    tokenizer.set_ends(bos, eos);
    Ok(tokenizer)
}

/// How a named kind of byte-level tokenizer treats text.
pub(crate) struct Splitting {
    pub patterns: &'static [&'static str],
    pub ignore_merges: bool,
    add_bos: bool,
    pub nfc: bool,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// A name of each splitting that a tokenizer.json may have.
pub(crate) const SPLITTINGS: [&str; 5] = ["gpt-2", "smollm", "llama-bpe", "qwen2", "tekken"];

/// The splittings by their names in llama.cpp, whose list is the format's only definition.
pub(crate) fn splitting(name: &str) -> Result<Splitting> {
    let plain = |patterns| Splitting { patterns, ignore_merges: false, add_bos: false, nfc: false };
    Ok(match name {
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        "gpt-2" | "phi-2" | "olmo" => plain(&[GPT2]),
        "smollm" | "starcoder" | "refact" | "command-r" => plain(&[r"\p{N}", GPT2]),
        "llama-bpe" | "llama3" | "llama-v3" => Splitting { ignore_merges: true, add_bos: true, ..plain(&[LLAMA3]) },
        "qwen2" | "deepseek-r1-qwen" => Splitting { nfc: true, ..plain(&[QWEN2]) },
        "tekken" => Splitting { ignore_merges: true, add_bos: true, ..plain(&[TEKKEN]) },
        other => {
            let reason = format!("tokenizer.ggml.pre is `{other}`, a splitting of text that is not known here");
            return Err(TextError::Tokenizer(reason));
        }
    })
}
