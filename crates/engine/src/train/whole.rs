//! The file of a model that is trained itself: a GGUF file of plain floats that a run makes of the model, without a name so that the system removes it however
//! the run ends. Checkpoints have what was learnt; the result is a copy of the file, or a folder where GGUF has no form for the model. It refuses models that are stored in
//! fewer bits than they are to be trained in. Where the scales of quantised blocks are trained, the file is the model's own, copied.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use pocketune_formats::{BlockType, Element, ModelFiles};
use pocketune_kernels::scales;

use super::{Budget, Method};
use crate::backend::Cpu;
use crate::error::{Error, Result};
use crate::export::{write_back, write_store};
use crate::families::gguf_name;
use crate::graph::Graph;
use crate::model::{Model, Source};
use crate::store::{FolderWriter, HOW, MODEL, MODEL_FOLDER, UPDATES, check_writable, write_updates};

/// Checks that the matrices of `model` are floats.
///
/// # Errors
/// The first that is not.
pub fn check_floats(model: &Model, method: Method) -> Result<()> {
    let named = |name: &str| match model.files.gguf() {
        Some(_) => gguf_name(model.config.family, name),
        None => Some(name.into()),
    };
    let makes = match model.config.family.architecture() {
        Some(_) => ", and `pocketune quantize --type bf16` makes a model of floats of it first",
        None => "",
    };
    let floats =
        |element: &Element| matches!(element, Element::Block(BlockType::F32 | BlockType::F16 | BlockType::BF16));
    for weight in &model.config.graph(None)?.weights {
        // What is missing is said where tensors are looked for.
        let Some(info) = named(&weight.name).and_then(|name| model.files.info(&name)) else { continue };
        if !floats(&info.element) {
            let fault = format!(
                "tensor {} is stored as {}, whose steps are too coarse to train; --method backprop trains an adapter on it{makes}",
                info.name,
                info.element.name()
            );
            return Err(Error::Option { option: "method", value: method.name().into(), fault });
        }
    }
    Ok(())
}

/// Checks that `model` is a GGUF file with quantised blocks.
///
/// # Errors
/// When it has no scales to move.
pub fn check_scales(model: &Model, method: Method) -> Result<()> {
    let scaled = |element: &Element| matches!(element, Element::Block(ty) if scales::places(*ty).is_some());
    if model.files.gguf().is_some() && model.files.tensors().any(|info| scaled(&info.element)) {
        return Ok(());
    }
    let fault = match model.files.gguf() {
        Some(_) => {
            "the model is of floats, which have no scales; --method mezo --fine-tune-type full moves all of its numbers, and `pocketune quantize --type q4_0` makes blocks of it \
             first"
        }
        None if model.config.family.architecture().is_none() => {
            "it moves the scales of a GGUF file, which this family has no form in; --method mezo trains an adapter, or with --fine-tune-type full all of it"
        }
        None => {
            "it moves the scales of a GGUF file; `pocketune quantize --type q4_0` makes one of a folder, and --method mezo trains an adapter on it as it is"
        }
    };
    Err(Error::Option { option: "method", value: method.name().into(), fault: fault.into() })
}

/// Makes the file of `model`, which is no longer needed then: of floats of one type, or of its own blocks.
///
/// # Errors
/// When the model holds what the floats can't, or the disk fails.
pub fn open(model: Model, ty: Option<BlockType>, folder: &Path, budget: Budget) -> Result<(Model, File)> {
    check_writable(folder)?;
    let path = folder.join(format!(".pocketune-store-{}-0", std::process::id()));
    match ty {
        Some(ty) => write_store(&model, ty, &path, budget)?,
        None => copy_file(&model, &path).map_err(|error| Error::io(&path, error))?,
    }
    let Model { files, config } = model;
    drop(files);
    let opened = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| Error::io(&path, error));
    let both = opened.and_then(|file| match config.family.architecture() {
        Some(_) => Ok((Model::open(&Source::Path(path.clone()))?, file)),
        None => Ok((Model { files: ModelFiles::open(&path)?, config }, file)),
    });
    let removed = std::fs::remove_file(&path).map_err(|error| Error::io(&path, error));
    let both = both?;
    removed?;
    // Checkpoints count in words of four bytes.
    if let Some(info) = both.0.files.tensors().find(|info| info.bytes % 4 != 0) {
        let (name, shape) = (&info.name, &info.shape);
        let (option, value, fault) = match ty {
            Some(ty) => (
                "store",
                ty.name(),
                format!("tensor {name} has an odd number of elements, {shape:?}; --store f32 trains it"),
            ),
            None => (
                "method",
                "qzo",
                format!("tensor {name} has an odd number of bytes, {}; --method mezo trains an adapter", info.bytes),
            ),
        };
        return Err(Error::Option { option, value: value.into(), fault });
    }
    Ok(both)
}

