//! What can be typed. Words follow mlx-lm first, then llama.cpp and Hugging Face.

mod data;
mod files;
mod lora;
mod talk;
mod train;

pub use data::DataArgs;
pub use files::{AdapterKindArg, ConvertArgs, MergeArgs, QuantizeArgs, ReplayArgs};
pub use lora::{FineTuneArg, LoraArgs};
pub use talk::{ChatArgs, GenerateArgs};
pub use train::{CheckpointArg, ConditionArgs, LogArg, OptimizerArg, OrderArg, SchedulerArg, StoreArg, TrainArgs};

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use pocketune::train::{PrecisionChoice, RunOptions};

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
    /// What matrix inputs are rounded to; auto takes what the processor multiplies fastest.
    #[arg(long, value_enum, default_value_t = PrecisionArg::Auto)]
    pub precision: PrecisionArg,
    /// Threads [default: one for each big core that the process may use, within its quota].
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
    /// What matrix inputs are rounded to; auto takes what the processor multiplies fastest.
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

#[derive(Clone, Copy, ValueEnum)]
pub enum PrecisionArg {
    Auto,
    F32,
    Bf16,
    Int16,
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
            PrecisionArg::Int16 => PrecisionChoice::Int16,
        }
    }
}
