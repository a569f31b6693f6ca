//! From options to a plan: the setting of a run, the fastest plan inside its budget, and what to say when there is none.

use std::ops::RangeInclusive;
use std::path::Path;

use super::{Budget, RunOptions, TrainOptions};
use crate::backend::{Stored, measure_disk, measure_rates, touch_kernels};
use crate::error::{Error, Result};
use crate::families::Config;
use crate::graph::{Graph, Layers, LoraSpec};
use crate::memory::{self, Peak};
use crate::plan::{Machine, Mode, Plan, PolicyName, Rates, Setting, States, Surroundings};
use crate::store::CHUNK;

/// What the process still takes before the first step, beyond what is measured: the programs, and the code of the step, most of
/// which has run already when rates were measured; and what a checkpoint passes through, on its way out and on its way in.
const STILL_TO_COME: usize = CODE + 2 * CHUNK;

/// What the system maps of that code: whole neighbourhoods, larger or smaller by a fifth of a MiB from run to run. Less optimised, it is longer.
const CODE: usize = if cfg!(debug_assertions) { 3 << 19 } else { 1 << 20 };

/// What saving an adapter takes of each of its tensors while all else is held: its name and shape, and its entry in the file's header as a
/// value and as text.
const SAVING: usize = 2048;

/// The code that moves a model's own tensors, of which nothing has run when a plan is made.
const MOVING: usize = 256 << 10;

/// The process as it stands, with what it will still load of itself.
pub fn surroundings(so_far: usize) -> Surroundings {
    Surroundings { process: memory::now().total + STILL_TO_COME, preparation: so_far }
}

/// Everything that a plan depends on beside the budget.
#[derive(Clone)]
pub struct Task {
    /// The model's numbers.
    pub config: Config,
    /// How weights are stored, by the graph's order; the last is taken for what is beyond.
    pub stored: Vec<Stored>,
    /// The adapters, where there are any.
    pub lora: Option<LoraSpec>,
    /// Most tokens of a record.
    pub length: usize,
    /// Records of a batch.
    pub batch: usize,
    /// How often a step looks at every record.
    pub groups: usize,
    /// How often a step goes over its batch.
    pub looks: usize,
    /// Floats of the log that a run keeps of its updates.
    pub log: usize,
    /// What the kernels run with.
    pub machine: Machine,
    /// Whether gradients wait for all others.
    pub mode: Mode,
    /// What the optimizer remembers.
    pub states: States,
    /// Whether a validation set is measured.
    pub validates: bool,
    /// A policy that the user insists on.
    pub named: Option<PolicyName>,
    /// The process around the arena.
    pub around: Surroundings,
    /// How fast this machine is.
    pub rates: Rates,
}

impl Task {
    /// Passes without gradients: `batch` records of up to `length` tokens.
    ///
    /// # Errors
    /// When the options for the kernels can't work.
    pub fn forward(
        run: RunOptions,
        config: &Config,
        stored: Vec<Stored>,
        lora: Option<LoraSpec>,
        mode: Mode,
        (batch, length): (usize, usize),
    ) -> Result<Self> {
        let machine = run.machine()?;
        let rates = run.rates.unwrap_or_else(|| measure_rates(machine));
        if run.rates.is_some() {
            touch_kernels(machine);
        }
        memory::trim();
        Ok(Self {
            config: config.clone(),
            stored,
            lora,
            length,
            batch,
            groups: 1,
            looks: 1,
            log: 0,
            machine,
            mode,
            states: States::None,
            validates: false,
            named: None,
            around: surroundings(0),
            rates,
        })
    }

    /// Training as `options` say, with records of up to `length` tokens.
    ///
    /// # Errors
    /// When the options for the kernels can't work, or the adapters don't fit the model.
    pub fn training(
        options: &TrainOptions,
        config: &Config,
        stored: Vec<Stored>,
        lora: LoraSpec,
        length: usize,
        so_far: usize,
    ) -> Result<Self> {
        let size = (options.batch_size, length);
        let saving = SAVING * config.graph(Some(&lora))?.params.len() + if lora.whole { MOVING } else { 0 };
        let forward = Self::forward(options.run, config, stored, Some(lora), options.mode(), size)?;
        // Measuring rates held memory too.
        let preparation = so_far.max(Peak::default().look().total);
        let around = Surroundings { process: forward.around.process + saving, preparation };
        let (states, named, groups, log) = (options.states(), options.policy.named(), options.groups(), options.log());
        Ok(Self { states, named, groups, looks: options.looks(), log, around, ..forward })
    }

