//! What can be typed. Words follow mlx-lm first, then llama.cpp and Hugging Face.

mod data;
mod lora;
mod talk;

pub use data::DataArgs;
pub use lora::{FineTuneArg, LoraArgs};
pub use talk::{ChatArgs, GenerateArgs};

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use pocketune::train::{Every, Keeping, Method, Order, PrecisionChoice, Resume, RunOptions, parse_time};
use pocketune_formats::BlockType;

/// Fine-tune a language model on the device that holds the data, with exact gradients and a known peak of memory.
#[derive(Parser)]
#[command(name = "pocketune", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Train a LoRA adapter; without arguments, a small built-in model on built-in data.
    Train(Box<TrainArgs>),
    /// Show what a training run would hold and take, for a model or just a shape; runs nothing.
    Plan(Box<PlanArgs>),
    /// Train by several methods in turn, each in a process of its own, and compare them.
    Compare(Box<CompareArgs>),
    /// Measure loss, perplexity and accuracy on a data set.
    Eval(EvalArgs),
    /// Look at data as a run would see it.
    #[command(subcommand)]
    Data(DataCommand),
    /// Continue a prompt.
    Generate(GenerateArgs),
    /// Talk to a model, line by line.
    Chat(ChatArgs),
    /// Measure what this machine reaches, and keep it for the planner.
    Bench(BenchArgs),
    /// Write an adapter for another runtime: PEFT, MLX, or llama.cpp (GGUF), from any of them.
    #[command(visible_aliases = ["export", "import"])]
    Convert(ConvertArgs),
    /// Write a model as a GGUF file in another type, for llama.cpp and for training on a smaller base.
    Quantize(QuantizeArgs),
    /// Add adapters to their model for good: a Hugging Face folder, or a GGUF file of any type.
    Merge(MergeArgs),
    /// Make the adapter of a run without gradients again, from its seed and its updates alone.
    Replay(ReplayArgs),
    /// Show what a model or adapter file holds.
    Inspect {
        /// A GGUF file, a Hugging Face folder, or an adapter.
        file: PathBuf,
    },
    /// Print a script that completes the words of pocketune in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man,
    /// Delete what a run left for itself: checkpoints, spilled values, tokens.
    Erase {
        /// The run's adapter folder.
        run: PathBuf,
        /// Delete the adapter as well.
        #[arg(long)]
        adapter: bool,
    },
    /// Download a known model, or `hf:owner/name` from the Hugging Face Hub.
    Pull {
        /// The model's name.
        name: String,
        /// The folder to put it into.
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
    },
}

#[derive(Subcommand)]
pub enum DataCommand {
    /// Show records as tokens, what of them the loss is taken on, and how long all records are.
    Preview(PreviewArgs),
}

#[derive(Args)]
pub struct ConvertArgs {
    /// The adapter: a PEFT or MLX folder, or a GGUF file; which of them is seen from its content.
    #[arg(long, short = 'a', value_name = "PATH", alias = "adapter-path")]
    pub adapter: PathBuf,
    /// What to write.
    #[arg(long, value_enum)]
    pub to: AdapterKindArg,
    /// Where to: a folder, or a file for gguf.
    #[arg(long, short = 'o', value_name = "PATH")]
    pub output: PathBuf,
    /// The base model, which the adapter is checked against; needed from and to gguf.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
}

