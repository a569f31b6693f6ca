//! Text for training: a compact tokenizer, chat templates, data records and the examples made of them.
//!
//! The tokenizer gives the ids of Hugging Face `tokenizers` from packed arrays of a few megabytes, because loading a
//! vocabulary must not cost more than the training step that follows. Nothing here runs a pattern or a template from a
//! file without a bound, and nothing here stays in memory while steps run: that is the caller's part.

mod added;
mod bpe;
mod byte_level;
mod chat;
mod cloze;
mod decode;
mod error;
mod example;
mod gguf;
mod hf_folder;
mod joins;
mod limits;
mod merges;
mod normalize;
mod parts_json;
mod pattern;
mod places;
mod recipes;
mod records;
mod reply;
mod split;
mod to_gguf;
mod tokenizer;
mod tokenizer_json;
mod turns;
mod vocab;

pub use chat::{ChatTemplate, Ends, Rendered};
pub use cloze::Cloze;
pub use decode::Decoder;
pub use error::{Result, TextError};
pub use example::{Example, ExampleMaker, Mask};
pub use hf_folder::generation_ends;
pub use places::Place;
pub use recipes::{Question, Recipe};
pub use records::{Chat, Fields, Form, MAX_LINE, Reading, Record, Records};
pub use reply::reply_ends;
pub use to_gguf::write_gguf;
pub use tokenizer::Tokenizer;
