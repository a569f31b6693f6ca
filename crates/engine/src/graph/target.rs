//! The linears that can carry an adapter, and what each family, PEFT and GGUF call them.

use crate::error::{Error, Result};

/// What can carry an adapter: the linears of a block, and the two ends of a model.
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
    /// The table of the tokens' embeddings.
    Embedding,
    /// The head.
    Head,
}

impl Target {
    /// The seven linears, in the order of a block. Blocks without a gate have the other six.
    pub const ALL: [Target; 7] = [Target::Q, Target::K, Target::V, Target::O, Target::Gate, Target::Up, Target::Down];

    /// The ends of a model.
    pub const ENDS: [Target; 2] = [Target::Embedding, Target::Head];

    /// What a block, or the model, calls it, where those of that kind have it.
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
            (Target::Embedding, Naming::Llama | Naming::Opt) => "embed_tokens",
            (Target::Head, Naming::Llama | Naming::Opt) => "lm_head",
            (Target::Gate, Naming::Opt | Naming::Roberta) => return None,
            // Its ends are called otherwise, and its head has two linears.
            (Target::Embedding | Target::Head, Naming::Roberta) => return None,
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
            Target::Embedding => "token_embd",
            Target::Head => "output",
        }
    }

    /// What the module at `path` is, and the number of its block where it is in one.
    pub fn read(path: &str) -> Option<(Option<usize>, Target)> {
        let end = Self::ENDS.into_iter().find(|end| end.path(Naming::Llama).is_some_and(|name| ends(path, name)));
        match end {
            Some(end) => Some((None, end)),
            None => Naming::read(path).map(|(block, target)| (Some(block), target)),
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
            targets.extend(Self::ALL.into_iter().chain(Self::ENDS).filter(|target| target.is_called(name)));
            if targets.len() == before {
                let names: Vec<&str> = Self::ALL.iter().filter_map(|target| target.name(Naming::Llama)).collect();
                return Err(fault(format!(
                    "unknown module '{name}'; known are {}, embed_tokens, lm_head, out_proj, fc1, fc2, query, key, value, dense and all-linear",
                    names.join(", ")
                )));
            }
        }
        targets.sort_unstable();
        targets.dedup();
        if targets.is_empty() { Err(fault("no module named".into())) } else { Ok(targets) }
    }

    fn is_called(self, name: &str) -> bool {
        let short = self.name(Naming::Llama).and_then(|name| name.strip_suffix("_proj"));
        self.gguf_name() == name
            || short == Some(name)
            || Naming::ALL.iter().filter_map(|&n| self.path(n)).any(|path| ends(path, name))
    }
}

/// Whether `path` is `name` or ends in it.
fn ends(path: &str, name: &str) -> bool {
    path.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
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
