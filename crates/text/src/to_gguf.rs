//! The tokenizer and the chat template of a Hugging Face folder as the metadata of a GGUF file: byte-level BPE as `gpt2`, with the name of its
//! splitting, SentencePiece-like BPE as `llama`, with scores in the order of its merges. A splitting is known by what it does to a text that
//! tells all of them apart. It refuses tokenizers that GGUF has no name for, rather than write a file that reads text differently; what
//! GGUF can't say of single tokens is left out and handed back as notes.

use crate::added::AddedToken;
use crate::chat::ChatTemplate;
use crate::error::{Result, TextError};
use crate::gguf::{CONTROL, MARK, SPLITTINGS, UNKNOWN, USER_DEFINED, splitting};
use crate::hf_folder;
use crate::normalize::Normalizer;
use crate::split::{Splitter, split};
use crate::tokenizer::{Tokenizer, normalize};
use crate::tokenizer_json::{Before, FileJson, ModelJson};
use pocketune_formats::folder::Folder;
use pocketune_formats::gguf::Header;

/// More values of `tokenizer.ggml.token_type`.
const NORMAL: i64 = 1;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// A text on which no two splittings agree: contractions, digits, cases, marks, ends of lines.
const PROBE: &str = "It's THEY'LL 12345 x99 HelloWorld éÉ 你好 a/b.// http://x?!\n\n  two\r\n \t…」 ½²\n/ e\u{301}";

/// Writes tokenizer and chat template of a folder for a model with an embedding of `tokens` rows, and says what had to be left out.
///
/// # Errors
/// When there is no tokenizer, it is malformed, or GGUF has no name for what it does.
pub fn write_gguf(folder: &Folder, tokens: usize, header: &mut Header) -> Result<Vec<String>> {
    let ends = Ends::of(&Tokenizer::from_folder(folder)?)?;
    let path = folder.path().join("tokenizer.json");
    let Some(file) = folder.stream("tokenizer.json")? else {
        return Err(TextError::MissingFile {
            path,
            needed_for: "the tokenizer of a Hugging Face folder is read from it",
        });
    };
    let mut file = FileJson::read(file)?;
    let before = file.before()?;
    let notes = left_out(&file.added_tokens);
    let list = List::new(&file, tokens);
    if before.byte_level {
        header.text("tokenizer.ggml.model", "gpt2");
        header.text("tokenizer.ggml.pre", named(&before, file.model.ignore_merges)?);
        list.write(header);
        header.texts("tokenizer.ggml.merges", merges(&file).into_iter());
    } else {
        let space_prefix = marks_spaces(&before, &file.model)?;
        header.text("tokenizer.ggml.model", "llama");
        header.text("tokenizer.ggml.pre", "default");
        list.write(header);
        header.floats("tokenizer.ggml.scores", scores(&file.model, tokens).into_iter());
        header.flag("tokenizer.ggml.add_space_prefix", space_prefix);
    }
    ends.write(header);
    if let Some(id) = file.model.unk_token.and_then(|token| file.model.vocab.get(token.as_bytes())) {
        header.number("tokenizer.ggml.unknown_token_id", id as usize);
    }
    if let Some(id) = hf_folder::pad_token(folder)?.and_then(|pad| list.find(&pad)) {
        header.number("tokenizer.ggml.padding_token_id", id);
    }
    if let Some(template) = ChatTemplate::source_in(folder)? {
        header.text("tokenizer.chat_template", &template);
    }
    Ok(notes)
}

/// The ends of a text, and whether they are added to every text.
struct Ends {
    bos: Option<u32>,
    eos: Option<u32>,
    add: [bool; 2],
}

impl Ends {
    fn of(tokenizer: &Tokenizer) -> Result<Self> {
        let end = |named: Option<u32>, around: &[u32]| match *around {
            [] => Ok((named, false)),
            [id] if named.is_none_or(|named| named == id) => Ok((Some(id), true)),
            _ => Err(TextError::tokenizer(format!(
                "tokens {around:?} go around every text, and GGUF knows only one that begins and one that ends it"
            ))),
        };
        let (bos, add_bos) = end(tokenizer.bos(), tokenizer.before_text())?;
        let (eos, add_eos) = end(tokenizer.eos(), tokenizer.after_text())?;
        Ok(Self { bos, eos, add: [add_bos, add_eos] })
    }

    fn write(&self, header: &mut Header) {
        for (key, id) in [("bos", self.bos), ("eos", self.eos)] {
            if let Some(id) = id {
                header.number(&format!("tokenizer.ggml.{key}_token_id"), id as usize);
            }
        }
        header.flag("tokenizer.ggml.add_bos_token", self.add[0]);
        header.flag("tokenizer.ggml.add_eos_token", self.add[1]);
    }
}

/// The tokens in the order of their ids, as many as the model's embedding has rows.
struct List(Vec<(String, i64)>);

