//! The adapter between its file and the arena: fresh values, values from a PEFT folder, and the way back, in Hugging Face's row order.

use std::io::Write;
use std::path::Path;

use pocketune_formats::Tensor;
use pocketune_formats::peft::{self, Adapter, AdapterConfig, TensorSpec};
use pocketune_kernels::blocks;
use pocketune_kernels::philox::Philox;

use crate::backend::Cpu;
use crate::beside::Beside;
use crate::error::{Error, Result};
use crate::graph::{Graph, Layers, LoraSpec, Module, Naming, ParamId, Target};
use crate::store::{Files, FolderWriter, settle};

/// The stream of random numbers that fresh adapters come from; the module's number is added.
const INIT_STREAM: u64 = 1 << 32;

/// Fills the adapter as PEFT does: A uniform in `±1/sqrt(in)`, B zero.
pub fn initialise(cpu: &mut Cpu, graph: &Graph, seed: u64) {
    for (at, module) in graph.modules.iter().enumerate() {
        let numbers = Philox::new(seed, INIT_STREAM + at as u64);
        let bound = 1.0 / (module.cols as f32).sqrt();
        for (i, x) in cpu.param_mut(ParamId(2 * at)).iter_mut().enumerate() {
            *x = (2.0 * numbers.uniform(i as u64) - 1.0) * bound;
        }
        cpu.param_mut(ParamId(2 * at + 1)).fill(0.0);
    }
}

/// Opens an adapter's folder, after finishing what a run left that ended while it put its files in place.
///
/// # Errors
/// When it is none.
pub fn open(folder: &Path) -> Result<Adapter> {
    settle(&Files, folder)?;
    Ok(Adapter::open(folder)?)
}

/// The specification that an adapter folder was made with.
///
/// # Errors
/// When it adapts a module that no family here has.
pub fn spec(folder: &Path, adapter: &Adapter) -> Result<LoraSpec> {
    let config = adapter.config();
    let mut targets: Vec<Target> = Vec::new();
    let mut layers: Vec<usize> = Vec::new();
    for pair in adapter.pairs() {
        let unknown = || Error::Adapter {
            path: folder.into(),
            fault: format!("module {} is not a linear of a block", pair.module),
        };
        let (layer, target) = Naming::read(pair.module).ok_or_else(unknown)?;
        targets.push(target);
        layers.push(layer);
    }
    layers.sort_unstable();
    layers.dedup();
    targets.sort_unstable();
    targets.dedup();
    Ok(LoraSpec { rank: config.rank, alpha: config.alpha as f32, targets, layers: Layers::Only(layers) })
}

/// Reads an adapter's values into the arena.
///
/// # Errors
/// When it lacks a module of `graph`, has one more, or has another shape or a value that is not finite.
pub fn load(cpu: &mut Cpu, graph: &Graph, folder: &Path, adapter: &Adapter) -> Result<()> {
    let fault = |fault: String| Error::Adapter { path: folder.into(), fault };
    if let Some(pair) = adapter.pairs().find(|pair| !graph.modules.iter().any(|module| module.path == pair.module)) {
        return Err(fault(format!("module {} is not in the model", pair.module)));
    }
    for (at, module) in graph.modules.iter().enumerate() {
        let pair = adapter.pair(&module.path).ok_or_else(|| fault(format!("module {} is missing", module.path)))?;
        let rank = graph.params[2 * at].rank;
        for (tensor, shape) in [(&pair.a, [rank, module.cols]), (&pair.b, [module.rows, rank])] {
            if tensor.shape != shape {
                return Err(fault(format!(
                    "tensor {} has shape {:?} where the model needs {shape:?}",
                    tensor.name, tensor.shape
                )));
            }
        }
        read(&pair.a, cpu.param_mut(ParamId(2 * at)), |i| i);
        let b = cpu.param_mut(ParamId(2 * at + 1));
        read(&pair.b, b, |i| transposed(module, rank, i));
        for (id, tensor) in [(ParamId(2 * at), &pair.a), (ParamId(2 * at + 1), &pair.b)] {
            if let Some(x) = cpu.param(id).iter().find(|x| !x.is_finite()) {
                return Err(fault(format!("tensor {} holds {x}", tensor.name)));
            }
        }
    }
    Ok(())
}

