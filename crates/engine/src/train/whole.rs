//! The file of a model that is trained itself: a GGUF file of plain floats that a run makes of the model, without a name so that the system removes it however
//! the run ends. Checkpoints have what was learnt; the result is a copy of the file. It refuses models that are stored in fewer bits than they are to be
//! trained in.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;

use pocketune_formats::{BlockType, Element};

use super::{Method, TrainOptions};
use crate::backend::Cpu;
use crate::error::{Error, Result};
use crate::export::{quantize, write_back};
use crate::families::gguf_name;
use crate::graph::Graph;
use crate::model::{Model, Source};
use crate::store::{FolderWriter, HOW, MODEL, MODEL_FOLDER, check_writable};

/// Checks that the matrices of `model` are floats.
///
/// # Errors
/// The first that is not.
pub fn check_floats(model: &Model, method: Method) -> Result<()> {
    let named = |name: &str| match model.files.gguf() {
        Some(_) => gguf_name(model.config.family, name),
        None => Some(name.into()),
    };
    let floats =
        |element: &Element| matches!(element, Element::Block(BlockType::F32 | BlockType::F16 | BlockType::BF16));
    for weight in &model.config.graph(None)?.weights {
        // What is missing is said where tensors are looked for.
        let Some(info) = named(&weight.name).and_then(|name| model.files.info(&name)) else { continue };
        if !floats(&info.element) {
            let fault = format!(
                "tensor {} is stored as {}, whose steps are too coarse to train; --method backprop trains an adapter on it, and `pocketune quantize --type bf16` makes \
                 a model of floats of it first",
                info.name,
                info.element.name()
            );
            return Err(Error::Option { option: "method", value: method.name().into(), fault });
        }
    }
    Ok(())
}

/// Makes the file of `model`, which is no longer needed then.
///
/// # Errors
/// When the model has no form in GGUF or the disk fails.
pub fn open(model: Model, options: &TrainOptions) -> Result<(Model, File)> {
    let folder = options.spill_folder();
    check_writable(folder)?;
    let path = folder.join(format!(".pocketune-store-{}-0", std::process::id()));
    quantize(&model, options.store, &path, options.budget)?;
    drop(model);
    let opened = OpenOptions::new().read(true).write(true).open(&path).map_err(|error| Error::io(&path, error));
    let both = opened.and_then(|file| Ok((Model::open(&Source::Path(path.clone()))?, file)));
    let removed = std::fs::remove_file(&path).map_err(|error| Error::io(&path, error));
    let both = both?;
    removed?;
    // Checkpoints count in words of four bytes.
    if let Some(info) = both.0.files.tensors().find(|info| info.bytes % 4 != 0) {
        let fault =
            format!("tensor {} has an odd number of elements, {:?}; --store f32 trains it", info.name, info.shape);
        return Err(Error::Option { option: "store", value: options.store.name().into(), fault });
    }
    Ok(both)
}

/// Puts the model as it is now into the folder of the run, whole or not at all.
///
/// # Errors
/// The system's.
pub fn save(cpu: &Cpu, graph: &Graph, kept: Option<&str>, folder: &Path) -> Result<()> {
    cpu.store_vectors(graph)?;
    let mut writer = FolderWriter::open(folder)?;
    if let Some(mut store) = cpu.weights().store() {
        writer.file(MODEL, |out| store.rewind().and_then(|()| copy(&mut store, out)))?;
    }
    if let Some(kept) = kept {
        writer.file(HOW, |out| out.write_all(kept.as_bytes()))?;
    }
    writer.commit()
}

/// Where the model came from a Hugging Face folder, writes what [`save`] put there as one too.
///
/// # Errors
/// When a number is too large for the folder's types, the budget is too small or the disk fails.
pub fn save_folder(options: &TrainOptions) -> Result<()> {
    let model = Model::open(&options.model)?;
    if model.files.folder().is_none() {
        return Ok(());
    }
    let trained = Model::open(&Source::Path(options.adapter_path.join(MODEL)))?;
    write_back(&trained, &model, &options.adapter_path.join(MODEL_FOLDER), options.budget)
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
