//! The tokenizer: text to ids and back, with the ids that Hugging Face `tokenizers` gives, from compact arrays. The way of
//! the text is: added tokens, normalizers, splitters, BPE. It refuses models that are not BPE, and it never draws at random
//! (BPE dropout).

use crate::added::{AddedToken, AddedTokens, Part};
use crate::bpe::{Bpe, Scratch};
use crate::decode::{Decoder, Decoding};
use crate::error::Result;
use crate::normalize::Normalizer;
use crate::split::{Splitter, split};
use std::borrow::Cow;

/// The parts that a tokenizer is put together from.
pub(crate) struct Parts {
    pub bpe: Bpe,
    pub added: Vec<AddedToken>,
    pub normalizers: Vec<Normalizer>,
    pub splitters: Vec<Splitter>,
    pub decoding: Decoding,
    /// Special tokens before and after every text.
    pub around: (Vec<u32>, Vec<u32>),
}

/// A compact BPE tokenizer.
pub struct Tokenizer {
    bpe: Bpe,
    added: AddedTokens,
    normalizers: Vec<Normalizer>,
    splitters: Vec<Splitter>,
    decoding: Decoding,
    around: (Vec<u32>, Vec<u32>),
    bos: Option<u32>,
    eos: Option<u32>,
}

impl Tokenizer {
    /// Puts a tokenizer together. Added tokens that the vocabulary lacks are given their place in it.
    pub(crate) fn assemble(parts: Parts) -> Result<Self> {
        let Parts { mut bpe, added, normalizers, splitters, decoding, around } = parts;
        for token in &added {
            if bpe.vocab.bytes(token.id).is_none() {
                bpe.vocab.insert(token.id, token.content.as_bytes())?;
            }
        }
        bpe.vocab.shrink();
        let added = AddedTokens::new(&added, |content| normalize(&normalizers, content).into_owned())?;
        Ok(Self { bpe, added, normalizers, splitters, decoding, around, bos: None, eos: None })
    }

    /// Names the tokens that begin and end a text.
    pub(crate) fn set_ends(&mut self, bos: Option<u32>, eos: Option<u32>) {
        (self.bos, self.eos) = (bos, eos);
    }

    /// Appends the ids of a text. With `add_special` the tokens that the model wants around every text are added;
    /// special tokens written in the text are recognised either way.
    pub fn encode(&self, text: &str, add_special: bool, out: &mut Vec<u32>) {
        let mut scratch = Scratch::default();
        if add_special {
            out.extend_from_slice(&self.around.0);
        }
        self.added.split_raw(text, &mut |part| match part {
            Part::Token(id) => out.push(id),
            Part::Text(at, text) => self.encode_text(text, at == 0, &mut scratch, out),
        });
        if add_special {
            out.extend_from_slice(&self.around.1);
        }
    }

    fn encode_text(&self, text: &str, first: bool, scratch: &mut Scratch, out: &mut Vec<u32>) {
        let normalized = normalize(&self.normalizers, text);
        self.added.split_normalized(&normalized, &mut |part| match part {
            Part::Token(id) => out.push(id),
            Part::Text(at, text) => {
                split(&self.splitters, text, first && at == 0, &mut |word| self.bpe.encode(word, scratch, out));
            }
        });
    }

    /// The text of a sequence of ids; bytes that are no UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut out = String::new();
        let mut decoder = self.decoder(skip_special);
        ids.iter().for_each(|&id| decoder.push(id, &mut out));
        decoder.finish(&mut out);
        out
    }

    /// A decoder that takes ids one by one.
    pub fn decoder(&self, skip_special: bool) -> Decoder<'_> {
        Decoder::new(self, skip_special)
    }

    pub(crate) fn decoding(&self) -> &Decoding {
        &self.decoding
    }

    /// The token that ends a text, if the model names one.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// The token that begins a text, if the model names one.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.bpe.vocab.len()
    }

    /// The bytes of a token: raw for byte-level models, as written in the vocabulary for others.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bpe.vocab.bytes(id)
    }

    /// The id of the token with this text.
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let exact = |part: Part<'_>, only: &mut Option<u32>| match part {
            Part::Token(id) if self.token_bytes(id) == Some(text.as_bytes()) => *only = Some(id),
            _ => {}
        };
        let mut added = None;
        self.added.split_raw(text, &mut |part| exact(part, &mut added));
        added.or_else(|| self.bpe.vocab.get(text.as_bytes()))
    }

    /// Whether a token is special: left out of text that is decoded for people.
    pub fn is_special(&self, id: u32) -> bool {
        self.added.is_special(id)
    }

    /// Bytes that the tokenizer holds on the heap, the most that encoding a word adds included; for the memory plan.
    pub fn heap_bytes(&self) -> usize {
        self.bpe.heap_bytes()
            + self.added.heap_bytes()
            + self.normalizers.iter().map(Normalizer::heap_bytes).sum::<usize>()
            + self.splitters.iter().map(Splitter::heap_bytes).sum::<usize>()
            + Scratch::MAX_BYTES
    }
}

fn normalize<'a>(normalizers: &[Normalizer], text: &'a str) -> Cow<'a, str> {
    normalizers.iter().fold(Cow::Borrowed(text), |text, normalizer| normalizer.apply(text))
}
