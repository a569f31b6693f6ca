//! Opens a golden case and runs the engine on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pocketune::backend::{Batch, Cpu, NO_LABEL, Rule, Weights};
use pocketune::families::Config;
use pocketune::graph::{Graph, ParamId};
use pocketune::model::{Model, Source};
use pocketune::plan::{self, Layout, Machine, Mode, Policy, PolicyName, Program, Request};
use pocketune::train::adapter;
use pocketune_formats::peft::{self, Adapter};
use pocketune_kernels::Isa;
use pocketune_kernels::attention::Segment;
use pocketune_kernels::matmul::Precision;
use safetensors::SafeTensors;

/// A model with its expected numbers.
pub struct Golden {
    pub name: String,
    model: PathBuf,
    folder: PathBuf,
    expected: BTreeMap<String, (Vec<f32>, Vec<u32>)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

impl Golden {
    /// The case `name`: a folder, or a GGUF file whose numbers are in the folder of its stem.
    pub fn open(name: &str) -> Self {
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
        Self { name: name.into(), model: root().join(name), expected: expected.collect(), folder }
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

    pub fn ids(&self, record: usize) -> Vec<u32> {
        self.integers(&format!("ids.{record}"))
    }

    /// The engine, set up to run this case.
    pub fn case(&self, with_adapter: bool, mode: Mode, policy: PolicyName, threads: usize) -> Case {
        self.case_on(Isa::detect().unwrap(), with_adapter, mode, Policy { name: policy, loss_rows: 7 }, threads)
    }

    pub fn case_on(&self, isa: Isa, with_adapter: bool, mode: Mode, policy: Policy, threads: usize) -> Case {
        let model = Model::open(&Source::Path(self.model.clone())).unwrap();
        let folder = self.folder.join("adapter");
        let saved = Adapter::open(&folder).unwrap();
        let lora = adapter::spec(&folder, &saved).unwrap();
        let graph = model.config.graph(with_adapter.then_some(&lora)).unwrap();
        let weights = Weights::bind(model.files, &model.config, &graph).unwrap();
        let machine = Machine { threads, isa, precision: Precision::F32 };
        let records = [self.ids(0), self.ids(1)];
        let tokens = records[0].len() + records[1].len();
        let program = plan::compile(Request { graph: &graph, types: &weights.types(), tokens, machine, policy, mode });
        let kv_width = model.config.kv_heads * model.config.head_dim;
        let layout = Layout::new(&graph, 2, tokens, mode, kv_width);
        let mut cpu = Cpu::new(machine, weights, &graph, layout, program.len).unwrap();
        if with_adapter {
            adapter::load(&mut cpu, &graph, &folder, &saved).unwrap();
        }
        Case { graph, program, cpu, records }
    }
}

/// An engine with a program and a batch.
pub struct Case {
    pub graph: Graph,
    pub program: Program,
    pub cpu: Cpu,
    records: [Vec<u32>; 2],
}

impl Case {
    /// One step on both records: the mean loss before the update that `rule` makes.
    pub fn loss(&mut self, rule: Option<Rule>) -> f32 {
        let (mut ids, mut positions, mut labels, mut segments) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for record in &self.records {
            segments.push(Segment { q_start: ids.len(), q_len: record.len(), k_start: ids.len(), k_len: record.len() });
            ids.extend(record);
            positions.extend(0..record.len() as u32);
            labels.extend(record[1..].iter().copied().chain([NO_LABEL]));
        }
        let targets = labels.iter().filter(|&&label| label != NO_LABEL).count();
        let batch = Batch { ids: &ids, positions: &positions, labels: &labels, segments: &segments, targets };
        self.cpu.clear_grads();
        let outcome = self.cpu.run(&self.program, batch, 0, rule);
        if let (Mode::Accumulate, Some(rule)) = (self.program.mode, rule) {
            self.cpu.apply_grads(rule);
        }
        assert_eq!(outcome.targets, targets);
        (outcome.loss / targets as f64) as f32
    }

    fn logits(&mut self, ids: &[u32], past: usize) -> Vec<f32> {
        let positions: Vec<u32> = (past as u32..(past + ids.len()) as u32).collect();
        let batch = Batch { ids, positions: &positions, labels: &[], segments: &[], targets: 0 };
        self.cpu.run(&self.program, batch, past, None);
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
        for (at, module) in self.graph.modules.iter().enumerate() {
            let [a, b] = peft::tensor_names(&module.path);
            named.push((a, values(ParamId(2 * at)).to_vec()));
            let (held, rank) = (values(ParamId(2 * at + 1)), self.graph.params[2 * at].rank);
            let hf = (0..held.len()).map(|i| held[i % rank * module.rows + module.file_row(i / rank)]);
            named.push((b, hf.collect()));
        }
        named
    }
}
