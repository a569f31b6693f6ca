//! The adapter between its file and the arena: fresh values, values from an adapter of any kind, and the way back to a PEFT folder, in
//! Hugging Face's row order.

mod classifier;
mod vera;

pub use classifier::classes;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;

use pocketune_formats::TensorInfo;
use pocketune_formats::lora::{Kind, LoraFile, Pair, Part};
use pocketune_formats::peft::{self, AdapterConfig, Patterns, TensorSpec};
use pocketune_kernels::philox::Philox;

use crate::backend::Cpu;
use crate::beside::Beside;
use crate::convert;
use crate::error::{Error, Result};
use crate::families::Config;
use crate::graph::{CLASSIFIER_MODULE, Graph, Layers, LoraSpec, Module, Naming, Of, ParamId, Target, hugging_face_row};
use crate::store::{Files, FolderWriter, UPDATES, settle, write_updates};

/// The stream of random numbers that fresh adapters come from; the module's number is added.
const INIT_STREAM: u64 = 1 << 32;

/// Fills the adapter as PEFT does: A uniform in `±1/sqrt(in)`, B zero, magnitudes the lengths of the rows; of an embedding A zero and B normal. A head beside it is
/// the model's own, or drawn.
///
/// # Errors
/// When the model's own head is not of the shape that is wanted.
pub fn initialise(cpu: &mut Cpu, graph: &Graph, seed: u64) -> Result<()> {
    if let Some(head) = graph.classifier() {
        classifier::initialise(cpu, head, seed)?;
    }
    if graph.modules.iter().any(|module| module.lambdas.is_some()) {
        vera::initialise(cpu, graph, seed);
        return Ok(());
    }
    for (at, module) in graph.modules.iter().enumerate() {
        let numbers = Philox::new(seed, INIT_STREAM + at as u64);
        let bound = 1.0 / (module.cols as f32).sqrt();
        let (zero, drawn) =
            if module.target == Target::Embedding { (module.a, module.b) } else { (module.b, module.a) };
        for (i, x) in cpu.param_mut(drawn).iter_mut().enumerate() {
            *x = match module.target {
                Target::Embedding => normal(&numbers, i as u64),
                _ => (2.0 * numbers.uniform(i as u64) - 1.0) * bound,
            };
        }
        cpu.param_mut(zero).fill(0.0);
    }
    cpu.measure_magnitudes(graph);
    Ok(())
}

/// Opens an adapter: a folder of PEFT's or MLX's, after finishing what a run left that ended while it put its files in place, or a GGUF file.
///
/// # Errors
/// When it is none.
pub fn open(path: &Path) -> Result<LoraFile> {
    if path.is_dir() {
        settle(&Files, path)?;
    }
    Ok(LoraFile::open(path)?)
}

/// The specification that an adapter was made with.
///
/// # Errors
/// When it adapts a module that no family here has.
pub fn spec(path: &Path, adapter: &LoraFile) -> Result<LoraSpec> {
    let mut targets: Vec<Target> = Vec::new();
    let mut layers: Vec<usize> = Vec::new();
    for pair in &adapter.pairs {
        let (layer, target) = convert::place(path, adapter, pair)?;
        targets.push(target);
        layers.extend(layer);
    }
    layers.sort_unstable();
    layers.dedup();
    targets.sort_unstable();
    targets.dedup();
    // None has one where an adapter is on the ends of a model alone.
    let layers = if layers.is_empty() { Layers::All } else { Layers::Only(layers) };
    let classes = classifier::classes(path, adapter)?;
    let plain = LoraSpec { targets, layers, classes, ..LoraSpec::default() };
    match &adapter.config {
        Some(config) => Ok(of_config(config, plain)),
        None => of_pairs(path, adapter, plain),
    }
}

/// What PEFT's configuration says, on the targets and layers of `plain`.
pub(super) fn of_config(config: &AdapterConfig, plain: LoraSpec) -> LoraSpec {
    let alphas = config.alphas.0.iter().map(|(name, alpha)| (name.clone(), *alpha as f32));
    LoraSpec {
        rank: config.rank,
        alpha: config.alpha as f32,
        ranks: config.ranks.clone(),
        alphas: Patterns(alphas.collect()),
        stabilized: config.stabilized,
        dora: config.dora,
        vera: config.vera,
        dropout: config.dropout as f32,
        ..plain
    }
}

/// What other runtimes don't say in PEFT's words, from the factors themselves.
fn of_pairs(path: &Path, adapter: &LoraFile, plain: LoraSpec) -> Result<LoraSpec> {
    let (mut ranks, mut alphas) = (Vec::new(), Vec::new());
    for pair in &adapter.pairs {
        let name = match convert::place(path, adapter, pair)? {
            (Some(layer), target) => format!("layers.{layer}.{}", target.path(Naming::Llama).unwrap_or_default()),
            (None, target) => target.path(Naming::Llama).unwrap_or_default().into(),
        };
        ranks.push((name.clone(), pair.rank));
        alphas.push((name, (pair.scale * pair.rank as f64) as f32));
    }
    let dora = adapter.pairs.iter().any(|pair| pair.has_magnitude());
    let (rank, alpha) = (ranks[0].1, alphas[0].1);
    ranks.retain(|(_, of)| *of != rank);
    alphas.retain(|(_, of)| *of != alpha);
    Ok(LoraSpec { rank, alpha, ranks: Patterns(ranks), alphas: Patterns(alphas), dora, ..plain })
}

