//! What a run is to do, after the words of the command line or the calls of an app have been understood.

use std::path::{Path, PathBuf};

use pocketune_kernels::matmul::Precision;
use pocketune_kernels::{BlockType, Isa};

use super::planning::closest_folder;
use super::{Budget, DataOptions, Keeping, Method, Order, Schedule, Shifts, Zeroth};
use crate::error::{Error, Result};
use crate::families::Config;
use crate::graph::{Derivatives, LoraSpec};
use crate::model::Source;
use crate::plan::{Machine, Mode, PolicyName, Rates, States};

/// Where the adapter comes from.
#[derive(Clone, Debug)]
pub enum LoraChoice {
    /// A fresh one.
    New(LoraSpec),
    /// A PEFT folder, with its rank, alpha and targets.
    From(PathBuf),
}

/// The update rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Optimizer {
    /// AdamW with PyTorch's semantics.
    AdamW,
    /// The same with its moments in 8 bits; an approximation.
    AdamW8bit,
    /// SGD without momentum, with PyTorch's semantics.
    Sgd,
    /// AdaLomo, for a model's own tensors.
    AdaLomo,
    /// APOLLO, for a model's own tensors: with a factor for every channel, or with one for each tensor.
    Apollo {
        /// Whether it is one for each tensor.
        mini: bool,
    },
    /// MLorc, for a model's own tensors.
    Mlorc,
    /// GaLore, for a model's own tensors.
    Galore,
}

impl Optimizer {
    /// Rows that APOLLO projects gradients to: 3 % of AdamW's state for SmolLM2-135M, whose narrowest side is 576.
    pub const APOLLO_RANK: usize = 16;

    /// Singular vectors that GaLore projects gradients onto: 4 % of AdamW's state there.
    pub const GALORE_RANK: usize = 16;

    /// What it remembers of every trainable matrix.
    pub const fn states(self) -> States {
        match self {
            Optimizer::AdamW => States::F32,
            Optimizer::AdamW8bit => States::Bits8,
            Optimizer::Sgd => States::None,
            Optimizer::AdaLomo => States::Factored,
            Optimizer::Apollo { mini } => States::Projected(if mini { 1 } else { Self::APOLLO_RANK }),
            Optimizer::Mlorc => States::Compressed,
            Optimizer::Galore => States::Subspace(Self::GALORE_RANK),
        }
    }

    /// PyTorch's default weight decay.
    pub const fn default_decay(self) -> f32 {
        match self {
            Optimizer::AdamW | Optimizer::AdamW8bit | Optimizer::Mlorc => 0.01,
            Optimizer::Sgd | Optimizer::AdaLomo | Optimizer::Apollo { .. } | Optimizer::Galore => 0.0,
        }
    }
}

/// What is kept for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyChoice {
    /// A policy by name.
    Named(PolicyName),
    /// The engine's choice.
    Auto,
}

impl PolicyChoice {
    /// The policy that the user insists on.
    pub const fn named(self) -> Option<PolicyName> {
        match self {
            PolicyChoice::Named(name) => Some(name),
            PolicyChoice::Auto => None,
        }
    }
}

/// What matrix inputs are rounded to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionChoice {
    /// What the processor multiplies fastest: bf16, 16-bit integers or f32.
    Auto,
    /// f32.
    F32,
    /// bf16.
    Bf16,
    /// 16-bit integers, with a scale for each 256 of them.
    Int16,
}

/// How kernels run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Threads; as many as [`crate::threads`] finds when `None`.
    pub threads: Option<usize>,
    /// What matrix inputs are rounded to.
    pub precision: PrecisionChoice,
    /// How fast the machine is, where that was measured earlier; it is measured afresh when `None`.
    pub rates: Option<Rates>,
}

