//! What can be typed to train: the run itself, what is kept of it, and when it may run.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use pocketune::train::{Every, Keeping, Method, Order, Resume, parse_time};

use super::{DataArgs, LoraArgs, RunArgs};

#[derive(Args)]
pub struct TrainArgs {
    /// Read options from this YAML file, under their long names; what is typed wins.
    #[arg(long, short = 'c', value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print what would run, as such a file, and run nothing.
    #[arg(long)]
    pub print_config: bool,
    /// A GGUF file or a Hugging Face folder [default: the built-in model].
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// A .jsonl, .json, .csv, .tsv or .txt file, or a folder with train, and perhaps valid and test [default: the built-in data].
    #[arg(long, short = 'f', value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// The share of a file's records to keep for validation, such as 0.1.
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub val_split: Option<f64>,
    /// Measure on the folder's test set at the end.
    #[arg(long)]
    pub test: bool,
    /// The folder that the adapter goes to, in PEFT format.
    #[arg(long, value_name = "DIR", default_value = "adapters", alias = "output-dir")]
    pub adapter_path: PathBuf,
    /// How to train, an adapter or the model itself; each method has defaults of its own.
    #[arg(long, value_name = "NAME", value_parser = methods(), default_value = "backprop")]
    pub method: Method,
    /// The share of blocks that the gradient passes by, drawn anew for every update: faster, and not exact [default: 0].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub drop_backward: Option<f64>,
    /// Keep two bits for the slope of a smooth activation (ReGELU2, ReSiLU2): less memory where no gate multiplies it, and not exact.
    #[arg(long)]
    pub approx_act: bool,
    /// Differentiate norms from what they normalised, which their linears' adapters need anyway, and not from their input: exact, to rounding.
    #[arg(long)]
    pub ms_norm: bool,
    /// Leave strips of the vocabulary out of a token's gradient where all of its softmax is below 2^-12: faster, and not exact.
    #[arg(long)]
    pub ce_skip: bool,
    /// How numbers are stored while the model itself is trained, and in the file it becomes; bf16 is rounded at random, so that small steps
    /// count [default: bf16].
    #[arg(long, value_name = "TYPE", value_enum)]
    pub store: Option<StoreArg>,
    /// Updates after which it is the turn of other blocks to learn, with --method badam and lisa [default: 100 and 20].
    #[arg(long, value_name = "UPDATES")]
    pub switch_every: Option<usize>,
    /// In what order blocks take their turns, with --method badam [default: random].
    #[arg(long, value_name = "ORDER", value_enum)]
    pub block_order: Option<OrderArg>,
    /// How far methods without gradients move the adapter to look at a loss [default: the method's, 0.01 for mezo].
    #[arg(long, value_name = "DISTANCE", allow_hyphen_values = true)]
    pub zo_eps: Option<f32>,
    /// Updates [default: 1000; 80 for the built-in model].
    #[arg(long, alias = "max-steps")]
    pub iters: Option<usize>,
    /// How often every record is trained on, in place of a number of updates.
    #[arg(long, alias = "num-train-epochs", conflicts_with_all = ["iters", "warmup_ratio"], allow_hyphen_values = true)]
    pub epochs: Option<f64>,
    /// Records in a batch.
    #[arg(long, default_value_t = 4, alias = "per-device-train-batch-size")]
    pub batch_size: usize,
    /// The highest learning rate [default: the method's, 1e-4 for backprop; 3e-3 for the built-in model].
    #[arg(long, allow_hyphen_values = true)]
    pub learning_rate: Option<f32>,
    /// The update rule [default: adamw; methods without gradients, lomo, adalomo and apollo have their own].
    #[arg(long, alias = "optim", value_enum)]
    pub optimizer: Option<OptimizerArg>,
    /// Weight decay [default: 0.01 for adamw and adamw8bit, else 0].
    #[arg(long, allow_hyphen_values = true)]
    pub weight_decay: Option<f32>,
    /// The learning rate after warm-up.
    #[arg(long, alias = "lr-scheduler-type", value_enum, default_value_t = SchedulerArg::Constant)]
    pub lr_scheduler: SchedulerArg,
    /// What the learning rate decays to.
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true)]
    pub lr_min: f32,
    /// Updates over which the learning rate rises.
    #[arg(long, default_value_t = 0)]
    pub warmup_steps: usize,
    /// The same as a share of all updates.
    #[arg(long, value_name = "SHARE", conflicts_with = "warmup_steps", allow_hyphen_values = true)]
    pub warmup_ratio: Option<f64>,
    /// Fill a batch with as many records as have batch-size times max-seq-length tokens together; attention stays inside each.
    #[arg(long, alias = "packing")]
    pub pack: bool,
    /// Batches in an update; gradients are those of all of them together.
    #[arg(long, default_value_t = 1, alias = "gradient-accumulation-steps")]
    pub grad_accumulation_steps: usize,
    /// What is recomputed in the backward pass: nothing, whole blocks, or what is cheap. Gradients are the same to the bit.
    #[arg(long, alias = "gradient-checkpointing", value_enum, num_args = 0..=1, default_value = "auto", default_missing_value = "block")]
    pub grad_checkpoint: CheckpointArg,
    /// Take records in the order of the file.
    #[arg(long)]
    pub no_shuffle: bool,
    /// The seed of everything random.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// How progress is printed.
    #[arg(long, value_enum, default_value_t = LogArg::Text)]
    pub log_format: LogArg,
    /// Updates between reports.
    #[arg(long, default_value_t = 10, alias = "logging-steps")]
    pub steps_per_report: usize,
    /// Updates between validations, where there is a validation set.
    #[arg(long, default_value_t = 200, alias = "eval-steps")]
    pub steps_per_eval: usize,
    /// Batches of a validation; -1 for all.
    #[arg(long, default_value_t = 25, allow_hyphen_values = true)]
    pub val_batches: i64,
    /// Keep the adapter of the lowest validation loss, instead of the last.
    #[arg(long, alias = "load-best-model-at-end")]
    pub save_best: bool,
    /// End after this many validations in a row without a lower loss, and keep the best adapter.
    #[arg(long, value_name = "TIMES", alias = "early-stopping-patience")]
    pub early_stopping: Option<usize>,
    /// Show what the model makes of this prompt before and after.
    #[arg(long, value_name = "PROMPT")]
    pub sample: Option<String>,
    /// Say nothing but what goes wrong; JSON lines are still printed.
    #[arg(long, short = 'q')]
    pub quiet: bool,
    /// Where values and states wait that don't fit [default: beside the adapter].
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<PathBuf>,
    /// Write what the run held as JSON lines, and FILE.svg with one step as planned and as measured.
    #[arg(long, value_name = "FILE")]
    pub memory_trace: Option<PathBuf>,
    /// Scale an update's gradients down to this norm; they wait for each other then, and those of a model itself are made twice.
    #[arg(long, allow_negative_numbers = true)]
    pub max_grad_norm: Option<f32>,
    /// Skip updates whose loss lies this many standard deviations above the usual.
    #[arg(long, value_name = "Z", allow_negative_numbers = true)]
    pub max_loss_z: Option<f64>,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub keeping: KeepingArgs,
    #[command(flatten)]
    pub records: DataArgs,
    #[command(flatten)]
    pub conditions: ConditionArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Args)]