    /// Measures the disk that holds `folder`, where a plan inside `budget` may use it: where not everything fits.
    ///
    /// # Errors
    /// When the adapters don't fit the model, or the budget the machine.
    pub fn with_disk(mut self, folder: &Path, budget: Budget) -> Result<Self> {
        let roomiest = self.with(|setting, _| setting.roomiest().peak())?;
        if budget.bytes()?.is_none_or(|bytes| bytes < roomiest) {
            self.rates = measure_disk(folder, self.rates);
        }
        Ok(self)
    }

    /// The graph and its setting, handed to `with`.
    ///
    /// # Errors
    /// When the adapters don't fit the model.
    pub fn with<R>(&self, with: impl FnOnce(&Setting, &Graph) -> R) -> Result<R> {
        let graph = self.config.graph(self.lora.as_ref())?;
        let setting = Setting {
            graph: &graph,
            stored: &self.stored,
            length: self.length,
            batch: self.batch,
            groups: self.groups,
            looks: self.looks,
            log: self.log,
            machine: self.machine,
            mode: self.mode,
            validates: self.validates,
            states: self.states,
            named: self.named,
            may_spill: true,
            around: self.around,
            rates: self.rates,
            kv_width: self.config.kv_heads * self.config.head_dim,
        };
        Ok(with(&setting, &graph))
    }

    /// The fastest plan inside the budget.
    ///
    /// # Errors
    /// When there is none: with the smallest budget that would do, and what would make it smaller.
    pub fn choose(&self, budget: Budget) -> Result<Plan> {
        let bytes = budget.bytes()?;
        let plan = self.with(|setting, _| {
            let search = setting.search();
            bytes.map_or_else(|| Some(search.small(search.smallest())), |bytes| search.fastest(bytes))
        })?;
        plan.map_or_else(|| Err(self.refusal(bytes.unwrap_or(0))?), Ok)
    }

    /// The fastest plan of at most `bytes`, where there is one.
    ///
    /// # Errors
    /// When the adapters don't fit the model.
    pub fn inside(&self, bytes: usize) -> Result<Option<Plan>> {
        self.with(|setting, _| setting.fastest(bytes))
    }

    /// The plan for a run that goes on with another amount of memory: the fastest that holds at most `bytes` from now on, or the smallest
    /// where none does.
    ///
    /// # Errors
    /// When the adapters don't fit the model.
    pub fn squeezed(&self, bytes: usize) -> Result<Plan> {
        // How high the process stood while it prepared is past.
        let around = Surroundings { preparation: 0, ..self.around };
        Task { around, ..self.clone() }.with(|setting, _| {
            let search = setting.search();
            search.fastest(bytes).unwrap_or_else(|| search.smallest())
        })
    }

    /// A plan whose steps can be abandoned at any moment, where one of at most `bytes` takes about as long as `plan`: gradients wait
    /// for each other, so that nothing is applied before all are there.
    ///
    /// # Errors
    /// When the adapters don't fit the model.
    pub fn waiting(&self, plan: &Plan, bytes: usize) -> Result<Option<(Task, Plan)>> {
        // All gradients of a model itself at once would be as large as the model.
        if self.lora.as_ref().is_some_and(|lora| lora.whole) {
            return Ok(None);
        }
        let task = Task { mode: Mode::Accumulate, ..self.clone() };
        let found = task.inside(bytes)?.filter(|found| found.seconds() <= 1.05 * plan.seconds());
        Ok(found.map(|plan| (task, plan)))
    }

    /// The same with what a budget is stated with.
    #[must_use]
    pub fn stated(self) -> Self {
        Self { around: self.around.stated(), ..self }
    }