impl RunOptions {
    /// What the kernels will run with.
    ///
    /// # Errors
    /// When a number of threads is out of bounds or the environment names an instruction set that isn't there.
    pub fn machine(&self) -> Result<Machine> {
        let isa = Isa::detect().map_err(Error::System)?;
        let threads = match self.threads {
            Some(threads) if (1..=1024).contains(&threads) => threads,
            Some(threads) => {
                let fault = "a number of threads lies between 1 and 1024".into();
                return Err(Error::Option { option: "threads", value: threads.to_string(), fault });
            }
            None => crate::threads::default(),
        };
        let precision = match self.precision {
            PrecisionChoice::F32 => Precision::F32,
            PrecisionChoice::Bf16 => Precision::Bf16,
            PrecisionChoice::Int16 => Precision::Int16,
            PrecisionChoice::Auto => isa.precision(),
        };
        Ok(Machine { threads, isa, precision })
    }
}

/// A training run.
#[derive(Clone, Debug)]
pub struct TrainOptions {
    /// The model.
    pub model: Source,
    /// The records.
    pub data: DataOptions,
    /// Where the adapter goes.
    pub adapter_path: PathBuf,
    /// How it is trained.
    pub method: Method,
    /// Whether a method without gradients moves all parameters of the model, and not an adapter.
    pub all: bool,
    /// The share of blocks that the gradient passes by, drawn anew for every update; not exact.
    pub drop_backward: f64,
    /// Derivatives that are computed in another way.
    pub derivatives: Derivatives,
    /// How far methods without gradients move matrices to look at a loss; the method's own where `None`.
    pub zo_eps: Option<f32>,
    /// Updates after which other blocks learn, where they take turns; the method's own where `None`.
    pub switch_every: Option<usize>,
    /// In what order they do; the method's own where `None`.
    pub block_order: Option<Order>,
    /// How the model's numbers are stored where it is trained itself: `F32` or `BF16`.
    pub store: BlockType,
    /// The adapter to train.
    pub lora: LoraChoice,
    /// How many times the learning rate the second factors (and magnitudes) are trained with (LoRA+).
    pub lora_plus: f32,
    /// Updates.
    pub iters: usize,
    /// How often every record is trained on, in place of a number of updates.
    pub epochs: Option<f64>,
    /// Records a pass.
    pub batch_size: usize,
    /// Passes an update.
    pub accumulation: usize,
    /// Longer records are cut.
    pub max_seq_length: usize,
    /// Whether a pass has as many records as fit `batch_size` times `max_seq_length` tokens.
    pub pack: bool,
    /// The update rule.
    pub optimizer: Optimizer,
    /// Weight decay; PyTorch's default when `None`.
    pub weight_decay: Option<f32>,
    /// The learning rate over time.
    pub schedule: Schedule,
    /// What is kept for the backward pass.
    pub policy: PolicyChoice,
    /// Whether records are shuffled, anew for every epoch.
    pub shuffle: bool,
    /// The seed of everything random.
    pub seed: u64,
    /// Updates between reports.
    pub steps_per_report: usize,
    /// Updates between validations.
    pub steps_per_eval: usize,
    /// Batches of a validation; all when `None`.
    pub val_batches: Option<usize>,
    /// Whether the adapter of the lowest validation loss is kept, instead of the last.
    pub save_best: bool,
    /// Validations in a row without a lower loss after which the run ends.
    pub early_stopping: Option<usize>,
    /// The memory that the process may take.
    pub budget: Budget,
    /// Where values and states wait that don't fit; beside the adapter when `None`.
    pub spill_folder: Option<PathBuf>,
    /// Gradients of an update whose norm together is above this are scaled down to it.
    pub max_grad_norm: Option<f32>,
    /// A loss that lies so many standard deviations above the usual is a spike, and its update is skipped.
    pub max_loss_z: Option<f64>,
    /// When the state of the run goes to disk and comes back.
    pub keeping: Keeping,
    /// How kernels run.
    pub run: RunOptions,
    /// A text that is kept beside the adapter as `pocketune.yaml`: what was run.
    pub kept: Option<String>,
}

impl TrainOptions {
    /// What the optimizer remembers of every trainable matrix.
    pub const fn states(&self) -> States {
        if self.method.zeroth().is_some() { States::None } else { self.optimizer.states() }
    }

    /// Weight decay: as asked, or the update rule's own; none without gradients.
    pub fn decay(&self) -> f32 {
        let usual = if self.method.zeroth().is_some() { 0.0 } else { self.optimizer.default_decay() };
        self.weight_decay.unwrap_or(usual)
    }

