//! Which linears get an adapter, of what rank and scale.

use crate::error::{Error, Result};

/// A linear of a block that can carry an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Target {
    Q,
    K,
    V,
    O,
    Gate,
    Up,
    Down,
}

impl Target {
    /// All seven, in the order of a block.
    pub const ALL: [Target; 7] = [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// The Hugging Face module name.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Q => "q_proj",
            Target::K => "k_proj",
            Target::V => "v_proj",
            Target::O => "o_proj",
            Target::Gate => "gate_proj",
            Target::Up => "up_proj",
            Target::Down => "down_proj",
        }
    }

    /// The GGUF tensor name.
    pub const fn gguf_name(self) -> &'static str {
        match self {
            Target::Q => "attn_q",
            Target::K => "attn_k",
            Target::V => "attn_v",
            Target::O => "attn_output",
            Target::Gate => "ffn_gate",
            Target::Up => "ffn_up",
            Target::Down => "ffn_down",
        }
    }

    /// Reads a comma-separated list of either kind of name, or `all-linear`.
    ///
    /// # Errors
    /// When a name is unknown or none is given.
    pub fn parse_list(text: &str) -> Result<Vec<Target>> {
        let fault = |fault: String| Error::Option { option: "lora-targets", value: text.into(), fault };
        if text.trim() == "all-linear" {
            return Ok(Self::ALL.to_vec());
        }
        let mut targets = Vec::new();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = Self::ALL.into_iter().find(|target| {
                [target.name(), target.gguf_name()].contains(&name) || target.name().strip_suffix("_proj") == Some(name)
            });
            targets.push(known.ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().map(|target| target.name()).collect();
                fault(format!("unknown module '{name}'; known are {} and all-linear", names.join(", ")))
            })?);
        }
        targets.sort_unstable();
        targets.dedup();
        if targets.is_empty() { Err(fault("no module named".into())) } else { Ok(targets) }
    }
}

/// What adapters to put on a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraSpec {
    /// Rank of every adapter.
    pub rank: usize,
    /// The products are scaled by alpha / rank.
    pub alpha: f32,
    /// The linears that get one.
    pub targets: Vec<Target>,
    /// The blocks that get them.
    pub layers: Layers,
}

/// Which blocks get adapters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layers {
    /// Every one.
    All,
    /// So many, counted from the last.
    Last(usize),
    /// Just these.
    Only(Vec<usize>),
}

impl Layers {
    /// Whether block `block` of `blocks` is one of them.
    pub fn contains(&self, block: usize, blocks: usize) -> bool {
        match self {
            Layers::All => true,
            Layers::Last(last) => block >= blocks.saturating_sub(*last),
            Layers::Only(these) => these.contains(&block),
        }
    }

    /// Checks them against a model of `blocks` blocks.
    ///
    /// # Errors
    /// When none is left, or one isn't there.
    pub fn check(&self, blocks: usize) -> Result<()> {
        let (value, fault) = match self {
            Layers::Last(0) => ("0".into(), "no layer would be trained; -1 means all".into()),
            Layers::Last(last) if *last > blocks => (last.to_string(), format!("the model has {blocks} layers")),
            Layers::Only(these) if these.is_empty() => ("[]".into(), "no layer would be trained".into()),
            Layers::Only(these) => match these.iter().find(|&&layer| layer >= blocks) {
                None => return Ok(()),
                // Nobody typed it: it comes from an adapter's file.
                Some(layer) => {
                    let fault =
                        format!("the adapter changes layer {layer}, and the model has layers 0 to {}", blocks - 1);
                    return Err(Error::System(fault));
                }
            },
            _ => return Ok(()),
        };
        Err(Error::Option { option: "num-layers", value, fault })
    }
}

impl LoraSpec {
    /// Checks the numbers.
    ///
    /// # Errors
    /// When the rank or alpha can't work.
    pub fn check(&self) -> Result<()> {
        let fault = |option, value: String, fault: &str| Err(Error::Option { option, value, fault: fault.into() });
        if self.rank == 0 || self.rank > 4096 {
            return fault("lora-rank", self.rank.to_string(), "a rank lies between 1 and 4096");
        }
        if !(self.alpha.is_finite() && self.alpha > 0.0) {
            return fault("lora-alpha", self.alpha.to_string(), "alpha is a number above 0");
        }
        Ok(())
    }

    /// alpha / rank.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank as f32
    }
}

/// An adapted linear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its Hugging Face path, such as `model.layers.0.self_attn.q_proj`.
    pub path: String,
    /// Which linear of its block.
    pub target: Target,
    /// Input dimension.
    pub cols: usize,
    /// Output dimension.
    pub rows: usize,
    /// When the file holds the rows in llama.cpp's order: elements of a head. Adapter files use Hugging Face's order.
    pub permuted: Option<usize>,
}

impl Module {
    /// Where the file keeps the row that Hugging Face's order calls `row`: llama.cpp stores row `j + p d/2` of a head at `2 j + p`.
    pub fn file_row(&self, row: usize) -> usize {
        match self.permuted {
            None => row,
            Some(d) => row / d * d + row % (d / 2) * 2 + row % d / (d / 2),
        }
    }
}
