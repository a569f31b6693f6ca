//! The tokenizer: text to ids and back, with the ids that Hugging Face `tokenizers` gives, from compact arrays. The way of
//! the text is: added tokens, normalizers, splitters, BPE. It refuses models that are not BPE, and it never draws at random
//! (BPE dropout).

use crate::added::{AddedToken, AddedTokens, Part};
use crate::bpe::{Bpe, Scratch};
use crate::chat::Ends;
use crate::decode::{Decoder, Decoding};
use crate::error::Result;
use crate::normalize::Normalizer;
use crate::places::{Place, Seeker};
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
        self.encode_places(text, add_special, &[], out);
    }

    /// As [`Tokenizer::encode`], and finds out where `places` of the text, ascending and between characters, lie among the
    /// tokens.
    pub fn encode_places(&self, text: &str, add_special: bool, places: &[usize], out: &mut Vec<u32>) -> Vec<Place> {
        let mut scratch = Scratch::default();
        let mut seeker = Seeker::new(places);
        if add_special {
            out.extend_from_slice(&self.around.0);
        }
        self.added.split_raw(text, &mut |part| match part {
            Part::Token { id, start, end } => {
                seeker.expect(end, |place| place.saturating_sub(start));
                seeker.token(out.len(), end - start);
                out.push(id);
            }
            Part::Text(at, text) => {
                let first = at == 0;
                seeker.expect(at + text.len(), |place| self.width(&text[..place.saturating_sub(at)], first));
                self.encode_text(text, first, &mut scratch, &mut |id, end| {
                    seeker.token(out.len(), end);
                    out.push(id);
                });
            }
        });
        let places = seeker.finish(out.len());
        if add_special {
            out.extend_from_slice(&self.around.1);
        }
        places
    }

    /// The tokens that the model wants before every text.
    pub fn before_text(&self) -> &[u32] {
        &self.around.0
    }

    /// The tokens that the model wants after every text.
    pub(crate) fn after_text(&self) -> &[u32] {
        &self.around.1
    }

    /// Hands over the ids of a text without raw added tokens, each with where it ends in the words that BPE saw.
    fn encode_text(&self, text: &str, first: bool, scratch: &mut Scratch, token: &mut impl FnMut(u32, usize)) {
        let normalized = normalize(&self.normalizers, text);
        let mut done = 0;
        self.added.split_normalized(&normalized, &mut |part| match part {
            Part::Token { id, start, end } => {
                done += end - start;
                token(id, done);
            }
            Part::Text(at, text) => split(&self.splitters, text, first && at == 0, &mut |word| {
                self.bpe.encode(word, scratch, &mut |id, end| token(id, done + end));
                done += word.len();
            }),
        });
    }

    /// How many bytes of words a text comes to: what `encode_text` counts in.
    fn width(&self, text: &str, first: bool) -> usize {
        let mut width = 0;
        let normalized = normalize(&self.normalizers, text);
        self.added.split_normalized(&normalized, &mut |part| match part {
            Part::Token { start, end, .. } => width += end - start,
            Part::Text(at, text) => {
                split(&self.splitters, text, first && at == 0, &mut |word| width += word.len());
            }
        });
        width
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

    /// The texts of the tokens that begin and end a text, as chat templates want them.
    pub fn ends(&self) -> Ends<'_> {
        let text = |id: Option<u32>| {
            id.and_then(|id| self.token_bytes(id)).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or("")
        };
        Ends { bos: text(self.bos), eos: text(self.eos) }
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
            Part::Token { id, .. } if self.token_bytes(id) == Some(text.as_bytes()) => *only = only.or(Some(id)),
            _ => {}
        };
        let mut added = None;
        self.added.split_raw(text, &mut |part| exact(part, &mut added));
        self.added.split_normalized(&normalize(&self.normalizers, text), &mut |part| exact(part, &mut added));
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

pub(crate) fn normalize<'a>(normalizers: &[Normalizer], text: &'a str) -> Cow<'a, str> {
    normalizers.iter().fold(Cow::Borrowed(text), |text, normalizer| normalizer.apply(text))
}
