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
    /// All seven, in the order of a block. Blocks without a gate have the other six.
    pub const ALL: [Target; 7] = [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// What a block calls it, where blocks of that kind have it.
    pub const fn path(self, naming: Naming) -> Option<&'static str> {
        Some(match (self, naming) {
            (Target::Q, Naming::Llama | Naming::Opt) => "self_attn.q_proj",
            (Target::K, Naming::Llama | Naming::Opt) => "self_attn.k_proj",
            (Target::V, Naming::Llama | Naming::Opt) => "self_attn.v_proj",
            (Target::O, Naming::Llama) => "self_attn.o_proj",
            (Target::Gate, Naming::Llama) => "mlp.gate_proj",
            (Target::Up, Naming::Llama) => "mlp.up_proj",
            (Target::Down, Naming::Llama) => "mlp.down_proj",
            (Target::O, Naming::Opt) => "self_attn.out_proj",
            (Target::Up, Naming::Opt) => "fc1",
            (Target::Down, Naming::Opt) => "fc2",
            (Target::Q, Naming::Roberta) => "attention.self.query",
            (Target::K, Naming::Roberta) => "attention.self.key",
            (Target::V, Naming::Roberta) => "attention.self.value",
            (Target::O, Naming::Roberta) => "attention.output.dense",
            (Target::Up, Naming::Roberta) => "intermediate.dense",
            (Target::Down, Naming::Roberta) => "output.dense",
            (Target::Gate, Naming::Opt | Naming::Roberta) => return None,
        })
    }

    /// The module's own name, the last word of its path.
    pub fn name(self, naming: Naming) -> Option<&'static str> {
        self.path(naming)?.rsplit('.').next()
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

    /// Reads a comma-separated list of names, or `all-linear`. A name may be any family's, or GGUF's, and stands for all linears whose path
    /// ends in it, as in PEFT: `dense` is three of RoBERTa's.
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
            let before = targets.len();
            targets.extend(Self::ALL.into_iter().filter(|target| target.is_called(name)));
            if targets.len() == before {
                let names: Vec<&str> = Self::ALL.iter().filter_map(|target| target.name(Naming::Llama)).collect();
                return Err(fault(format!(
                    "unknown module '{name}'; known are {}, out_proj, fc1, fc2, query, key, value, dense and all-linear",
                    names.join(", ")
                )));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        if targets.is_empty() { Err(fault("no module named".into())) } else { Ok(targets) }
    }

    fn is_called(self, name: &str) -> bool {
        let ends = |path: &str| path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let short = self.name(Naming::Llama).and_then(|name| name.strip_suffix("_proj"));
        self.gguf_name() == name || short == Some(name) || Naming::ALL.iter().filter_map(|&n| self.path(n)).any(ends)
    }
}

/// How blocks call their linears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// As llama does, and most since.
    #[default]
    Llama,
    /// As OPT does.
    Opt,
    /// As BERT did, and RoBERTa.
    Roberta,
}

impl Naming {
    /// All of them.
    pub const ALL: [Naming; 3] = [Naming::Llama, Naming::Opt, Naming::Roberta];

    /// What comes before a block's number.
    pub const fn blocks(self) -> &'static str {
        match self {
            Naming::Llama | Naming::Opt => "layers",
            Naming::Roberta => "layer",
        }
    }

    /// The number of its block, and which linear of it, a module's full path names.
    pub fn read(path: &str) -> Option<(usize, Target)> {
        Self::ALL.into_iter().find_map(|naming| {
            let (_, rest) = path.split_once(&format!("{}.", naming.blocks()))?;
            let (block, inside) = rest.split_once('.')?;
            let target = Target::ALL.into_iter().find(|target| target.path(naming) == Some(inside))?;
            Some((block.parse().ok()?, target))
        })
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

    /// Checks that blocks with such linears have all that are named; `all-linear` means those that there are.
    ///
    /// # Errors
    /// The first that they lack.
    pub fn check_targets(&self, naming: Naming) -> Result<()> {
        let lacking = self.targets.iter().find(|target| target.path(naming).is_none());
        match lacking.and_then(|target| target.name(Naming::Llama)) {
            Some(name) if self.targets.len() < Target::ALL.len() => {
                let fault = "the blocks of this model have no such linear".into();
                Err(Error::Option { option: "lora-targets", value: name.into(), fault })
            }
            _ => Ok(()),
        }
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
            Some(d) => llama_row(row, d),
        }
    }
}

/// Where llama.cpp keeps the row that Hugging Face's order calls `row`, for heads of `d` elements.
pub const fn llama_row(row: usize, d: usize) -> usize {
    row / d * d + row % (d / 2) * 2 + row % d / (d / 2)
}
