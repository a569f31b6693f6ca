//! A model as a GGUF file in another type.

use std::path::Path;

use pocketune_formats::BlockType;
use pocketune_formats::gguf::{ALIGNMENT, Header};

use super::change::Changes;
use super::description::{describe, rope_divisors};
use super::room::threads;
use super::stream::{Sink, Stream};
use super::tensors::{Planned, planned};
use super::types::Fallback;
use crate::error::Result;
use crate::model::Model;
use crate::store;
use crate::train::Budget;

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantized {
    /// Bytes of the file.
    pub bytes: usize,
    /// How many tensors have each type.
    pub types: Vec<(BlockType, usize)>,
    /// Rows that didn't fit their type, and how many tensors have them.
    pub fallbacks: Vec<(Fallback, usize)>,
    /// What the format can't say.
    pub notes: Vec<String>,
}

/// Writes `model` in `ty` to the GGUF file `out`, within `budget`.
///
/// # Errors
/// When the model has no form in GGUF, holds what the type can't, the budget is too small, or the file can't be written; nothing is left
/// half-written.
pub fn quantize(model: &Model, ty: BlockType, out: &Path, budget: Budget) -> Result<Quantized> {
    let mut header = Header::default();
    let notes = describe(model, ty, &mut header)?;
    write_all(model, ty, (header, notes), out, budget)
}

/// Writes the file of a run that trains `model` itself. It is one that anybody reads where GGUF has a form for the model, and of its tensors alone where not.
///
/// # Errors
/// As [`quantize`], but for a form in GGUF.
pub fn write_store(model: &Model, ty: BlockType, out: &Path, budget: Budget) -> Result<()> {
    let family = model.config.family;
    if family.architecture().is_some() {
        return quantize(model, ty, out, budget).map(|_| ());
    }
    let mut header = Header::default();
    header.text("general.architecture", family.model_type());
    write_all(model, ty, (header, Vec::new()), out, budget).map(|_| ())
}

fn write_all(
    model: &Model,
    ty: BlockType,
    (header, notes): (Header, Vec<String>),
    out: &Path,
    budget: Budget,
) -> Result<Quantized> {
    super::check_apart(model, out)?;
    store::check_file(out)?;
    let tensors = planned(model, Some(ty))?;
    let each = |stream: &Stream, tensor: &Planned, sink: &mut Sink| -> Result<()> {
        stream.write(&tensor.rows, None, tensor.ty, sink).map(|_| ())
    };
    write_gguf(model, header, &tensors, notes, (out, None, budget), each)
}

/// Writes the file; its metadata are in `header`, and `each` writes a tensor, perhaps with one of the changes.
pub(super) fn write_gguf(
    model: &Model,
    mut header: Header,
    tensors: &[Planned],
    notes: Vec<String>,
    (out, changes, budget): (&Path, Option<&Changes>, Budget),
    mut each: impl FnMut(&Stream, &Planned, &mut Sink) -> Result<()>,
) -> Result<Quantized> {
    let divisors = rope_divisors(model);
    let mut done = Quantized { bytes: 0, types: Vec::new(), fallbacks: Vec::new(), notes };
    for tensor in tensors {
        header.tensor(&tensor.name, &tensor.shape, tensor.ty, tensor.bytes());
        count(&mut done.types, tensor.ty);
        if let Some(fallback) = tensor.fallback {
            count(&mut done.fallbacks, fallback);
        }
    }
    if let Some(divisors) = &divisors {
        header.tensor("rope_freqs.weight", &[divisors.len()], BlockType::F32, 4 * divisors.len());
        count(&mut done.types, BlockType::F32);
    }
    // All of the header is there when room is looked for.
    let header = header.finish();
    let stream = Stream::new(model.files.path(), threads(model, changes, budget)?)?;
    store::write_file_with(out, |file| {
        let mut sink = Sink::new(file, out);
        sink.put(&header)?;
        for tensor in tensors {
            each(&stream, tensor, &mut sink)?;
            sink.pad(ALIGNMENT)?;
        }
        if let Some(divisors) = &divisors {
            sink.put(bytemuck::cast_slice(divisors))?;
            sink.pad(ALIGNMENT)?;
        }
        done.bytes = sink.at;
        Ok(())
    })?;
    Ok(done)
}

fn count<T: PartialEq>(counts: &mut Vec<(T, usize)>, what: T) {
    match counts.iter_mut().find(|(known, _)| *known == what) {
        Some((_, count)) => *count += 1,
        None => counts.push((what, 1)),
    }
}