/// Where element `i` of B's file, `[out, rank]` in Hugging Face's row order, lies in the arena, `[rank, out]` in the model file's order.
fn transposed(module: &Module, rank: usize, i: usize) -> usize {
    i % rank * module.rows + module.file_row(i / rank)
}

fn read(tensor: &Tensor, to: &mut [f32], place: impl Fn(usize) -> usize) {
    let element = tensor.ty.block_bytes();
    for (i, bytes) in tensor.data.chunks_exact(element).enumerate() {
        let mut x = [0.0];
        blocks::dequantize(tensor.ty, bytes, &mut x);
        to[place(i)] = x[0];
    }
}

/// Writes the adapter as a PEFT folder, whole or not at all.
///
/// # Errors
/// The system's, and a value that is not finite: such an adapter never reaches the disk.
pub fn save(
    cpu: &Cpu,
    graph: &Graph,
    spec: &LoraSpec,
    base_model: &str,
    kept: Option<&str>,
    beside: &Beside,
    folder: &Path,
) -> Result<()> {
    let mut specs = Vec::new();
    for (at, module) in graph.modules.iter().enumerate() {
        for id in [2 * at, 2 * at + 1] {
            if cpu.param(ParamId(id)).iter().any(|x| !x.is_finite()) {
                return Err(Error::Numbers(format!(
                    "the adapter of {} is no longer finite; nothing was written",
                    module.path
                )));
            }
        }
        let [a, b] = peft::tensor_names(&module.path);
        let rank = graph.params[2 * at].rank;
        specs.push(TensorSpec { name: a, shape: vec![rank, module.cols] });
        specs.push(TensorSpec { name: b, shape: vec![module.rows, rank] });
    }
    let mut blocks_used: Vec<usize> =
        graph.nodes.iter().filter(|n| !n.op.params().is_empty()).filter_map(|n| n.block).collect();
    blocks_used.dedup();
    let config = AdapterConfig {
        rank: spec.rank,
        alpha: f64::from(spec.alpha),
        targets: peft::Targets::Modules(target_modules(graph, spec)),
        layers: (blocks_used.len() < graph.blocks).then_some(blocks_used),
        base_model: Some(base_model.into()),
        task: (graph.naming != Naming::Roberta).then(|| "CAUSAL_LM".into()),
    };
    let mut writer = FolderWriter::open(folder)?;
    writer.file("adapter_model.safetensors", |out| {
        peft::write_tensors(out, &specs, &mut |at, out| write(cpu, graph, at, out))
    })?;
    writer.file("adapter_config.json", |out| out.write_all(config.to_json().as_bytes()))?;
    if let Some(kept) = kept {
        writer.file(crate::store::HOW, |out| out.write_all(kept.as_bytes()))?;
    }
    beside.write(&mut writer)?;
    writer.commit()
}

/// The modules by their own names; RoBERTa's by their full paths, since its head has a `dense` too and `output.dense` is the end of two paths.
fn target_modules(graph: &Graph, spec: &LoraSpec) -> Vec<String> {
    match graph.naming {
        Naming::Roberta => graph.modules.iter().map(|module| module.path.clone()).collect(),
        naming => spec.targets.iter().filter_map(|target| target.name(naming)).map(String::from).collect(),
    }
}

/// Writes tensor `at`: A as it lies, B transposed and in Hugging Face's row order.
fn write(cpu: &Cpu, graph: &Graph, at: usize, out: &mut dyn Write) -> std::io::Result<()> {
    let (module, rank, values) = (&graph.modules[at / 2], graph.params[at].rank, cpu.param(ParamId(at)));
    if at.is_multiple_of(2) {
        return out.write_all(bytemuck::cast_slice(values));
    }
    (0..values.len()).try_for_each(|i| out.write_all(&values[transposed(module, rank, i)].to_le_bytes()))
}
