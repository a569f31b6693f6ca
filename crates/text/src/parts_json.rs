//! The small parts of tokenizer.json: normalizer, pre-tokenizer, post-processor and decoder, as the file spells them, and
//! what they become here. It refuses, by name, the kinds that BPE models of language models do not use.

use crate::decode::Decoding;
use crate::error::{Result, TextError};
use crate::limits;
use crate::normalize::Normalizer;
use crate::pattern::Pattern;
use crate::split::{Behavior, GPT2, Prepend, Splitter};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A pattern: literal text or a regular expression.
#[derive(Deserialize)]
pub(crate) enum PatternJson {
    String(String),
    Regex(String),
}

impl PatternJson {
    fn compile(&self) -> Result<Pattern> {
        match self {
            Self::String(text) => Pattern::literal(text),
            Self::Regex(source) => Pattern::regex(source),
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(crate) enum NormalizerJson {
    Sequence {
        normalizers: Vec<NormalizerJson>,
    },
    #[serde(rename = "NFC")]
    Nfc,
    #[serde(rename = "NFD")]
    Nfd,
    #[serde(rename = "NFKC")]
    Nfkc,
    #[serde(rename = "NFKD")]
    Nfkd,
    Lowercase,
    Strip {
        strip_left: bool,
        strip_right: bool,
    },
    Prepend {
        prepend: String,
    },
    Replace {
        pattern: PatternJson,
        content: String,
    },
}

impl NormalizerJson {
    /// Appends what this normalizer does, step by step.
    pub fn steps(self, out: &mut Vec<Normalizer>) -> Result<()> {
        out.push(match self {
            Self::Sequence { normalizers } => return normalizers.into_iter().try_for_each(|each| each.steps(out)),
            Self::Nfc => Normalizer::Nfc,
            Self::Nfd => Normalizer::Nfd,
            Self::Nfkc => Normalizer::Nfkc,
            Self::Nfkd => Normalizer::Nfkd,
            Self::Lowercase => Normalizer::Lowercase,
            Self::Strip { strip_left: left, strip_right: right } => Normalizer::Strip { left, right },
            Self::Prepend { prepend } => {
                limits::check_piece(&prepend)?;
                Normalizer::Prepend(prepend)
            }
            Self::Replace { pattern, content } => {
                limits::check_piece(&content)?;
                Normalizer::Replace { pattern: pattern.compile()?, content }
            }
        });
        limits::check_steps(out, &[])
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(crate) enum PreTokenizerJson {
    Sequence {
        pretokenizers: Vec<PreTokenizerJson>,
    },
    Split {
        pattern: PatternJson,
        behavior: Behavior,
        #[serde(default)]
        invert: bool,
    },
    Digits {
        individual_digits: bool,
    },
    ByteLevel {
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Metaspace {
        replacement: char,
        #[serde(default = "always")]
        prepend_scheme: Prepend,
        add_prefix_space: Option<bool>,
        #[serde(default = "yes")]
        split: bool,
    },
}

fn yes() -> bool {
    true
}

fn always() -> Prepend {
    Prepend::Always
}

impl PreTokenizerJson {
    /// Appends what this pre-tokenizer does, step by step; `byte_level` is set where words become bytes, which must be
    /// the last thing that happens to them.
    pub fn steps(self, out: &mut Vec<Splitter>, byte_level: &mut bool) -> Result<()> {
        if *byte_level {
            return Err(TextError::tokenizer("a pre-tokenizer after ByteLevel is not supported"));
        }
        let isolate = |pattern, behavior| Splitter::Split { pattern, behavior, invert: false };
        match self {
            Self::Sequence { pretokenizers } => {
                pretokenizers.into_iter().try_for_each(|each| each.steps(out, byte_level))?;
            }
            Self::Split { pattern, behavior, invert } => {
                out.push(Splitter::Split { pattern: pattern.compile()?, behavior, invert });
            }
            Self::Digits { individual_digits } => {
                let behavior = if individual_digits { Behavior::Isolated } else { Behavior::Contiguous };
                out.push(isolate(Pattern::regex(r"\p{N}")?, behavior));
            }
            Self::ByteLevel { add_prefix_space, use_regex } => {
                out.extend(add_prefix_space.then_some(Splitter::PrefixSpace));
                if use_regex {
                    out.push(Splitter::isolated(GPT2)?);
                }
                *byte_level = true;
            }
            Self::Metaspace { replacement, prepend_scheme, add_prefix_space, split } => {
                // Older files have only `add_prefix_space`.
                let prepend = if add_prefix_space == Some(false) { Prepend::Never } else { prepend_scheme };
                out.push(Splitter::Mark { mark: replacement, prepend });
                if split {
                    let pattern = Pattern::literal(replacement.encode_utf8(&mut [0; 4]))?;
                    out.push(isolate(pattern, Behavior::MergedWithNext));
                }
            }
        }
        limits::check_steps(&[], out)
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(crate) enum PostProcessorJson {
    Sequence {
        processors: Vec<PostProcessorJson>,
    },
    /// Changes offsets only.
    ByteLevel,
    /// `<s>` before and `</s>` after.
    RobertaProcessing {
        cls: (String, u32),
        sep: (String, u32),
    },
    TemplateProcessing {
        single: Vec<TemplateJson>,
        special_tokens: BTreeMap<String, SpecialJson>,
    },
}

#[derive(Deserialize)]
pub(crate) enum TemplateJson {
    SpecialToken { id: String },
    Sequence {},
}

#[derive(Deserialize)]
pub(crate) struct SpecialJson {
    ids: Vec<u32>,
}

impl PostProcessorJson {
    /// Finds the ids that go before and after every text.
    pub fn around(self, around: &mut (Vec<u32>, Vec<u32>)) -> Result<()> {
        match self {
            Self::ByteLevel => Ok(()),
            Self::RobertaProcessing { cls: (_, cls), sep: (_, sep) } => {
                limits::check_around(2 + around.0.len() + around.1.len())?;
                around.0.insert(0, cls);
                around.1.push(sep);
                Ok(())
            }
            Self::Sequence { processors } => processors.into_iter().try_for_each(|each| each.around(around)),
            Self::TemplateProcessing { single, special_tokens } => {
                let (mut before, mut after, mut past_text) = (Vec::new(), Vec::new(), false);
                for piece in single {
                    let TemplateJson::SpecialToken { id } = piece else {
                        past_text = true;
                        continue;
                    };
                    let token = special_tokens.get(&id).ok_or_else(|| {
                        TextError::tokenizer(format!("the template names `{id}`, which its special_tokens lack"))
                    })?;
                    limits::check_around(before.len() + after.len() + token.ids.len())?;
                    if past_text { &mut after } else { &mut before }.extend_from_slice(&token.ids);
                }
                limits::check_around(before.len() + after.len() + around.0.len() + around.1.len())?;
                // A later processor works on what an earlier one made.
                before.append(&mut around.0);
                around.1.append(&mut after);
                around.0 = before;
                Ok(())
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type")]
pub(crate) enum DecoderJson {
    Sequence {
        decoders: Vec<DecoderJson>,
    },
    ByteLevel,
    ByteFallback,
    Fuse,
    Replace {
        pattern: PatternJson,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Metaspace {
        replacement: char,
        #[serde(default = "always")]
        prepend_scheme: Prepend,
        add_prefix_space: Option<bool>,
    },
}

impl DecoderJson {
    /// Adds what this decoder does.
    pub fn apply(self, decoding: &mut Decoding) -> Result<()> {
        match self {
            Self::Sequence { decoders } => return decoders.into_iter().try_for_each(|each| each.apply(decoding)),
            Self::ByteLevel | Self::Fuse => {}
            Self::ByteFallback => decoding.byte_fallback = true,
            Self::Replace { pattern: PatternJson::String(from), content } => {
                if from.is_empty() {
                    return Err(TextError::tokenizer("a decoder replaces the empty text"));
                }
                limits::check_piece(&content)?;
                decoding.replace = Some((from, content));
            }
            Self::Strip { content, start, stop: 0 } => decoding.strip_start = Some((content, start)),
            Self::Metaspace { replacement, prepend_scheme, add_prefix_space } => {
                decoding.replace = Some((replacement.to_string(), " ".to_owned()));
                let drops = prepend_scheme != Prepend::Never && add_prefix_space != Some(false);
                decoding.drop_in_first = drops.then_some(replacement);
            }
            Self::Replace { .. } => {
                return Err(TextError::tokenizer("a decoder that replaces by regex is not supported"));
            }
            Self::Strip { .. } => return Err(TextError::tokenizer("a decoder that strips the end is not supported")),
        }
        Ok(())
    }
}
