//! Adapters added to their model, into a Hugging Face folder of the same element types or into a GGUF file. Where the format and all types stay,
//! files are copied with the changed tensors in their places, so that everything else keeps its bytes; else a GGUF file is written as
//! [`super::quantize`] writes it. It says how much of the change is left where types round it, and which type would keep it.

use std::path::Path;

use pocketune_formats::gguf::Header;
use pocketune_formats::{BlockType, PackedMatrix};

use super::change::Changes;
use super::description::describe;
use super::folder::{copy_with, write_files};
use super::quantize::write_gguf;
use super::room::threads;
use super::rows::Rows;
use super::stream::{Kept, Sink, Stream};
use super::tensors::{Planned, planned};
use super::types::{Fallback, dividing};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::store;
use crate::train::Budget;

/// How many linears the types are tried on that might keep more.
const TRIED: usize = 8;

/// The types that may be recommended, from small to large.
const LARGER: [BlockType; 6] =
    [BlockType::Q4_K, BlockType::Q5_K, BlockType::Q6_K, BlockType::Q8_0, BlockType::BF16, BlockType::F32];

/// What was written, and what of the change is in it.
#[derive(Clone, Debug, Default)]
pub struct Merged {
    /// Bytes of the tensors' files.
    pub bytes: usize,
    /// Changed linears.
    pub modules: usize,
    /// What of all changes together a reader sees.
    pub kept: Kept,
    /// The linear of which the least is seen.
    pub worst: Option<(String, f64)>,
    /// A type that keeps the change whole, and what it keeps of a sample, where this one doesn't.
    pub recommended: Option<(BlockType, f64)>,
    /// Rows that didn't fit their type, and how many tensors have them.
    pub fallbacks: Vec<(Fallback, usize)>,
    /// What the format can't say.
    pub notes: Vec<String>,
}

/// Adds `changes` to `model` and writes it to `out`, within `budget`: a GGUF file in `ty` (or in the types that it has) where that ends in `.gguf`,
/// else a folder.
///
/// # Errors
/// When the model can't be written in that form, the budget is too small, or the place is taken; nothing is left half-written.
pub fn merge(model: &Model, changes: &Changes, ty: Option<BlockType>, out: &Path, budget: Budget) -> Result<Merged> {
    check_output(model, ty, out)?;
    let stream = || Stream::new(model.files.path(), threads(model, Some(changes), budget)?);
    let mut merged = Merged { modules: changes.tensors().len(), ..Merged::default() };
    if !is_gguf(out) {
        let stream = stream()?;
        write_files(model, out, |number, sink| copy_changed(model, changes, number, &stream, sink, &mut merged))?;
    } else if let (None, true) = (ty, model.files.gguf().is_some()) {
        let stream = stream()?;
        store::write_file_with(out, |file| {
            let mut sink = Sink::new(file, out);
            copy_changed(model, changes, 0, &stream, &mut sink, &mut merged)
        })?;
    } else {
        write_other(model, changes, ty, (out, budget), &mut merged)?;
    }
    if !merged.kept.is_whole() {
        // Samples go through one strip.
        merged.recommended = recommend(model, changes, &Stream::new(model.files.path(), 1)?, ty)?;
    }
    Ok(merged)
}

/// Checks before anything else that `model` can be merged into `out`.
///
/// # Errors
/// When it can't be written there, or not in that form.
pub fn check_output(model: &Model, ty: Option<BlockType>, out: &Path) -> Result<()> {
    super::check_apart(model, out)?;
    if is_gguf(out) {
        return store::check_file(out);
    }
    let fault = |option, value: String, fault: &str| Err(Error::Option { option, value, fault: fault.into() });
    let place = out.display().to_string();
    if model.files.folder().is_none() {
        return fault("output", place, "a GGUF model is merged into a file; let its name end in .gguf");
    }
    if let Some(ty) = ty {
        return fault("type", ty.name().into(), "a folder keeps its types; for another, let the output end in .gguf");
    }
    if model.files.tensors().any(|info| matches!(PackedMatrix::find(&model.files, &info.name), Ok(Some(_)))) {
        return fault(
            "output",
            place,
            "the model's matrices are packed, and merging would round them again; let the output end in .gguf",
        );
    }
    let held = std::fs::read_dir(out).into_iter().flatten().filter_map(|entry| entry.ok());
    if out.is_file() || held.filter(|entry| entry.path() != store::hidden_folder(out)).count() > 0 {
        return fault("output", place, "something is there; name a new folder");
    }
    store::check_writable(out)
}

