//! Opens a golden case and runs the engine on it.
#![allow(dead_code)] // Each test binary uses its part.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pocketune::backend::{Batch, Cpu, Group, NO_LABEL, Noise, Rule, Weights};
use pocketune::export::write_store;
use pocketune::families::Config;
use pocketune::graph::{Derivatives, Graph, LoraSpec, ParamId, Target, Turns};
use pocketune::model::{Model, Source};
use pocketune::plan::{self, Layout, Machine, Mode, Policy, PolicyName, Program, Request, States};
use pocketune::train::{Budget, adapter};
use pocketune_formats::{BlockType, ModelFiles, peft};
use pocketune_kernels::Isa;
use pocketune_kernels::attention::Segment;
use pocketune_kernels::matmul::Precision;
use safetensors::SafeTensors;

/// A model with its expected numbers.
pub struct Golden {
    pub name: String,
    /// What the optimizer of its cases remembers.
    pub states: States,
    /// The share of adapters' inputs that its cases drop.
    pub dropout: f32,
    /// Whether first factors stay as they are.
    pub frozen_a: bool,
    /// How derivatives are computed.
    pub derivatives: Derivatives,
    /// Whether the model itself is trained, in a file of its own; without an adapter then.
    pub whole: bool,
    /// How its blocks take turns then.
    pub turns: Option<Turns>,
    /// How often its cases go through their records, each time as a group of its own; once without groups where 0.
    pub groups: usize,
    /// Classes of a head that is trained beside a fresh adapter, in place of the one for tokens.
    classes: Option<usize>,
    model: PathBuf,
    folder: PathBuf,
    expected: BTreeMap<String, (Vec<f32>, Vec<u32>)>,
}

