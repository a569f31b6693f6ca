//! A model as a user names it: its files, its configuration, its tokenizer and its chat template.

use std::path::PathBuf;

use pocketune_formats::folder::Folder;
use pocketune_formats::{Mapped, ModelFiles};
use pocketune_text::{ChatTemplate, Reading, Tokenizer};

use crate::error::{Error, Result};
use crate::families::Config;

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A GGUF file or a Hugging Face folder.
    Path(PathBuf),
    /// A GGUF file, or a Hugging Face folder whose links may lead anywhere: its user says so.
    Linked(PathBuf),
    /// A GGUF file inside the program.
    Embedded {
        /// Its name in messages and adapters.
        name: &'static str,
        /// Its content.
        bytes: &'static [u8],
    },
}

impl Source {
    /// The name for messages and for the adapter's configuration.
    pub fn name(&self) -> String {
        match self {
            Source::Path(path) | Source::Linked(path) => path.display().to_string(),
            Source::Embedded { name, .. } => (*name).into(),
        }
    }
}

/// An opened model; its weights are mapped, not read.
pub struct Model {
    /// Its files.
    pub files: ModelFiles,
    /// Its numbers.
    pub config: Config,
}

impl Model {
    /// Opens a model.
    ///
    /// # Errors
    /// When it is missing, malformed, or of an unknown family.
    pub fn open(source: &Source) -> Result<Self> {
        let files = match source {
            Source::Linked(path) if path.is_dir() => ModelFiles::from_folder(Folder::open_following(path)?)?,
            Source::Path(path) | Source::Linked(path) => ModelFiles::open(path)?,
            Source::Embedded { name, bytes } => ModelFiles::from_gguf(Mapped::from_static(name, bytes))?,
        };
        let config = Config::read(&files)?;
        Ok(Self { files, config })
    }

    /// Checks that it predicts next tokens, as training on text, measuring and generating do.
    ///
    /// # Errors
    /// When it is an encoder.
    pub fn check_next_token(&self) -> Result<()> {
        if !self.config.family.is_encoder() {
            return Ok(());
        }
        let fault = format!(
            "{} is an encoder, which has no next token; train and eval take it with labelled data, as in --task sst2",
            self.config.family.model_type()
        );
        Err(Error::Model { path: self.files.path().into(), fault })
    }

    /// Checks that it can learn from what is read so: an encoder learns from the masked answers of labelled data alone.
    ///
    /// # Errors
    /// When it can't.
    pub fn check_reading(&self, reading: &Reading) -> Result<()> {
        if matches!(reading, Reading::Task(_)) { Ok(()) } else { self.check_next_token() }
    }

    /// Reads its tokenizer, which may know more tokens than the model: Gemma 3 1B's has one for images.
    ///
    /// # Errors
    /// When there is none or it is malformed.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match (self.files.gguf(), self.files.folder()) {
            (Some(gguf), _) => Ok(Tokenizer::from_gguf(gguf)?),
            (None, Some(folder)) => Ok(Tokenizer::from_folder(folder)?),
            (None, None) => unreachable!("a model is a GGUF file or a folder"),
        }
    }

    /// Checks that the model knows every token of a sequence.
    ///
    /// # Errors
    /// The first that lies beyond its embedding, in words.
    pub fn check_tokens(&self, ids: &[u32]) -> std::result::Result<(), String> {
        match ids.iter().find(|&&id| id as usize >= self.config.vocab) {
            None => Ok(()),
            Some(id) => Err(format!("it has token {id}, and the model's embedding {} tokens", self.config.vocab)),
        }
    }

    /// Reads its chat template, where it has one.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn chat_template(&self) -> Result<Option<ChatTemplate>> {
        match (self.files.gguf(), self.files.folder()) {
            (Some(gguf), _) => Ok(ChatTemplate::from_gguf(gguf)?),
            (None, Some(folder)) => Ok(ChatTemplate::from_folder(folder)?),
            (None, None) => unreachable!("a model is a GGUF file or a folder"),
        }
    }
}