    fn refusal(&self, bytes: usize) -> Result<Error> {
        let mib = |bytes: usize| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
        let task = self.clone().stated();
        let smallest = task.with(|setting, _| setting.smallest().peak())?;
        let mut text = format!("the smallest plan needs {} ({smallest} bytes)", mib(smallest));
        let mut changes: Vec<(usize, String)> = Vec::new();
        for (change, words) in task.changes() {
            let peak = change.with(|setting, _| setting.smallest().peak())?;
            if peak < smallest {
                changes.push((peak, words));
            }
        }
        changes.sort();
        for (peak, words) in changes.into_iter().take(3) {
            text.push_str(&format!("; {words} would need {}", mib(peak)));
        }
        Ok(Error::Option { option: "memory-budget", value: mib(bytes), fault: text })
    }

    /// What a user could change, with the words for it.
    fn changes(&self) -> Vec<(Task, String)> {
        let mut changes = Vec::new();
        if self.batch > 1 {
            changes.push((Task { batch: 1, ..self.clone() }, "--batch-size 1".to_string()));
        }
        // A generator's room is named by other options.
        if self.length >= 64 && !matches!(self.mode, Mode::Generate { .. }) {
            let length = self.length / 2;
            changes.push((Task { length, ..self.clone() }, format!("--max-seq-length {length}")));
        }
        if let Some(lora) = self.lora.clone().filter(|lora| lora.rank > 1 && !lora.whole) {
            let lora = LoraSpec { rank: lora.rank / 2, ..lora };
            let words = format!("--lora-rank {}", lora.rank);
            changes.push((Task { lora: Some(lora), ..self.clone() }, words));
        }
        if let Some(lora) =
            self.lora.clone().filter(|lora| lora.layers == Layers::All && self.config.layers > 1 && !lora.whole)
        {
            let last = self.config.layers / 2;
            let lora = LoraSpec { layers: Layers::Last(last), ..lora };
            changes.push((Task { lora: Some(lora), ..self.clone() }, format!("--num-layers {last}")));
        }
        // The next smaller state: 8 bits save three quarters of what no state at all would.
        let smaller = match self.states {
            States::F32 => Some((States::Bits8, "--optimizer adamw8bit")),
            States::Bits8 => Some((States::None, "--optimizer sgd")),
            States::None | States::Factored | States::Projected(_) | States::Compressed | States::Subspace(_) => None,
        };
        if let Some((states, words)) = smaller {
            changes.push((Task { states, ..self.clone() }, words.to_string()));
        }
        if self.named.is_some() {
            changes.push((Task { named: None, ..self.clone() }, "--grad-checkpoint auto".to_string()));
        }
        changes
    }

    /// The most tokens a record may have, in this budget.
    ///
    /// # Errors
    /// When the adapters don't fit the model.
    pub fn longest(&self, budget: usize) -> Result<usize> {
        self.largest(budget, self.length..=self.config.longest(1 << 20), |length| Task { length, ..self.clone() })
    }

    /// The most records a batch may have, in this budget.
    ///
    /// # Errors
    /// When the adapters don't fit the model.
    pub fn widest(&self, budget: usize) -> Result<usize> {
        self.largest(budget, self.batch..=1 << 12, |batch| Task { batch, ..self.clone() })
    }

    /// The largest number up to the range's end with a plan that fits, to within a sixteenth, which is enough to choose by, but not below its
    /// start where that fits; 0 when none does.
    pub(super) fn largest(
        &self,
        budget: usize,
        numbers: RangeInclusive<usize>,
        with: impl Fn(usize) -> Task,
    ) -> Result<usize> {
        let fits = |number: usize| with(number).with(|setting, _| setting.fits(budget));
        let (start, limit) = numbers.into_inner();
        let (mut low, mut high) = if fits(start)? { (start, start * 2) } else { (0, start) };
        while low > 0 && high <= limit && fits(high)? {
            (low, high) = (high, high * 2);
        }
        while high - low > 1.max(low / 16) {
            let middle = low + (high - low) / 2;
            if fits(middle)? { low = middle } else { high = middle }
        }
        Ok(low.min(limit))
    }
}

/// The closest folder to `path` that exists.
pub(super) fn closest_folder(path: &Path) -> &Path {
    let folder = path.ancestors().find(|path| path.is_dir());
    folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