/// A named policy with `rows` rows of logits at a time.
pub fn policy_of(name: PolicyName, rows: usize) -> Policy {
    Policy { loss_rows: rows, ..Policy::named(name) }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

impl Golden {
    /// The case `name`: a folder, or a GGUF file whose numbers are in the folder of its stem; with `_classes` behind it, under a head that takes labels for classes.
    pub fn open(name: &str) -> Self {
        let (name, classes) = name.strip_suffix("_classes").map_or((name, None), |name| (name, Some(96)));
        let folder = root().join(name.trim_end_matches(".gguf"));
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let expected = tensors.iter().map(|(name, tensor)| {
            let words = |width: usize| tensor.data().chunks_exact(width);
            let (floats, integers) = match tensor.dtype() {
                safetensors::Dtype::F32 => {
                    (words(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(), Vec::new())
                }
                _ => (Vec::new(), words(8).map(|b| u64::from_le_bytes(b.try_into().unwrap()) as u32).collect()),
            };
            (name.to_string(), (floats, integers))
        });
        Self {
            name: name.into(),
            states: States::F32,
            dropout: 0.0,
            frozen_a: false,
            derivatives: Derivatives::default(),
            whole: false,
            turns: None,
            groups: 0,
            classes,
            model: root().join(name),
            expected: expected.collect(),
            folder,
        }
    }

    /// What `config.json` and `config.v4.json` of a case say.
    pub fn both_configs(name: &str) -> (Config, Config) {
        let folder = root().join(name);
        let copy = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()) {
            if file.is_file() {
                std::fs::copy(&file, copy.path().join(file.file_name().unwrap())).unwrap();
            }
        }
        std::fs::copy(folder.join("config.v4.json"), copy.path().join("config.json")).unwrap();
        let read = |path: &Path| Model::open(&Source::Path(path.into())).unwrap().config;
        (read(&folder), read(copy.path()))
    }

    pub fn expected(&self, name: &str) -> Vec<f32> {
        self.expected.get(name).unwrap_or_else(|| panic!("{}: no {name}", self.name)).0.clone()
    }

    pub fn integers(&self, name: &str) -> Vec<u32> {
        self.expected[name].1.clone()
    }

    /// The folder of its PEFT adapter.
    pub fn adapter(&self) -> PathBuf {
        self.folder.join("adapter")
    }

    pub fn ids(&self, record: usize) -> Vec<u32> {
        self.integers(&format!("ids.{record}"))
    }

    /// The model, from a file that may be written where it is trained itself.
    fn opened(&self) -> (Model, Option<std::fs::File>) {
        let model = Model::open(&Source::Path(self.model.clone())).unwrap();
        if !self.whole {
            return (model, None);
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("store");
        if self.model.is_file() {
            std::fs::copy(&self.model, &path).unwrap();
        } else {
            write_store(&model, BlockType::F32, &path, Budget::Smallest).unwrap();
        }
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        (Model { files: ModelFiles::open(&path).unwrap(), ..model }, Some(file))
    }

    /// The engine, set up to run this case.
    pub fn case(&self, with_adapter: bool, mode: Mode, policy: PolicyName, threads: usize) -> Case {
        self.case_on(Isa::detect().unwrap(), with_adapter, mode, policy_of(policy, 7), threads)
    }

    pub fn case_on(&self, isa: Isa, with_adapter: bool, mode: Mode, policy: Policy, threads: usize) -> Case {
        self.case_with(isa, Precision::F32, None, with_adapter, mode, policy, threads)
    }

    /// With everything chosen; `lengths` replaces the two records by others of these lengths.
    #[allow(clippy::too_many_arguments)]
    pub fn case_with(
        &self,
        isa: Isa,
        precision: Precision,
        lengths: Option<[usize; 2]>,
        with_adapter: bool,
        mode: Mode,
        policy: Policy,
        threads: usize,
    ) -> Case {
        let (model, copy) = self.opened();
        let folder = self.folder.join("adapter");
        let saved = adapter::open(&folder).unwrap();
        let spec = adapter::spec(&folder, &saved).unwrap();
        let (dropout, frozen_a, derivatives, whole) = (self.dropout, self.frozen_a, self.derivatives, self.whole);
        let (turns, classes) = (self.turns, self.classes);
        let lora = LoraSpec { dropout, frozen_a, derivatives, whole, turns, classes, ..spec };
        let graph = model.config.graph(with_adapter.then_some(&lora)).unwrap();
        let weights = Weights::bind(model.files, &model.config, &graph).unwrap();
        let weights = match copy {
            Some(copy) => weights.writable(copy),
            None => weights,
        };
        let machine = Machine { threads, isa, precision };
        let next = |ids: Vec<u32>| {
            let labels = ids.iter().skip(1).copied().chain(ids.first().map(|_| NO_LABEL)).collect();
            Record { ids, labels }
        };
        let records = match lengths {
            None => [0, 1].map(|at| match self.expected.get(&format!("labels.{at}")) {
                Some((_, labels)) => Record { ids: self.ids(at), labels: labels.clone() },
                None => next(self.ids(at)),
            }),
            Some(lengths) => lengths.map(|len| next((0..len as u32).map(|i| i * 7 % 90).collect())),
        };
        let tokens = (records[0].ids.len() + records[1].ids.len()) * self.groups.max(1);
        let (stored, states) = (weights.stored(), self.states);
        let program = plan::compile(Request { graph: &graph, stored: &stored, tokens, machine, policy, mode, states });
        let kv_width = model.config.kv_heads * model.config.head_dim;
        let layout = Layout::new(&graph, states, policy.page_optimizer, tokens, mode, kv_width);
        let mut cpu = Cpu::new(machine, weights, &graph, layout, &[&program], &std::env::temp_dir()).unwrap();
        if self.classes.is_some() {
            adapter::initialise(&mut cpu, &graph, 1).unwrap();
        } else if with_adapter && !self.whole {
            adapter::load(&mut cpu, &graph, &model.config, &folder, &saved).unwrap();
        }
        Case { graph, program, cpu, records, groups: self.groups }
    }
}

/// An engine with a program and a batch.
pub struct Case {
    pub graph: Graph,
    pub program: Program,
    pub cpu: Cpu,
    records: [Record; 2],
    groups: usize,
}

/// Tokens, and what each is to predict.
struct Record {
    ids: Vec<u32>,
    labels: Vec<u32>,
}

impl Case {
    /// The rows of both records.
    pub fn batch(&self) -> Rows {
        if self.groups == 0 { self.batch_of(&[]) } else { self.batch_of(&(0..self.groups).collect::<Vec<_>>()) }
    }

    /// The rows of both records for each of these groups; once without groups where there are none.
    pub fn batch_of(&self, groups: &[usize]) -> Rows {
        let mut rows = Rows::default();
        for at in 0..groups.len().max(1) {
            for Record { ids, labels } in &self.records {
                let start = rows.ids.len();
                rows.segments.push(Segment { q_start: start, q_len: ids.len(), k_start: start, k_len: ids.len() });
                rows.ids.extend(ids);
                rows.positions.extend(0..ids.len() as u32);
                rows.labels.extend(labels);
            }
            rows.groups.extend(groups.get(at).map(|&number| Group { end: rows.ids.len(), number }));
        }
        rows
    }

    /// One step on both records: the mean loss before the update that `rule` makes.
    pub fn loss(&mut self, rule: Option<Rule>) -> f32 {
        let rows = self.batch();
        let batch = rows.batch();
        self.cpu.clear_grads();
        let outcome = self.cpu.run(&self.program, batch, 0, rule).unwrap();
        if let (Mode::Accumulate, Some(rule)) = (self.program.mode, rule) {
            self.cpu.apply_grads(rule, 1.0).unwrap();
        }
        assert_eq!(outcome.targets, batch.targets);
        (outcome.loss / batch.targets as f64) as f32
    }

    fn logits(&mut self, ids: &[u32], past: usize) -> Vec<f32> {
        let positions: Vec<u32> = (past as u32..(past + ids.len()) as u32).collect();
        self.logits_at(ids, &positions, past)
    }

    /// Of row `last`, which goes to the end with its position.
    pub fn logits_with_last(&mut self, ids: &[u32], last: usize) -> Vec<f32> {
        let mut positions: Vec<u32> = (0..ids.len() as u32).collect();
        positions[last..].rotate_left(1);
        let ids: Vec<u32> = positions.iter().map(|&at| ids[at as usize]).collect();
        self.logits_at(&ids, &positions, 0)
    }

    fn logits_at(&mut self, ids: &[u32], positions: &[u32], past: usize) -> Vec<f32> {
        let batch = Batch {
            ids,
            positions,
            labels: &[],
            choices: &[],
            segments: &[],
            targets: 0,
            noise: Noise::default(),
            groups: &[],
        };
        self.cpu.run(&self.program, batch, past, None).unwrap();
        self.cpu.logits(&self.program).to_vec()
    }

    pub fn logits_at_once(&mut self, ids: &[u32]) -> Vec<f32> {
        self.logits(ids, 0)
    }

    pub fn logits_of(&mut self, id: u32, past: usize) -> Vec<f32> {
        self.logits(&[id], past)
    }

    pub fn logits_by_token(&mut self, ids: &[u32]) -> Vec<f32> {
        ids.iter().enumerate().flat_map(|(past, &id)| self.logits(&[id], past)).collect()
    }

    /// All gradients under their names in adapter files, in Hugging Face's layout.
    pub fn gradients(&self) -> Vec<(String, Vec<f32>)> {
        self.named(|id| self.cpu.grad(id))
    }

    /// All matrices of the adapter, likewise.
    pub fn params(&self) -> Vec<(String, Vec<f32>)> {
        self.named(|id| self.cpu.param(id))
    }

    fn named<'a>(&self, values: impl Fn(ParamId) -> &'a [f32]) -> Vec<(String, Vec<f32>)> {
        let mut named = Vec::new();
        for module in &self.graph.modules {
            if let Some([d, b]) = module.lambdas {
                let in_order = (0..module.rows).map(|row| values(b)[module.file_row(row)]).collect();
                named.extend(peft::vector_names(&module.path).into_iter().zip([values(d).to_vec(), in_order]));
                continue;
            }
            let [a, b, m] = peft::tensor_names(&module.path, module.target == Target::Embedding);
            named.push((a, values(module.a).to_vec()));
            let (held, rank) = (values(module.b), self.graph.params[module.b.0].rank);
            let hf = (0..held.len()).map(|i| held[i % rank * module.rows + module.file_row(i / rank)]);
            named.push((b, hf.collect()));
            if let Some(id) = module.magnitude {
                named.push((m, (0..module.rows).map(|row| values(id)[module.file_row(row)]).collect()));
            }
        }
        named
    }
}

/// A batch with what it borrows.
#[derive(Default)]
pub struct Rows {
    ids: Vec<u32>,
    positions: Vec<u32>,
    labels: Vec<u32>,
    segments: Vec<Segment>,
    groups: Vec<Group>,
}

impl Rows {
    pub fn batch(&self) -> Batch<'_> {
        let targets = self.labels.iter().filter(|&&label| label != NO_LABEL).count();
        Batch {
            ids: &self.ids,
            positions: &self.positions,
            labels: &self.labels,
            choices: &[],
            segments: &self.segments,
            targets,
            noise: Noise::default(),
            groups: &self.groups,
        }
    }
}