    /// The adapters of `spec` as this run trains them; `given` where they come from a file.
    ///
    /// # Errors
    /// When its method can't train such adapters.
    pub fn adapt(&self, spec: LoraSpec, given: bool) -> Result<LoraSpec> {
        if self.all && given {
            return Method::Full.adapt(spec, given).map_err(|error| match error {
                Error::Option { option, fault, .. } => {
                    Error::Option { option, value: self.method.name().into(), fault }
                }
                other => other,
            });
        }
        if self.all && self.method != Method::Qzo {
            return Ok(LoraSpec { whole: true, ..LoraSpec::default() });
        }
        Ok(LoraSpec { derivatives: self.derivatives, ..self.method.adapt(spec, given)? })
    }

    /// The same of a fresh adapter for the model of `config`, with a head beside it where answers are classes.
    ///
    /// # Errors
    /// As [`TrainOptions::adapt`]; and when a head is asked for that a model which is trained itself has not got.
    pub fn adapted(&self, spec: LoraSpec, config: &Config) -> Result<LoraSpec> {
        let (spec, classes) = (self.adapt(spec, false)?, self.data.classes(config)?);
        if !spec.whole {
            return Ok(LoraSpec { classes, ..spec });
        }
        match classes.filter(|_| config.classes.is_none()) {
            None => Ok(spec),
            Some(_) => {
                let fault = "the model has no such head, and one that is trained itself has to; --method backprop trains one beside an \
                             adapter, and transformers' AutoModelForSequenceClassification saves the model with one";
                Err(Error::Option { option: "classification-head", value: String::new(), fault: fault.into() })
            }
        }
    }

    /// Whether the model itself is trained, and not an adapter.
    pub const fn trains_all(&self) -> bool {
        self.all || self.method.trains_all()
    }

    /// How far methods without gradients move matrices: of an adapter, or of the model itself.
    pub fn zo_eps(&self) -> f32 {
        let usual = |zeroth: Zeroth| if self.all { Zeroth::EPS_OF_ALL } else { zeroth.eps };
        self.zo_eps.or(self.method.zeroth().map(usual)).unwrap_or(0.0)
    }

    /// How blocks take turns to learn, where they do.
    pub fn shifts(&self) -> Option<Shifts> {
        let (turns, order, every) = self.method.turns()?;
        let (order, every) = (self.block_order.unwrap_or(order), self.switch_every.unwrap_or(every));
        Some(Shifts { order, every, at_once: turns.blocks, seed: self.seed })
    }

    /// How often a step looks at every record.
    pub fn groups(&self) -> usize {
        self.method.zeroth().map_or(1, |zeroth| zeroth.sides.groups())
    }

    /// Floats of the log that the run keeps of its updates.
    pub fn log(&self) -> usize {
        self.method.zeroth().map_or(0, |zeroth| zeroth.words() * self.iters)
    }

    /// Where files without a name go: as was asked, or the closest folder to the adapter's that exists.
    pub fn spill_folder(&self) -> &Path {
        self.spill_folder.as_deref().unwrap_or_else(|| closest_folder(&self.adapter_path))
    }

    /// Whether the adapter of the lowest validation loss is kept, instead of the last.
    pub const fn keeps_best(&self) -> bool {
        self.save_best || self.early_stopping.is_some()
    }

    /// The same with a number of updates, where epochs were asked for; each has so many passes.
    pub fn with_epochs_of(&self, passes: u64) -> Self {
        let updates = |epochs: f64| (epochs * passes as f64 / self.accumulation as f64).ceil().max(1.0) as usize;
        Self { iters: self.epochs.map_or(self.iters, updates), ..self.clone() }
    }

    /// Whether gradients must wait for all others of the update.
    pub const fn mode(&self) -> Mode {
        if self.method.zeroth().is_some() {
            return Mode::Perturb;
        }
        // A model itself is gone over twice instead.
        let clipped = self.max_grad_norm.is_some() && !self.method.trains_all();
        if self.accumulation > 1 || clipped { Mode::Accumulate } else { Mode::TrainAndUpdate }
    }

