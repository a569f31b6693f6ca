//! What can be typed to make a model write: `generate` and `chat`.

use std::path::PathBuf;

use clap::Args;
use pocketune::train::{Sampling, TemplateChoice};

use super::RunArgs;

#[derive(Args)]
pub struct GenerateArgs {
    /// A GGUF file or a Hugging Face folder.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: PathBuf,
    /// An adapter: a PEFT or MLX folder, or a GGUF file.
    #[arg(long, alias = "adapter-path", value_name = "PATH")]
    pub adapter: Option<PathBuf>,
    /// The text to continue.
    #[arg(long, short = 'p')]
    pub prompt: String,
    /// Put the prompt through the chat template, as a user's message.
    #[arg(long)]
    pub chat: bool,
    /// Most tokens to generate.
    #[arg(long, short = 'n', default_value_t = 100)]
    pub max_tokens: usize,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Args)]
pub struct ChatArgs {
    /// A GGUF file or a Hugging Face folder, with a chat template.
    #[arg(long, short = 'm', value_name = "PATH")]
    pub model: PathBuf,
    /// An adapter: a PEFT or MLX folder, or a GGUF file.
    #[arg(long, alias = "adapter-path", value_name = "PATH")]
    pub adapter: Option<PathBuf>,
    /// What the model is told before the conversation.
    #[arg(long, value_name = "TEXT", alias = "system-prompt")]
    pub system: Option<String>,
    /// Most tokens of a reply.
    #[arg(long, short = 'n', default_value_t = 256)]
    pub max_tokens: usize,
    /// Most tokens of history and reply together [default: as many as there is memory for, up to 4096].
    #[arg(long, value_name = "TOKENS", alias = "ctx-size")]
    pub max_kv_size: Option<usize>,
    #[command(flatten)]
    pub template: TemplateArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

#[derive(Args)]
pub struct TemplateArgs {
    /// A Jinja file in place of the adapter's or the model's chat template.
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
}

#[derive(Args)]
pub struct SamplingArgs {
    /// Divides the logits; 0 always takes the most likely token.
    #[arg(long, alias = "temperature", default_value_t = 0.0, allow_hyphen_values = true)]
    pub temp: f32,
    /// Draw only from the most likely tokens that together have this probability.
    #[arg(long, default_value_t = 1.0, allow_hyphen_values = true)]
    pub top_p: f32,
    /// The seed of the draws.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

impl TemplateArgs {
    /// As the engine takes it.
    pub fn choice(&self) -> TemplateChoice {
        self.chat_template.clone().map_or(TemplateChoice::Own, TemplateChoice::File)
    }
}

impl SamplingArgs {
    /// As the engine takes it.
    pub fn sampling(&self) -> Sampling {
        Sampling { temperature: self.temp, top_p: self.top_p, seed: self.seed }
    }
}
