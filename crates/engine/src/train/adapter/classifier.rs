//! A head of classes between its file and the arena: PEFT keeps it beside the factors, whole, as one of its `modules_to_save`.

use std::path::Path;

use pocketune_formats::lora::LoraFile;
use pocketune_formats::peft::{TensorSpec, saved_name};
use pocketune_kernels::philox::Philox;

use super::normal;
use crate::backend::Cpu;
use crate::error::{Error, Result};
use crate::graph::{CLASSIFIER, Classifier, Graph, ParamId};

/// The stream of random numbers that a fresh head comes from; the tensor's number is added.
const STREAM: u64 = 1 << 34;

/// The standard deviation that RoBERTa's weights are drawn with.
const SPREAD: f32 = 0.02;

/// The model's own head where it has one; else weights drawn as Hugging Face draws them, and no biases.
pub(super) fn initialise(cpu: &mut Cpu, head: Classifier, seed: u64) -> Result<()> {
    for (at, (id, name)) in head.params().into_iter().zip(CLASSIFIER).enumerate() {
        let wanted = shape(cpu, id, name);
        if cpu.take_tensor(id, name, &wanted)? {
            continue;
        }
        let numbers = Philox::new(seed, STREAM + at as u64);
        for (i, x) in cpu.param_mut(id).iter_mut().enumerate() {
            *x = if wanted.len() > 1 { SPREAD * normal(&numbers, i as u64) } else { 0.0 };
        }
    }
    Ok(())
}

/// How many classes the head of an adapter tells apart, where it has one.
///
/// # Errors
/// When it has a part of one, or tensors beside it.
pub fn classes(path: &Path, adapter: &LoraFile) -> Result<Option<usize>> {
    let fault = |fault: String| Error::Adapter { path: path.into(), fault };
    let saved = adapter.saved();
    if let Some(other) = saved.iter().find(|info| !CLASSIFIER.contains(&&*info.name)) {
        return Err(fault(format!("tensor {} is of no head that is known here", other.name)));
    }
    let found = CLASSIFIER.map(|name| saved.iter().find(|info| &*info.name == name));
    match found {
        [None, None, None, None] => Ok(None),
        [Some(_), Some(_), Some(weight), Some(_)] => Ok(Some(weight.shape.first().copied().unwrap_or(0))),
        _ => Err(fault("it holds a part of a classification head".into())),
    }
}

/// Reads the head of an adapter.
pub(super) fn load(cpu: &mut Cpu, head: Classifier, adapter: &LoraFile, fault: &dyn Fn(String) -> Error) -> Result<()> {
    for (id, name) in head.params().into_iter().zip(CLASSIFIER) {
        let info = adapter.saved().iter().find(|info| &*info.name == name);
        let info = info.ok_or_else(|| fault(format!("tensor {name} is missing")))?;
        let wanted = shape(cpu, id, name);
        if *info.shape != *wanted {
            let found = &info.shape;
            return Err(fault(format!("tensor {name} has shape {found:?} where the model needs {wanted:?}")));
        }
        let to = cpu.param_mut(id);
        adapter.read_saved(info, to);
        if let Some(x) = to.iter().find(|x| !x.is_finite()) {
            return Err(fault(format!("tensor {name} holds {x}")));
        }
    }
    Ok(())
}

/// What is written of it: after the factors, as in the arena.
pub(super) fn specs(cpu: &Cpu, graph: &Graph) -> Result<Vec<TensorSpec>> {
    let Some(head) = graph.classifier() else { return Ok(Vec::new()) };
    let mut specs = Vec::new();
    for (id, name) in head.params().into_iter().zip(CLASSIFIER) {
        if cpu.param(id).iter().any(|x| !x.is_finite()) {
            return Err(Error::Numbers(format!("{name} is no longer finite; nothing was written")));
        }
        specs.push(TensorSpec { name: saved_name(name), shape: shape(cpu, id, name) });
    }
    Ok(specs)
}

/// Of the tensor in its file: biases have one dimension.
fn shape(cpu: &Cpu, id: ParamId, name: &str) -> Vec<usize> {
    let (rows, cols) = cpu.shape_of(id);
    if name.ends_with(".bias") { vec![cols] } else { vec![rows, cols] }
}
