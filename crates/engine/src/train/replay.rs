//! A run without gradients as what it was: a seed, and a few numbers an update. They lie beside its adapter, and the adapter can be made of them
//! again, to the bit, without data. A file for another model, or another start, is refused.

use std::path::Path;

use pocketune_formats::peft::{AdapterConfig, TENSORS_FILE, Targets};
use pocketune_formats::{BlockType, json, mlx};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::planning::closest_folder;
use super::terms::{hex, model_sum};
use super::zeroth::{Zeroth, rounding, stirs};
use super::{Budget, LoraChoice, Method, RunOptions, TrainOptions, adapter, whole};
use crate::backend::{Cpu, Still, Weights};
use crate::beside::Beside;
use crate::error::{Error, Result};
use crate::families::Config;
use crate::graph::{Graph, Layers, LoraSpec, Naming, Target};
use crate::model::{Model, Source};
use crate::plan::{Layout, Mode, Policy, PolicyName, Program, Request, States, compile};
use crate::store::{UPDATES, parse_updates, read_updates};

/// The form of the header and the numbers.
const FORMAT: u32 = 1;

/// The word for a model in its own blocks, whose scales are moved.
const SCALES: &str = "scales";

/// What updates depend on beside their own numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    method: String,
    seed: u64,
    /// The model's sum.
    model: String,
    /// The sum of the adapter's file that the run started from; a fresh one is a function of the seed.
    start: Option<String>,
    /// The adapter, as PEFT describes it; none where the model itself is moved.
    adapter: Option<String>,
    /// Classes of the head beside the adapter, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    classes: Option<usize>,
    /// How its numbers are stored then.
    store: Option<String>,
}

/// The header of the updates that go beside an adapter.
///
/// # Errors
/// When the adapter that the run started from is no longer there.
pub(super) fn header(
    options: &TrainOptions,
    model: [u8; 32],
    adapter: Option<&AdapterConfig>,
    classes: Option<usize>,
) -> Result<Vec<u8>> {
    let start = match &options.lora {
        LoraChoice::New(_) => None,
        LoraChoice::From(folder) => Some(start_sum(folder)?),
    };
    let (method, model) = (options.method.name().into(), hex(model));
    let store = match options.method {
        Method::Qzo => Some(SCALES.into()),
        _ => options.all.then(|| options.store.name().into()),
    };
    let seed = options.seed;
    let adapter = adapter.map(AdapterConfig::to_json);
    let header = Header { format: FORMAT, method, seed, model, start, adapter, classes, store };
    Ok(serde_json::to_vec(&header).expect("numbers and words"))
}

fn start_sum(path: &Path) -> Result<String> {
    let inside = [TENSORS_FILE, mlx::TENSORS_FILE].map(|name| path.join(name)).into_iter().find(|file| file.is_file());
    let path = inside.unwrap_or_else(|| path.into());
    let bytes = std::fs::read(&path).map_err(|error| Error::io(&path, error))?;
    Ok(hex(Sha256::digest(bytes).into()))
}

/// What a file of updates says.
pub struct Updates {
    header: Header,
    zeroth: Zeroth,
    spec: LoraSpec,
    /// How a model itself is stored: as these floats, or in its own blocks.
    store: Option<Option<BlockType>>,
    numbers: Vec<f32>,
}

impl Updates {
    /// Of the bytes of a file that was read from `path`.
    ///
    /// # Errors
    /// When it is damaged or describes no run that there could have been.
    pub fn of(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (text, numbers) = parse_updates(path, bytes)?;
        let fault = |fault: String| Error::Checkpoint { path: path.into(), fault };
        let header: Header = json::document(text).map_err(|error| fault(format!("an unknown header: {error}")))?;
        if header.format != FORMAT {
            return Err(fault(format!("updates of format {}, where this program knows {FORMAT}", header.format)));
        }
        let zeroth = Method::named(&header.method).and_then(Method::zeroth);
        let zeroth = zeroth.ok_or_else(|| fault(format!("no method is called {:?}", header.method)))?;
        let store = match header.store.as_deref() {
            None => None,
            Some(SCALES) => Some(None),
            Some("f32") => Some(Some(BlockType::F32)),
            Some("bf16") => Some(Some(BlockType::BF16)),
            Some(other) => return Err(fault(format!("a model stored as {other:?}"))),
        };
        let spec = match (&header.adapter, store) {
            (None, Some(ty)) => Some(LoraSpec { whole: true, scales: ty.is_none(), ..LoraSpec::default() }),
            (Some(adapter), None) => spec(adapter, header.classes),
            _ => None,
        };
        let spec = spec.ok_or_else(|| fault("an adapter that no such run has".into()))?;
        Ok(Self { header, zeroth, spec, store, numbers })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.numbers.len() / self.zeroth.words()
    }
}

