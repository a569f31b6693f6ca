//! Hugging Face folders out: the files of a folder again, with other numbers in some of their tensors. Everything else keeps its bytes, and so every tensor its type. A model that
//! was trained as a GGUF file goes back into the form of the folder that it came from this way ([`write_back`]): rows in Hugging Face's order, and norms as the folder keeps them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use pocketune_formats::{Mapped, ModelFiles, TensorInfo};

use super::room::threads;
use super::rows::Rows;
use super::stream::{Sink, Stream};
use super::tensors::planned;
use crate::error::{Error, Result};
use crate::families::{Config, Family};
use crate::model::Model;
use crate::store::FolderWriter;
use crate::train::Budget;

/// Files of a folder that go along, beside the tensors.
pub const BESIDE: [&str; 11] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
];

/// Writes the numbers of `trained`, the file of a run that was made of the folder `model`, into a folder like that one, within `budget`.
///
/// # Errors
/// When a number is too large for its type, the budget is too small or the disk fails; nothing is left half-written.
pub fn write_back(trained: &ModelFiles, model: &Model, out: &Path, budget: Budget) -> Result<()> {
    let mut all = BTreeMap::new();
    for tensor in planned(model, None)? {
        let missing =
            || Error::Model { path: trained.path().into(), fault: format!("tensor {} is missing", tensor.name) };
        let rows = || Ok::<_, Error>(Rows::find(trained, &tensor.name)?.ok_or_else(missing)?.back(&tensor.rows));
        let name = tensor.rows.name();
        if let Some(twin) = twin(&model.config, name).and_then(|twin| model.files.info(twin)) {
            all.insert(twin.name.to_string(), rows()?);
        }
        all.insert(name.to_string(), rows()?);
    }
    let stream = Stream::new(model.files.path(), threads(model, None, budget)?)?;
    write_files(model, out, |number, sink| {
        copy_with(
            model,
            number,
            sink,
            |name| all.contains_key(name),
            |info, sink| {
                let ty = Rows::find(&model.files, &info.name)?.and_then(|rows| rows.ty());
                match (all.get(&*info.name), ty) {
                    (Some(rows), Some(ty)) => stream.write(rows, None, ty, sink).map(|_| ()),
                    _ => Ok(()),
                }
            },
        )
    })
}

/// What some folders hold the tensor `name` under a second time: the head, where it is the embedding, and the bias of RoBERTa's.
fn twin(config: &Config, name: &str) -> Option<&'static str> {
    match config.family {
        Family::Roberta if name == "lm_head.bias" => Some("lm_head.decoder.bias"),
        Family::Roberta if config.tied && name.ends_with("word_embeddings.weight") => Some("lm_head.decoder.weight"),
        _ if config.tied && name.ends_with("embed_tokens.weight") => Some("lm_head.weight"),
        _ => None,
    }
}

/// Writes a folder like that of `model`: `each` writes its tensors' files by number, and what lies beside them is copied.
pub(super) fn write_files(
    model: &Model,
    out: &Path,
    mut each: impl FnMut(usize, &mut Sink) -> Result<()>,
) -> Result<()> {
    let Some(folder) = model.files.folder() else { return Ok(()) };
    let mut writer = FolderWriter::open(out)?;
    for (number, file) in model.files.files().iter().enumerate() {
        let name = file.path().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let path = out.join(name);
        write_in(&mut writer, name, |file| each(number, &mut Sink::new(file, &path)))?;
    }
    for name in BESIDE {
        if folder.file(name)?.is_none() {
            continue;
        }
        let file = folder.map(name)?;
        let path = out.join(name);
        write_in(&mut writer, name, |out| copy(&file, 0..file.bytes().len(), &mut Sink::new(out, &path)))?;
    }
    writer.commit()
}

/// Copies file number `number` of the model; those tensors that are `changed` are written by `write`, with as many bytes.
pub(super) fn copy_with(
    model: &Model,
    number: usize,
    to: &mut Sink,
    changed: impl Fn(&str) -> bool,
    mut write: impl FnMut(&TensorInfo, &mut Sink) -> Result<()>,
) -> Result<()> {
    let file = &model.files.files()[number];
    let mut tensors: Vec<_> = model.files.tensors().filter(|info| info.file == number && changed(&info.name)).collect();
    tensors.sort_unstable_by_key(|info| info.offset);
    let mut at = 0;
    for info in tensors {
        copy(file, at..info.offset, to)?;
        write(info, to)?;
        at = info.offset + info.bytes;
    }
    copy(file, at..file.bytes().len(), to)
}

/// Copies a range of a file, a little at a time.
fn copy(file: &Mapped, range: std::ops::Range<usize>, to: &mut Sink) -> Result<()> {
    const MANY: usize = 1 << 20;
    for start in range.clone().step_by(MANY) {
        let end = (start + MANY).min(range.end);
        to.put(&file.bytes()[start..end])?;
        file.release(start, end - start);
    }
    Ok(())
}

/// Writes a file of a folder, with errors of our own.
fn write_in(writer: &mut FolderWriter, name: &str, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let mut ours = None;
    let written = writer.file(name, |out| {
        fill(out).map_err(|error| {
            ours = Some(error);
            std::io::ErrorKind::Other.into()
        })
    });
    ours.map_or(written, Err)
}