/// The model's file as it is, a piece at a time.
fn copy_file(model: &Model, path: &Path) -> std::io::Result<()> {
    let mut out = File::create(path)?;
    let file = &model.files.files()[0];
    for (at, piece) in (0..).step_by(crate::store::CHUNK).zip(file.bytes().chunks(crate::store::CHUNK)) {
        out.write_all(piece)?;
        file.release(at, piece.len());
    }
    out.sync_all()
}

/// Puts the model as it is now into the folder of the run, whole or not at all, with what its updates were where that is known.
///
/// # Errors
/// The system's.
pub fn save(
    cpu: &Cpu,
    graph: &Graph,
    kept: Option<&str>,
    updates: Option<(&[u8], &[f32])>,
    folder: &Path,
) -> Result<()> {
    cpu.store_vectors(graph)?;
    let mut writer = FolderWriter::open(folder)?;
    if let Some(mut store) = cpu.weights().store() {
        writer.file(MODEL, |out| store.rewind().and_then(|()| copy(&mut store, out)))?;
    }
    if let Some(kept) = kept {
        writer.file(HOW, |out| out.write_all(kept.as_bytes()))?;
    }
    match updates {
        Some((header, numbers)) => writer.file(UPDATES, |out| write_updates(out, header, numbers))?,
        None => writer.without(UPDATES),
    }
    writer.commit()
}

/// Where the model came from the Hugging Face folder `source`, writes what [`save`] put into `folder` as one too. The place of the result comes back: the file, or that one where GGUF has no
/// form for the model.
///
/// # Errors
/// When a number is too large for the folder's types, the budget is too small or the disk fails.
pub fn save_folder(source: &Source, folder: &Path, budget: Budget) -> Result<PathBuf> {
    let (model, file, out) = (Model::open(source)?, folder.join(MODEL), folder.join(MODEL_FOLDER));
    if model.files.folder().is_some() {
        write_back(&ModelFiles::open(&file)?, &model, &out, budget)?;
    }
    Ok(if model.config.family.architecture().is_some() { file } else { out })
}

/// Removes what [`save`] put into `folder` where that is not the result.
///
/// # Errors
/// The system's.
pub fn clear(result: &Path, folder: &Path) -> Result<()> {
    let file = folder.join(MODEL);
    if result == file {
        return Ok(());
    }
    std::fs::remove_file(&file).map_err(|error| Error::io(&file, error))
}

/// Brings back what [`save`] put there.
///
/// # Errors
/// The system's.
pub fn load(cpu: &mut Cpu, graph: &Graph, folder: &Path) -> Result<()> {
    let path = folder.join(MODEL);
    let io = |error| Error::io(&path, error);
    let mut saved = File::open(&path).map_err(io)?;
    if let Some(mut store) = cpu.weights().store() {
        store.rewind().and_then(|()| copy(&mut saved, &mut store)).map_err(io)?;
    }
    cpu.fetch_vectors(graph)
}

/// With a buffer of a known size, which the plan has room for.
fn copy(from: &mut impl Read, to: &mut (impl Write + ?Sized)) -> std::io::Result<()> {
    let mut piece = vec![0; crate::store::CHUNK];
    loop {
        match from.read(&mut piece)? {
            0 => return Ok(()),
            len => to.write_all(&piece[..len])?,
        }
    }
}