/// A replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions<'a> {
    /// The folder of the run's adapter, of which the updates are read alone.
    pub run: &'a Path,
    /// The model that it was trained on.
    pub model: &'a Source,
    /// The adapter that it started from, where that was no fresh one.
    pub start: Option<&'a Path>,
    /// Where the adapter goes.
    pub output: &'a Path,
    /// How kernels run.
    pub kernels: RunOptions,
}

/// Makes a run's adapter again, and says how many updates it is made of.
///
/// # Errors
/// When the updates are damaged or are those of another model or start, or the system fails.
pub fn replay(options: &ReplayOptions) -> Result<usize> {
    let path = options.run.join(UPDATES);
    let fault = |fault: String| Error::Checkpoint { path: path.clone(), fault };
    let Updates { header, zeroth, spec, store, numbers } = Updates::of(&path, &read_updates(&path)?)?;
    let model = Model::open(options.model)?;
    if hex(model_sum(&model.files)) != header.model {
        return Err(fault("these are updates of another model".into()));
    }
    let graph = model.config.graph(Some(&spec))?;
    let (model, file) = match store {
        Some(ty) => whole::open(model, ty, closest_folder(options.output), Budget::Available)
            .map(|(model, file)| (model, Some(file)))?,
        None => (model, None),
    };
    let weights = Weights::bind(model.files, &model.config, &graph)?;
    let stored = weights.stored();
    let weights = match file {
        Some(file) => weights.writable(file),
        None => weights,
    };
    let machine = options.kernels.machine()?;
    let layout = Layout::new(&graph, States::None, false, 0, Mode::Evaluate, 0);
    // What a step works with lies where a program would: where the model itself is moved it is a program's that sees one token.
    let (mode, policy) = (Mode::Perturb, Policy::named(PolicyName::Block));
    let request = Request { graph: &graph, stored: &stored, tokens: 1, machine, policy, mode, states: States::None };
    let program = graph.whole.then(|| compile(request));
    let programs: Vec<&Program> = program.iter().collect();
    let mut cpu = Cpu::new(machine, weights, &graph, layout, &programs, &std::env::temp_dir())?;
    start(&mut cpu, &graph, &model.config, &header, options.start, &fault)?;
    if let (true, Still::Large(share)) = (graph.whole, zeroth.still) {
        cpu.measure_limits(share);
    }
    let updates = numbers.chunks_exact(zeroth.words()).enumerate();
    let count = updates.len();
    for (at, update) in updates {
        let (keep, coefficients) = update.split_last().expect("a number for what is left, at least");
        if stirs(coefficients, *keep) {
            cpu.aim(zeroth.aim(header.seed, at + 1, 0.0), &graph);
            cpu.step_along(coefficients, *keep, rounding(header.seed, at + 1))?;
        }
    }
    if graph.whole {
        whole::save(&cpu, &graph, None, None, options.output)?;
        drop(cpu);
        let result = whole::save_folder(options.model, options.output, Budget::Available)?;
        whole::clear(&result, options.output)?;
        return Ok(count);
    }
    let name = options.model.name();
    adapter::save(
        &cpu,
        &graph,
        &adapter::config(&graph, &spec, &name),
        None,
        None,
        &Beside::default(),
        options.output,
    )?;
    Ok(count)
}

/// Brings the adapter to where the run started.
fn start(
    cpu: &mut Cpu,
    graph: &Graph,
    config: &Config,
    header: &Header,
    from: Option<&Path>,
    fault: &dyn Fn(String) -> Error,
) -> Result<()> {
    match (&header.start, from) {
        (None, None) => adapter::initialise(cpu, graph, header.seed)?,
        (None, Some(_)) => return Err(fault("the run started from a fresh adapter; leave --init-adapter out".into())),
        (Some(_), None) => return Err(fault("the run started from another adapter; --init-adapter names it".into())),
        (Some(sum), Some(folder)) if start_sum(folder)? == *sum => {
            adapter::load(cpu, graph, config, folder, &adapter::open(folder)?)?;
        }
        (Some(_), Some(folder)) => {
            return Err(fault(format!("the run started from another adapter than {}", folder.display())));
        }
    }
    Ok(())
}

/// The adapters that a configuration describes: on linears of blocks, by their own names or by their paths.
fn spec(text: &str, classes: Option<usize>) -> Option<LoraSpec> {
    let config =
        AdapterConfig::from_json(json::document::<serde_json::Value>(text.as_bytes()).ok()?.as_object()?).ok()?;
    let Targets::Modules(names) = &config.targets else { return None };
    let (mut targets, mut blocks) = (Vec::new(), Vec::new());
    for name in names {
        match Naming::read(name) {
            Some((block, target)) => {
                blocks.push(block);
                targets.push(target);
            }
            None => targets.extend(Target::parse_list(name).ok()?),
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    targets.sort_unstable();
    targets.dedup();
    let by_path = Some(blocks).filter(|blocks| !blocks.is_empty());
    let layers = config.layers.clone().or(by_path).map_or(Layers::All, Layers::Only);
    Some(adapter::of_config(&config, LoraSpec { targets, layers, classes, ..LoraSpec::default() }))
}