/// Reads an adapter's values into the arena.
///
/// # Errors
/// When it is for another architecture, lacks a module of `graph`, has one more, or has another shape or a value that is not finite.
pub fn load(cpu: &mut Cpu, graph: &Graph, config: &Config, path: &Path, adapter: &LoraFile) -> Result<()> {
    let fault = |fault: String| Error::Adapter { path: path.into(), fault };
    convert::check_architecture(path, adapter, config)?;
    let places: Vec<_> = graph.modules.iter().map(|module| Target::read(&module.path)).collect();
    // PEFT names modules by their paths; of others it counts which linear of which block they mean.
    let meant = |pair: &Pair| match adapter.kind {
        Kind::Peft => graph.modules.iter().position(|module| module.path == pair.module),
        Kind::Mlx | Kind::Gguf => {
            let place = convert::place(path, adapter, pair).ok()?;
            places.iter().position(|module| *module == Some(place))
        }
    };
    if let Some(head) = graph.classifier() {
        classifier::load(cpu, head, adapter, &fault)?;
    }
    let mut pairs = vec![None; graph.modules.len()];
    for pair in &adapter.pairs {
        let at = meant(pair).ok_or_else(|| fault(format!("module {} is not in the model", pair.module)))?;
        pairs[at] = Some(pair);
    }
    for (module, pair) in graph.modules.iter().zip(pairs) {
        let pair = pair.ok_or_else(|| fault(format!("module {} is missing", module.path)))?;
        if Target::ENDS.contains(&module.target) && adapter.kind != Kind::Peft {
            convert::check_end(path, &pair.module, Some(config))?;
        }
        if module.lambdas.is_some() {
            vera::load(cpu, graph, module, adapter, pair, &fault)?;
            continue;
        }
        let rank = graph.params[module.a.0].rank;
        // Rows of a GGUF file lie in llama.cpp's order.
        let turned = convert::turned(config, module.target).filter(|_| adapter.kind == Kind::Gguf);
        let row = |row: usize| module.file_row(turned.map_or(row, |d| hugging_face_row(row, d)));
        let factors = [
            (Part::A, (pair.rank, pair.cols), (rank, module.cols)),
            (Part::B, (pair.rows, pair.rank), (module.rows, rank)),
        ];
        if let Some((part, _, (rows, cols))) = factors.into_iter().find(|(_, found, wanted)| found != wanted)
            && let Some(TensorInfo { name, shape, .. }) = adapter.tensor(pair, part)
        {
            return Err(fault(format!("tensor {name} has shape {shape:?} where the model needs {rows} x {cols}")));
        }
        for (id, part) in [(Some(module.a), Part::A), (Some(module.b), Part::B), (module.magnitude, Part::Magnitude)] {
            let (Some(id), Some(info)) = (id, adapter.tensor(pair, part)) else { continue };
            let to = cpu.param_mut(id);
            adapter.each(pair, part, |at, col, x| match part {
                Part::A => to[at * module.cols + col] = x,
                Part::B => to[col * module.rows + row(at)] = x,
                _ => to[row(at)] = x,
            });
            if let Some(x) = to.iter().find(|x| !x.is_finite()) {
                return Err(fault(format!("tensor {} holds {x}", info.name)));
            }
        }
    }
    Ok(())
}

/// Where element `i` of a matrix's file lies in the arena: A as it is; B's file is `[out, rank]` in Hugging Face's row order and the arena's
/// `[rank, out]` in the model file's order; magnitudes in that order too.
fn place(module: &Module, id: ParamId, rank: usize, i: usize) -> usize {
    match id {
        id if id == module.a => i,
        id if id == module.b => i % rank * module.rows + module.file_row(i / rank),
        _ => module.file_row(i),
    }
}