/// Whether a place is for a GGUF file.
fn is_gguf(out: &Path) -> bool {
    out.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"))
}

impl Merged {
    fn saw(&mut self, tensor: &str, kept: Kept) {
        self.kept = self.kept.plus(kept);
        if self.worst.as_ref().is_none_or(|(_, share)| kept.share() < *share) {
            self.worst = Some((tensor.trim_end_matches(".weight").into(), kept.share()));
        }
    }
}

/// Copies file number `number` of the model with its changed tensors in their places.
fn copy_changed(
    model: &Model,
    changes: &Changes,
    number: usize,
    stream: &Stream,
    to: &mut Sink,
    merged: &mut Merged,
) -> Result<()> {
    let changed = |name: &str| changes.has(name);
    copy_with(model, number, to, changed, |info, to| {
        // A file that keeps its types has none that can't be written.
        let ty = model.files.tensor(&info.name)?.map(|tensor| tensor.ty);
        if let (Some(rows), Some(change), Some(ty)) =
            (Rows::find(&model.files, &info.name)?, changes.load(&info.name), ty)
        {
            merged.saw(&info.name, stream.write(&rows, Some(&change), ty, to)?);
        }
        Ok(())
    })?;
    merged.bytes += to.at;
    Ok(())
}

fn write_other(
    model: &Model,
    changes: &Changes,
    ty: Option<BlockType>,
    (out, budget): (&Path, Budget),
    merged: &mut Merged,
) -> Result<()> {
    let tensors = planned(model, ty)?;
    let matrix = |tensor: &&Planned| tensor.shape.len() == 2;
    let ty = ty.or_else(|| tensors.iter().find(matrix).map(|tensor| tensor.ty)).unwrap_or(BlockType::F32);
    let mut header = Header::default();
    let notes = describe(model, ty, &mut header)?;
    let each = |stream: &Stream, tensor: &Planned, sink: &mut Sink| -> Result<()> {
        let change = changes.load(tensor.rows.name());
        let kept = stream.write(&tensor.rows, change.as_ref(), tensor.ty, sink)?;
        if change.is_some() {
            merged.saw(tensor.rows.name(), kept);
        }
        Ok(())
    };
    let done = write_gguf(model, header, &tensors, notes, (out, Some(changes), budget), each)?;
    (merged.bytes, merged.fallbacks, merged.notes) = (done.bytes, done.fallbacks, done.notes);
    Ok(())
}

/// The smallest type beyond `ty` that keeps a sample of the changes whole.
fn recommend(
    model: &Model,
    changes: &Changes,
    stream: &Stream,
    ty: Option<BlockType>,
) -> Result<Option<(BlockType, f64)>> {
    let names = changes.tensors();
    let names: Vec<&str> = names.iter().copied().step_by(names.len().div_ceil(TRIED).max(1)).collect();
    let bits = |ty: BlockType| ty.block_bytes() as f64 / ty.block_len() as f64;
    let mut had: Vec<BlockType> = ty.into_iter().collect();
    if ty.is_none() {
        for name in &names {
            had.extend(Rows::find(&model.files, name)?.and_then(|rows| rows.ty()));
        }
    }
    let most = had.into_iter().map(bits).fold(0.0, f64::max);
    for larger in LARGER.into_iter().filter(|larger| bits(*larger) > most) {
        let mut kept = Kept::default();
        for name in &names {
            let (Some(rows), Some(change)) = (Rows::find(&model.files, name)?, changes.load(name)) else { continue };
            kept = kept.plus(stream.sample(&rows, &change, dividing(larger, rows.cols)));
        }
        if kept.is_whole() {
            return Ok(Some((larger, kept.share())));
        }
    }
    Ok(None)
}
