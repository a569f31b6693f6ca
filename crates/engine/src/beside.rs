//! What travels with an adapter beside its factors: the chat template that it was trained through, and the tokens that end a reply. In a
//! folder these are `chat_template.jinja` and `generation_config.json`, which transformers, PEFT and mlx-lm know by these names; in a GGUF
//! file it is the template alone, as metadata. It refuses templates and lists that are too long, as for models.

use std::path::Path;

use pocketune_formats::folder::Folder;
use pocketune_formats::{Gguf, Mapped};
use pocketune_text::{ChatTemplate, Tokenizer, generation_ends, reply_ends};
use serde_json::json;

use crate::error::Result;
use crate::model::Model;
use crate::store::{FolderWriter, GENERATION, TEMPLATE};

/// A chat template and the ends of a reply, where an adapter has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The template's text.
    pub template: Option<String>,
    /// The tokens that end a reply.
    pub ends: Vec<u32>,
}

impl Beside {
    /// What travels with the adapter at `path`, a folder or a GGUF file.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn of(path: &Path) -> Result<Self> {
        if path.is_file() {
            return Self::of_gguf(path);
        }
        let folder = Folder::open(path)?;
        let template = ChatTemplate::from_folder(&folder)?.map(ChatTemplate::into_source);
        Ok(Self { template, ends: generation_ends(&folder)? })
    }

    fn of_gguf(path: &Path) -> Result<Self> {
        let (gguf, _) = Gguf::read(&Mapped::open(path)?, 0)?;
        let template = ChatTemplate::from_gguf(&gguf)?.map(ChatTemplate::into_source);
        Ok(Self { template, ends: Vec::new() })
    }

    /// Puts it into an adapter's folder. What an earlier adapter there had, and this one has not, goes away.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, folder: &mut FolderWriter) -> Result<()> {
        match &self.template {
            Some(template) => folder.file(TEMPLATE, |out| out.write_all(template.as_bytes()))?,
            None => folder.without(TEMPLATE),
        }
        match self.ends.is_empty() {
            false => folder.file(GENERATION, |out| writeln!(out, "{:#}", json!({ "eos_token_id": self.ends })))?,
            true => folder.without(GENERATION),
        }
        Ok(())
    }
}

/// All tokens that end a reply: the tokenizer's and the template's, and those that the model's folder and the adapter's name.
///
/// # Errors
/// When a file is malformed.
pub fn all_ends(
    model: &Model,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
    adapter: Option<&Path>,
) -> Result<Vec<u32>> {
    let mut ends = reply_ends(tokenizer, template);
    if let Some(folder) = model.files.folder() {
        ends.extend(generation_ends(folder)?);
    }
    if let Some(adapter) = adapter {
        ends.extend(Beside::of(adapter)?.ends);
    }
    Ok(ends)
}
