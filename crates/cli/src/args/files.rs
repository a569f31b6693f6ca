//! What can be typed to make other files of models and adapters: `convert`, `quantize`, `merge` and `replay`.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use pocketune_formats::BlockType;

use super::RunArgs;

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
    /// The folder that the adapter goes to, in PEFT format, or the model where it is trained itself, as model.gguf or as a folder.
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
