//! What can be typed about adapters: on what, of which rank, and of what kind.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use pocketune::graph::{Layers, LoraSpec, Patterns, Target};
use pocketune::train::{LoraChoice, Method};

use crate::Failure;

#[derive(Args, Clone)]
#[command(next_help_heading = "Adapter")]
pub struct LoraArgs {
    /// Rank of the adapters [default: the method's, mostly 8].
    #[arg(long, alias = "lora-r")]
    pub lora_rank: Option<usize>,
    /// The change is scaled by alpha / rank [default: twice the rank].
    #[arg(long, allow_hyphen_values = true)]
    pub lora_alpha: Option<f32>,
    /// Ranks of modules that have another, such as q_proj=4,layers.0.mlp.up_proj=16.
    #[arg(long, value_name = "NAME=RANK,…", alias = "rank-pattern")]
    pub lora_rank_pattern: Option<String>,
    /// Alphas of modules that have another, likewise.
    #[arg(long, value_name = "NAME=ALPHA,…", alias = "alpha-pattern")]
    pub lora_alpha_pattern: Option<String>,
    /// Scale the change by alpha / sqrt(rank) instead (rsLoRA).
    #[arg(long, alias = "rslora")]
    pub use_rslora: bool,
    /// Plain LoRA; DoRA: lengths and directions of a matrix's rows are trained apart; or full: methods without gradients move all parameters of the model
    /// [default: lora].
    #[arg(long, value_enum)]
    pub fine_tune_type: Option<FineTuneArg>,
    /// The share of an adapter's inputs that is dropped while it is trained [default: 0].
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    pub lora_dropout: Option<f32>,
    /// Train the second factors with this many times the learning rate (LoRA+; its authors say 16).
    #[arg(long, value_name = "RATIO", default_value_t = 1.0, alias = "loraplus-lr-ratio", allow_hyphen_values = true)]
    pub lora_plus: f32,
    /// Linears that get an adapter: all-linear, or names such as q_proj,v_proj or attn_q,attn_v [default: the method's, mostly all-linear].
    #[arg(long, aliases = ["lora-modules", "lora-target-modules"])]
    pub lora_targets: Option<String>,
    /// How many layers are trained, counted from the last; -1 for all [default: -1].
    #[arg(long, allow_hyphen_values = true)]
    pub num_layers: Option<i64>,
    /// Start from this adapter (a PEFT or MLX folder, or a GGUF file), with its rank, alpha and targets.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["lora_rank", "lora_alpha", "lora_rank_pattern", "lora_alpha_pattern", "use_rslora", "fine_tune_type", "lora_dropout", "lora_targets", "num_layers"])]
    pub init_adapter: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FineTuneArg {
    Lora,
    Dora,
    Full,
}

impl LoraArgs {
    /// The first of them that was typed.
    fn typed(&self) -> Option<&'static str> {
        let given = [
            ("lora-rank", self.lora_rank.is_some()),
            ("lora-alpha", self.lora_alpha.is_some()),
            ("lora-rank-pattern", self.lora_rank_pattern.is_some()),
            ("lora-alpha-pattern", self.lora_alpha_pattern.is_some()),
            ("use-rslora", self.use_rslora),
            ("fine-tune-type", self.fine_tune_type.is_some()),
            ("lora-dropout", self.lora_dropout.is_some()),
            ("lora-targets", self.lora_targets.is_some()),
            ("num-layers", self.num_layers.is_some()),
        ];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// What they mean.
    pub fn choice(&self, method: Method) -> Result<LoraChoice, Failure> {
        if let Some(folder) = &self.init_adapter {
            return Ok(LoraChoice::From(folder.clone()));
        }
        let defaults = method.defaults();
        let full = self.fine_tune_type == Some(FineTuneArg::Full);
        if full && method.zeroth().is_none() && !method.trains_all() {
            let name = method.name();
            return Err(Failure(format!(
                "--fine-tune-type full: {name} trains an adapter; --method full trains all parameters with exact gradients, --method mezo without any"
            )));
        }
        let typed = self.typed().filter(|option| !(full && *option == "fine-tune-type"));
        if let Some(option) = typed.filter(|_| method.trains_all() || full) {
            let name = method.name();
            return Err(Failure(format!(
                "--{option}: {name} trains the model itself and has no adapter here; --method backprop trains one"
            )));
        }
        if self.fine_tune_type == Some(FineTuneArg::Lora) && method == Method::Dora {
            return Err(Failure(
                "--fine-tune-type lora: --method dora trains magnitudes too; --method backprop does not".into(),
            ));
        }
        if let Some(alpha) = self.lora_alpha.filter(|_| method == Method::Vera) {
            return Err(Failure(format!("--lora-alpha {alpha}: VeRA has no alpha; its vectors are trained instead")));
        }
        let rank = self.lora_rank.unwrap_or(defaults.rank);
        let layers = match self.num_layers.unwrap_or(-1) {
            -1 => Layers::All,
            last => Layers::Last(
                usize::try_from(last)
                    .map_err(|_| Failure(format!("--num-layers {last}: a number of layers, or -1 for all")))?,
            ),
        };
        let targets = self.lora_targets.as_deref().unwrap_or(defaults.targets);
        Ok(LoraChoice::New(LoraSpec {
            rank,
            alpha: self.lora_alpha.unwrap_or(2.0 * rank as f32),
            targets: Target::parse_list(targets).map_err(Failure::new)?,
            layers,
            ranks: pattern("lora-rank-pattern", self.lora_rank_pattern.as_deref())?,
            alphas: pattern("lora-alpha-pattern", self.lora_alpha_pattern.as_deref())?,
            stabilized: self.use_rslora,
            dora: self.fine_tune_type == Some(FineTuneArg::Dora) || method == Method::Dora,
            dropout: self.lora_dropout.unwrap_or(0.0),
            ..LoraSpec::default()
        }))
    }
}

/// Reads `NAME=NUMBER,…`.
fn pattern<T: FromStr>(option: &str, text: Option<&str>) -> Result<Patterns<T>, Failure> {
    let parts = text.into_iter().flat_map(|text| text.split(','));
    let read = |part: &str| {
        let (name, number) = part.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some(())?;
        Some((name.to_string(), number.trim().parse().ok()?))
    };
    let wanted = |part: &str| Failure(format!("--{option} {part}: not a name and a number, such as q_proj=4"));
    parts.map(|part| read(part).ok_or_else(|| wanted(part))).collect::<Result<_, _>>().map(Patterns)
}