/// Writes the adapter as a PEFT folder, whole or not at all, with what its updates were where that is known.
///
/// # Errors
/// The system's, and a value that is not finite: such an adapter never reaches the disk.
pub fn save(
    cpu: &Cpu,
    graph: &Graph,
    config: &AdapterConfig,
    kept: Option<&str>,
    updates: Option<(&[u8], &[f32])>,
    beside: &Beside,
    folder: &Path,
) -> Result<()> {
    let mut specs = vera::shared(graph);
    for module in &graph.modules {
        for (id, _) in module.params() {
            if cpu.param(id).iter().any(|x| !x.is_finite()) {
                return Err(Error::Numbers(format!(
                    "the adapter of {} is no longer finite; nothing was written",
                    module.path
                )));
            }
        }
        if module.lambdas.is_some() {
            specs.extend(vera::vectors(graph, module));
            continue;
        }
        let [a, b, m] = peft::tensor_names(&module.path, module.target == Target::Embedding);
        let rank = graph.params[module.a.0].rank;
        specs.push(TensorSpec { name: a, shape: vec![rank, module.cols] });
        specs.push(TensorSpec { name: b, shape: vec![module.rows, rank] });
        if module.magnitude.is_some() {
            specs.push(TensorSpec { name: m, shape: vec![module.rows] });
        }
    }
    specs.extend(classifier::specs(cpu, graph)?);
    let mut writer = FolderWriter::open(folder)?;
    writer.file("adapter_model.safetensors", |out| {
        peft::write_tensors(out, &specs, &mut |at, out| write(cpu, graph, at, out))
    })?;
    writer.file("adapter_config.json", |out| out.write_all(config.to_json().as_bytes()))?;
    if let Some(kept) = kept {
        writer.file(crate::store::HOW, |out| out.write_all(kept.as_bytes()))?;
    }
    match updates {
        Some((header, numbers)) => writer.file(UPDATES, |out| write_updates(out, header, numbers))?,
        None => writer.without(UPDATES),
    }
    beside.write(&mut writer)?;
    writer.commit()
}

/// What PEFT is told of an adapter.
pub fn config(graph: &Graph, spec: &LoraSpec, base_model: &str) -> AdapterConfig {
    let mut blocks_used: Vec<usize> =
        graph.nodes.iter().filter(|n| !n.op.params().is_empty()).filter_map(|n| n.block).collect();
    blocks_used.dedup();
    let some = blocks_used.len() < graph.blocks && !by_path(graph);
    AdapterConfig {
        rank: spec.rank,
        alpha: f64::from(spec.alpha),
        ranks: spec.ranks.clone(),
        alphas: Patterns(spec.alphas.0.iter().map(|(name, alpha)| (name.clone(), f64::from(*alpha))).collect()),
        stabilized: spec.stabilized,
        dora: spec.dora,
        vera: spec.vera,
        dropout: share(spec.dropout),
        targets: peft::Targets::Modules(target_modules(graph, spec)),
        layers: some.then_some(blocks_used),
        base_model: Some(base_model.into()),
        saved: graph.classifier().map(|_| CLASSIFIER_MODULE.into()).into_iter().collect(),
        task: match graph.classifier() {
            Some(_) => Some("SEQ_CLS".into()),
            None => (graph.naming != Naming::Roberta).then(|| "CAUSAL_LM".into()),
        },
    }
}

/// Whether a configuration has to name modules by their full paths: RoBERTa's, since its head has a `dense` too and `output.dense` is the end
/// of two paths; and those of some layers beside an end of the model, since PEFT leaves out what is in no layer where it is told layers.
fn by_path(graph: &Graph) -> bool {
    let ends = graph.modules.iter().filter(|module| Target::ENDS.contains(&module.target)).count();
    let layers: BTreeSet<Option<usize>> =
        graph.modules.iter().map(|m| Naming::read(&m.path).map(|(at, _)| at)).collect();
    graph.naming == Naming::Roberta || (ends > 0 && layers.len() <= graph.blocks)
}

/// The modules by their own names, or by their full paths.
fn target_modules(graph: &Graph, spec: &LoraSpec) -> Vec<String> {
    if by_path(graph) {
        return graph.modules.iter().map(|module| module.path.clone()).collect();
    }
    spec.targets.iter().filter_map(|target| target.name(graph.naming)).map(String::from).collect()
}

/// A draw from the standard normal distribution, after Box and Muller.
fn normal(numbers: &Philox, index: u64) -> f32 {
    let [a, b] = [2 * index, 2 * index + 1].map(|at| f64::from(numbers.uniform(at)));
    ((-2.0 * (1.0 - a).ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
}

/// The shortest decimal that is this share: 0.1 and not 0.10000000149.
fn share(share: f32) -> f64 {
    share.to_string().parse().unwrap_or_else(|_| f64::from(share))
}

/// Writes tensor `at`: params stand in the order of their numbers.
fn write(cpu: &Cpu, graph: &Graph, at: usize, out: &mut dyn Write) -> std::io::Result<()> {
    let (id, param) = (ParamId(at), graph.params[at]);
    let values = cpu.param(id);
    let module = match param.of {
        Of::Module(module) => module,
        Of::Saved(_) => return out.write_all(bytemuck::cast_slice(values)),
        _ => return vera::write_shared(values, param, id == ParamId(0), out),
    };
    let module = &graph.modules[module];
    if id == module.a || module.lambdas.is_some_and(|[d, _]| id == d) {
        return out.write_all(bytemuck::cast_slice(values));
    }
    (0..values.len()).try_for_each(|i| out.write_all(&values[place(module, id, param.rank, i)].to_le_bytes()))
}