    /// How often a step goes over its batch: where gradients of a model itself are scaled by their norm, it is measured first.
    pub const fn looks(&self) -> usize {
        if self.max_grad_norm.is_some() && self.method.trains_all() { 2 } else { 1 }
    }

    /// Checks every number before anything is read.
    ///
    /// # Errors
    /// The first that can't work.
    pub fn check(&self) -> Result<()> {
        self.run.machine()?;
        check_batch(self.batch_size, self.max_seq_length)?;
        self.data.check()?;
        check_count("iters", self.iters, 1, 1 << 40)?;
        if !(self.lora_plus > 0.0 && self.lora_plus <= 1e6) {
            let fault = "a ratio lies above 0 and at most at 1000000".into();
            return Err(Error::Option { option: "lora-plus", value: self.lora_plus.to_string(), fault });
        }
        if let Some(epochs) = self.epochs.filter(|epochs| !(*epochs > 0.0 && *epochs <= 1e6)) {
            let fault = "a number of epochs lies above 0 and at most at 1000000".into();
            return Err(Error::Option { option: "epochs", value: epochs.to_string(), fault });
        }
        check_count("grad-accumulation-steps", self.accumulation, 1, 1 << 20)?;
        check_count("steps-per-report", self.steps_per_report, 1, 1 << 40)?;
        check_count("steps-per-eval", self.steps_per_eval, 1, 1 << 40)?;
        if let Some(batches) = self.val_batches {
            check_count("val-batches", batches, 1, 1 << 40)?;
        }
        if let Some(patience) = self.early_stopping {
            check_count("early-stopping", patience, 1, 1 << 20)?;
        }
        if let Some(decay) = self.weight_decay.filter(|decay| !(0.0..=1.0).contains(decay)) {
            let fault = "a decay lies between 0 and 1".into();
            return Err(Error::Option { option: "weight-decay", value: decay.to_string(), fault });
        }
        if let Some(norm) = self.max_grad_norm.filter(|norm| !(norm.is_finite() && *norm > 0.0)) {
            let fault = "a norm is a number above 0".into();
            return Err(Error::Option { option: "max-grad-norm", value: norm.to_string(), fault });
        }
        if let Some(z) = self.max_loss_z.filter(|z| !(z.is_finite() && *z > 0.0)) {
            let fault = "a number of standard deviations above 0".into();
            return Err(Error::Option { option: "max-loss-z", value: z.to_string(), fault });
        }
        self.check_method()?;
        self.check_turns()?;
        self.check_whole()?;
        if let Some(folder) = self.spill_folder.as_ref().filter(|folder| !folder.is_dir()) {
            let fault = "not a folder".into();
            return Err(Error::Option { option: "spill-dir", value: folder.display().to_string(), fault });
        }
        if let LoraChoice::New(spec) = &self.lora {
            self.adapt(spec.clone(), false)?.check()?;
        }
        self.schedule.check()
    }
}