pub struct KeepingArgs {
    /// Go on with a run that stopped: `auto` takes the one in the adapter's folder where one waits there, a folder the one in it.
    #[arg(long, value_name = "auto|DIR")]
    pub resume: Option<PathBuf>,
    /// Go on even where data or options differ, but for those that the state depends on.
    #[arg(long, requires = "resume")]
    pub allow_changed: bool,
    /// How often the state goes to disk, in updates or time: 20, 30s, 5m [default: 60s].
    #[arg(long, value_name = "N|TIME", allow_hyphen_values = true)]
    pub commit_every: Option<String>,
    /// How soon after a signal the state should be on disk; long steps wait with their gradients for it [default: 1s].
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub commit_within: Option<String>,
    /// Stop after this time, to be gone on with by --resume: 90s, 20m, 1.5h.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub time_limit: Option<String>,
}

impl KeepingArgs {
    /// As the engine takes it.
    pub fn options(&self) -> Result<Keeping, crate::Failure> {
        let time = |option, text: &str| parse_time(option, text).map_err(crate::Failure::new);
        let every = |text: &str| Every::parse("commit-every", text).map_err(crate::Failure::new);
        let default = Keeping::default();
        Ok(Keeping {
            resume: match &self.resume {
                None => Resume::Never,
                Some(word) if word.as_os_str() == "auto" => Resume::Auto,
                Some(folder) => Resume::From(folder.clone()),
            },
            allow_changed: self.allow_changed,
            every: self.commit_every.as_deref().map_or(Ok(default.every), every)?,
            within: self.commit_within.as_deref().map_or(Ok(default.within), |text| time("commit-within", text))?,
            time_limit: self.time_limit.as_deref().map(|text| time("time-limit", text)).transpose()?,
        })
    }
}

#[derive(Args)]
pub struct ConditionArgs {
    /// Pause while the machine runs on its battery.
    #[arg(long)]
    pub only_on_power: bool,
    /// Pause while the battery has less than this, and until it has five more.
    #[arg(long, value_name = "PERCENT")]
    pub min_battery: Option<u8>,
    /// Pause when the hottest sensor reaches this, until it is five degrees cooler; slow down four degrees before.
    #[arg(long, value_name = "CELSIUS", allow_negative_numbers = true)]
    pub max_temp: Option<f32>,
    /// Pause outside of these hours, such as 22:00-06:30.
    #[arg(long, value_name = "HH:MM-HH:MM")]
    pub between: Option<String>,
    /// Seconds between two looks at power, heat, hour and free memory.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub check_every: u64,
}

/// The names of methods, each with what it does.
fn methods() -> impl TypedValueParser<Value = Method> {
    let values = Method::ALL.map(|method| PossibleValue::new(method.name()).help(method.words()));
    PossibleValuesParser::new(values).try_map(|name| Method::named(&name).ok_or(name))
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreArg {
    Bf16,
    F32,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum OrderArg {
    /// Each once, in a random order, and then in another.
    Random,
    /// From the first to the last.
    Ascending,
    /// From the last to the first.
    Descending,
}

impl OrderArg {
    pub const fn order(self) -> Order {
        match self {
            OrderArg::Random => Order::Random,
            OrderArg::Ascending => Order::Ascending,
            OrderArg::Descending => Order::Descending,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
pub enum OptimizerArg {
    /// AdamW with PyTorch's semantics.
    Adamw,
    /// AdamW with its moments in 8 bits, by blocks of 256: an approximation, for a quarter of the optimizer's memory.
    #[value(name = "adamw8bit")]
    Adamw8bit,
    /// SGD without momentum, with PyTorch's semantics.
    Sgd,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum SchedulerArg {
    Constant,
    Linear,
    Cosine,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum CheckpointArg {
    None,
    #[value(alias = "true")]
    Block,
    Selective,
    #[value(alias = "false")]
    Auto,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum LogArg {
    Text,
    Jsonl,
}