impl List {
    fn new(file: &FileJson, tokens: usize) -> Self {
        let model = &file.model;
        let unk = model.unk_token.as_deref();
        let mut list: Vec<(String, i64)> = (0..tokens as u32)
            .map(|id| match model.vocab.bytes(id).map(String::from_utf8_lossy) {
                None => (format!("[PAD{id}]"), UNUSED),
                Some(token) if unk == Some(&*token) && model.byte_fallback => (token.into(), UNKNOWN),
                Some(token) if model.byte_fallback && is_byte(&token) => (token.into(), BYTE),
                Some(token) => (token.into(), NORMAL),
            })
            .collect();
        // One with the mark of a space is never in a text as it was typed: BPE makes it.
        let typed = |token: &&AddedToken| token.special || !token.content.contains(MARK);
        for token in file.added_tokens.iter().filter(typed) {
            if let Some(place) = list.get_mut(token.id as usize)
                && place.1 != UNKNOWN
            {
                *place = (token.content.clone(), if token.special { CONTROL } else { USER_DEFINED });
            }
        }
        Self(list)
    }

    fn write(&self, header: &mut Header) {
        header.texts("tokenizer.ggml.tokens", self.0.iter().map(|(token, _)| token.clone()));
        header.integers("tokenizer.ggml.token_type", self.0.iter().map(|(_, kind)| *kind as i32));
    }

    fn find(&self, token: &str) -> Option<usize> {
        self.0.iter().position(|(text, _)| text == token)
    }
}

/// Whether a token stands for a byte, such as `<0x0A>`.
fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok())
}

/// The merges as GGUF spells them. Added tokens are found before BPE looks, so that no merge with one of them ever applies.
fn merges(file: &FileJson) -> Vec<String> {
    let mut added: Vec<u32> = file.added_tokens.iter().map(|token| token.id).collect();
    added.sort_unstable();
    let word = |id: u32| file.model.vocab.bytes(id).map(String::from_utf8_lossy);
    let apply = |ids: &(u32, u32, u32)| [ids.0, ids.1, ids.2].iter().all(|id| added.binary_search(id).is_err());
    let rules = file.model.merges.iter().filter(apply);
    rules.filter_map(|(left, right, _)| Some(format!("{} {}", word(left)?, word(right)?))).collect()
}

/// A score for every token, higher for those that merge earlier; tokens that no merge makes come last.
fn scores(model: &ModelJson, tokens: usize) -> Vec<f32> {
    let last = -(model.merges.len() as f32) - 1.0;
    let mut scores = vec![last; tokens];
    for (rank, (_, _, new)) in model.merges.iter().enumerate() {
        if let Some(score) = scores.get_mut(new as usize).filter(|score| **score == last) {
            *score = -(rank as f32);
        }
    }
    scores
}

/// The words that a text is split into.
fn words(normalizers: &[Normalizer], splitters: &[Splitter], text: &str) -> Vec<String> {
    let mut words = Vec::new();
    split(splitters, &normalize(normalizers, text), true, &mut |word| words.push(word.to_owned()));
    words
}

/// The name of a byte-level tokenizer's splitting.
fn named(before: &Before, ignore_merges: bool) -> Result<&'static str> {
    let found = words(&before.normalizers, &before.splitters, PROBE);
    for name in SPLITTINGS {
        let known = splitting(name)?;
        let splitters = known.patterns.iter().map(|pattern| Splitter::isolated(pattern)).collect::<Result<Vec<_>>>()?;
        let normalizers: Vec<Normalizer> = known.nfc.then_some(Normalizer::Nfc).into_iter().collect();
        if known.ignore_merges == ignore_merges && words(&normalizers, &splitters, PROBE) == found {
            return Ok(name);
        }
    }
    let known = SPLITTINGS.join(", ");
    Err(TextError::tokenizer(format!("it splits text like none of those that GGUF has a name for here ({known})")))
}

/// Whether a SentencePiece-like tokenizer puts a space before a text.
fn marks_spaces(before: &Before, model: &ModelJson) -> Result<bool> {
    let found = words(&before.normalizers, &before.splitters, "a b").concat();
    match found.replace(MARK, "_").as_str() {
        "_a_b" if model.byte_fallback => Ok(true),
        "a_b" if model.byte_fallback => Ok(false),
        _ => Err(TextError::tokenizer("it is neither byte-level nor like SentencePiece, and GGUF has no name for it")),
    }
}

/// What GGUF can't say of added tokens, one line for each kind.
fn left_out(added: &[AddedToken]) -> Vec<String> {
    let note = |what: &str, tokens: Vec<&AddedToken>| {
        let (first, more) = tokens.split_first()?;
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        Some(format!("GGUF can't say that added tokens {what}: {:?}{more}", first.content))
    };
    let strip = added.iter().filter(|token| token.lstrip || token.rstrip).collect();
    let alone = added.iter().filter(|token| token.single_word).collect();
    let notes =
        [note("take the whitespace beside them along", strip), note("stand only where no letter touches them", alone)];
    notes.into_iter().flatten().collect()
}