impl TrainOptions {
    /// Checks that the method goes with the other options.
    fn check_method(&self) -> Result<()> {
        let name = self.method.name();
        let refuse = |option, value: String, fault: String| Err(Error::Option { option, value, fault });
        if !(0.0..1.0).contains(&self.drop_backward) {
            let fault = "a share lies at 0 or above, and below 1".into();
            return refuse("drop-backward", self.drop_backward.to_string(), fault);
        }
        if self.all && self.method.zeroth().is_none() {
            let fault = format!("{name} trains an adapter; --method full trains all parameters with exact gradients");
            return refuse("fine-tune-type", "full".into(), fault);
        }
        if self.method.zeroth().is_none() {
            let fault = format!("{name} has gradients; --method mezo moves to look");
            return self.zo_eps.map_or(Ok(()), |eps| refuse("zo-eps", eps.to_string(), fault));
        }
        if self.drop_backward > 0.0 {
            let fault = format!("{name} has no backward pass; --method backprop has");
            return refuse("drop-backward", self.drop_backward.to_string(), fault);
        }
        if let Some(option) = self.derivatives.option() {
            return refuse(option, "on".into(), format!("{name} has no backward pass; --method backprop has"));
        }
        let eps = self.zo_eps();
        if !(eps.is_finite() && eps > 0.0) {
            return refuse("zo-eps", eps.to_string(), "a distance is a number above 0".into());
        }
        if self.accumulation > 1 {
            let fault = "a larger --batch-size is the same here, in the same memory".into();
            return refuse("grad-accumulation-steps", self.accumulation.to_string(), fault);
        }
        if let Some(norm) = self.max_grad_norm {
            let fault = format!("{name} has no gradients; a lower --learning-rate shortens its steps");
            return refuse("max-grad-norm", norm.to_string(), fault);
        }
        if self.lora_plus != 1.0 {
            let fault = format!("{name} moves all factors alike; --method backprop knows it");
            return refuse("lora-plus", self.lora_plus.to_string(), fault);
        }
        if let PolicyChoice::Named(policy) = self.policy {
            let fault = format!("{name} keeps nothing for a backward pass; leave it out");
            return refuse("grad-checkpoint", policy.word().into(), fault);
        }
        Ok(())
    }
}

impl TrainOptions {
    /// Checks that turns are asked for where there are any.
    fn check_turns(&self) -> Result<()> {
        let name = self.method.name();
        let refuse = |option, value: String, fault: String| Err(Error::Option { option, value, fault });
        if let Some(every) = self.switch_every {
            if self.method.turns().is_none() {
                let fault = format!("with {name} no block waits for its turn; --method badam or lisa has turns");
                return refuse("switch-every", every.to_string(), fault);
            }
            check_count("switch-every", every, 1, 1 << 40)?;
        }
        match self.block_order {
            Some(order) if self.method != Method::BAdam => {
                let fault = format!("{name} does not go through blocks one by one; --method badam does");
                refuse("block-order", order.word().into(), fault)
            }
            _ => Ok(()),
        }
    }
}

impl TrainOptions {
    /// Checks that the update rule is the method's, and that nothing needs all gradients of a model at once.
    fn check_whole(&self) -> Result<()> {
        let name = self.method.name();
        let refuse = |option, value: String, fault: String| Err(Error::Option { option, value, fault });
        let own = !matches!(self.optimizer, Optimizer::AdamW | Optimizer::AdamW8bit | Optimizer::Sgd);
        if self.method.optimizer().map_or(own, |rule| rule != self.optimizer) {
            return refuse("optimizer", format!("{:?}", self.optimizer), format!("{name} has a rule of its own"));
        }
        if !self.trains_all() {
            return Ok(());
        }
        if let LoraChoice::From(_) = self.lora {
            self.adapt(LoraSpec::default(), true)?;
        }
        let waiting = "every tensor is moved as soon as its gradient is there, since all gradients together are as large as the model";
        if self.accumulation > 1 {
            let fault = format!("{waiting}; a larger --batch-size does the same, and the plan says what it takes");
            return refuse("grad-accumulation-steps", self.accumulation.to_string(), fault);
        }
        if self.drop_backward > 0.0 {
            let fault = format!("{name} goes through all blocks; --method backprop may pass some by");
            return refuse("drop-backward", self.drop_backward.to_string(), fault);
        }
        if let Some(option) = self.derivatives.option() {
            let fault = format!("{name} has the plain derivatives alone; --method backprop knows others");
            return refuse(option, "on".into(), fault);
        }
        if self.lora_plus != 1.0 {
            let fault = format!("{name} has no adapter; --method backprop has");
            return refuse("lora-plus", self.lora_plus.to_string(), fault);
        }
        Ok(())
    }
}

/// Checks how many records a pass reads, and how long they may be.
pub(super) fn check_batch(batch_size: usize, max_seq_length: usize) -> Result<()> {
    check_count("batch-size", batch_size, 1, 1 << 16)?;
    check_count("max-seq-length", max_seq_length, 2, 1 << 24)
}

fn check_count(option: &'static str, value: usize, least: usize, most: usize) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Option { option, value: value.to_string(), fault: format!("it lies between {least} and {most}") })
}