#[derive(Args)]
pub struct QuantizeArgs {
    /// A Hugging Face folder or a GGUF file.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: PathBuf,
    /// The type of its matrices; the head gets q6_k where this has 4 or 5 bits, vectors stay f32.
    #[arg(long = "type", short = 't', value_name = "TYPE", ignore_case = true, value_parser = block_types())]
    pub ty: BlockType,
    /// The GGUF file to write.
    #[arg(long, short = 'o', value_name = "FILE.gguf")]
    pub output: PathBuf,
    /// Memory for the whole process: 64MiB, 1.5GB, 50%, or min [default: what is available now, less a tenth].
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_budget: Option<String>,
    /// Print what was written as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ReplayArgs {
    /// The folder of the run's adapter; pocketune.updates in it is all that is read.
    pub run: PathBuf,
    /// The model that it was trained on [default: the built-in model].
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// The adapter that it started from, where that was no fresh one.
    #[arg(long, value_name = "PEFT_DIR")]
    pub init_adapter: Option<PathBuf>,
    /// The folder that the adapter goes to, in PEFT format, or the model where it is trained itself, as model.gguf.
    #[arg(long, short = 'o', value_name = "DIR")]
    pub output: PathBuf,
    #[command(flatten)]
    pub kernels: RunArgs,
}

#[derive(Args)]
pub struct MergeArgs {
    /// The base model: a Hugging Face folder or a GGUF file.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: PathBuf,
    /// An adapter: a PEFT or MLX folder, or a GGUF file; several where it is given several times.
    #[arg(long, short = 'a', value_name = "PATH", alias = "adapter-path", required = true)]
    pub adapter: Vec<PathBuf>,
    /// What an adapter's change is multiplied with, beside its own scale: once, or once for each adapter [default: 1].
    #[arg(long, value_name = "FACTOR", allow_hyphen_values = true)]
    pub scale: Vec<f64>,
    /// Where to: a GGUF file where it ends in .gguf, else a new folder of the same types.
    #[arg(long, short = 'o', value_name = "PATH", alias = "save-path")]
    pub output: PathBuf,
    /// The type of a GGUF file's matrices, as in quantize [default: those of the model].
    #[arg(long = "type", short = 't', value_name = "TYPE", ignore_case = true, value_parser = block_types())]
    pub ty: Option<BlockType>,
    /// Records to measure the loss on before and after [default: a few built-in sentences].
    #[arg(long, short = 'f', value_name = "PATH")]
    pub data: Option<PathBuf>,
    /// Measure no loss.
    #[arg(long, conflicts_with = "data")]
    pub no_loss: bool,
    /// Print what came of it as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub run: RunArgs,
}

/// The names of methods, each with what it does.
fn methods() -> impl TypedValueParser<Value = Method> {
    let values = Method::ALL.map(|method| PossibleValue::new(method.name()).help(method.words()));
    PossibleValuesParser::new(values).try_map(|name| Method::named(&name).ok_or(name))
}

/// The names of types that can be written.
fn block_types() -> impl TypedValueParser<Value = BlockType> {
    let names = PossibleValuesParser::new(BlockType::ALL.map(BlockType::name));
    names.try_map(|name| {
        let named = |ty: &BlockType| ty.name().eq_ignore_ascii_case(&name);
        BlockType::ALL.into_iter().find(named).ok_or(name)
    })
}

#[derive(Clone, Copy, ValueEnum)]
pub enum AdapterKindArg {
    /// A folder that PEFT loads.
    Peft,
    /// A folder that mlx-lm loads.
    Mlx,
    /// A file that llama.cpp loads.
    Gguf,
}

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

#[derive(Args)]
pub struct PlanArgs {
    /// A model by name, such as qwen2.5-0.5b, without its file (weights taken as 4-bit).
    #[arg(long, conflicts_with = "model")]
    pub shape: Option<String>,
    /// Draw the chosen plan's memory over one step, or the smallest plan's where none fits.
    #[arg(long, value_name = "FILE.svg")]
    pub picture: Option<PathBuf>,
    /// Print the plans as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub train: TrainArgs,
}

#[derive(Args)]
pub struct CompareArgs {
    /// The methods, such as backprop,mezo,fzoo; options of one alone follow it: mezo:learning-rate=5e-5:batch-size=16.
    #[arg(long, value_name = "NAME[:OPTION=VALUE]…,…", value_delimiter = ',', required = true)]
    pub methods: Vec<String>,
    /// The folder that compare.html, compare.json and the adapters go to.
    #[arg(long, short = 'o', value_name = "DIR")]
    pub output: PathBuf,
    /// Print all figures as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub train: TrainArgs,
}

#[derive(Args)]
pub struct RunArgs {
    /// What matrix inputs are rounded to; auto takes bf16 where the processor multiplies it.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Auto)]
    pub precision: PrecisionArg,
    /// Threads [default: the big cores that the process may use, within its quota].
    #[arg(long)]
    pub threads: Option<usize>,
    /// Memory for the whole process: 512MiB, 1.5GB, 50%, or min [default: what is available now, less a tenth].
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub memory_budget: Option<String>,
    /// Follow links in the model's folder that lead out of it.
    #[arg(long)]
    pub follow_links: bool,
}

#[derive(Args)]
pub struct BenchArgs {
    /// What matrix inputs are rounded to; auto takes bf16 where the processor multiplies it.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Auto)]
    pub precision: PrecisionArg,
    /// Threads [default: as many as the process may use].
    #[arg(long)]
    pub threads: Option<usize>,
    /// The folder whose disk is measured [default: this one].
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<PathBuf>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
    /// Keep no profile.
    #[arg(long)]
    pub no_save: bool,
}

#[derive(Args)]
pub struct EvalArgs {
    /// A GGUF file or a Hugging Face folder.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: PathBuf,
    /// An adapter: a PEFT or MLX folder, or a GGUF file.
    #[arg(long, alias = "adapter-path", value_name = "PATH")]
    pub adapter: Option<PathBuf>,
    /// A .jsonl, .json, .csv, .tsv or .txt file, or a folder with valid or train.
    #[arg(long, short = 'f', value_name = "PATH")]
    pub data: PathBuf,
    /// Records in a batch.
    #[arg(long, default_value_t = 4)]
    pub batch_size: usize,
    /// How the result is printed.
    #[arg(long, value_enum, default_value_t = LogArg::Text)]
    pub log_format: LogArg,
    #[command(flatten)]
    pub records: DataArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Args)]
pub struct PreviewArgs {
    /// A GGUF file or a Hugging Face folder [default: the built-in model].
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: Option<PathBuf>,
    /// A .jsonl, .json, .csv, .tsv or .txt file, or a folder with train.
    #[arg(long, short = 'f', value_name = "PATH")]
    pub data: PathBuf,
    /// Records to show.
    #[arg(long, default_value_t = 3)]
    pub records: usize,
    /// Records in a batch.
    #[arg(long, default_value_t = 4)]
    pub batch_size: usize,
    #[command(flatten)]
    pub reading: DataArgs,
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

#[derive(Clone, Copy, ValueEnum)]
pub enum PrecisionArg {
    Auto,
    F32,
    Bf16,
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

impl RunArgs {
    /// The memory that the process may take.
    pub fn budget(&self) -> Result<pocketune::train::Budget, crate::Failure> {
        use pocketune::train::Budget;
        self.memory_budget.as_deref().map_or(Ok(Budget::Available), Budget::parse).map_err(crate::Failure::new)
    }

    /// The model at `path`.
    pub fn source(&self, path: PathBuf) -> pocketune::model::Source {
        use pocketune::model::Source;
        if self.follow_links { Source::Linked(path) } else { Source::Path(path) }
    }

    /// As the engine takes it, with the rates that were kept for this machine.
    pub fn options(&self) -> RunOptions {
        let options = RunOptions { threads: self.threads, precision: self.precision.choice(), rates: None };
        // An option that can't work is refused where it is used.
        RunOptions { rates: options.machine().ok().and_then(crate::bench::kept), ..options }
    }
}

impl PrecisionArg {
    /// As the engine takes it.
    pub fn choice(self) -> PrecisionChoice {
        match self {
            PrecisionArg::Auto => PrecisionChoice::Auto,
            PrecisionArg::F32 => PrecisionChoice::F32,
            PrecisionArg::Bf16 => PrecisionChoice::Bf16,
        }
    }
}
