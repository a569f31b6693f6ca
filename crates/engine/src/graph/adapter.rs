//! What adapters a model gets: on which linears, of what rank and scale, and of what kind.

use pocketune_formats::peft::{self, Patterns};

use super::{Derivatives, Naming, ParamId, Target, Turns};
use crate::error::{Error, Result};

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
    /// Ranks of modules that have another.
    pub ranks: Patterns<usize>,
    /// Alphas of modules that have another.
    pub alphas: Patterns<f32>,
    /// Whether products are scaled by alpha / sqrt(rank) instead (rsLoRA).
    pub stabilized: bool,
    /// Whether the rows of every adapted matrix get a magnitude that is trained beside their direction (DoRA).
    pub dora: bool,
    /// Whether all modules share two random matrices that stay as they are, and train a vector on either side of the second (VeRA). There is
    /// no alpha then.
    pub vera: bool,
    /// The share of an adapter's inputs that is dropped while it is trained.
    pub dropout: f32,
    /// Whether first factors stay as they began, so that their gradient, their state and their input are not needed (LoRA-FA).
    pub frozen_a: bool,
    /// Classes of a head that is trained whole beside the adapters, where there is one.
    pub classes: Option<usize>,
    /// How gradients come to it.
    pub derivatives: Derivatives,
    /// No adapter at all: every tensor of the model is trained itself, and nothing of the above is looked at.
    pub whole: bool,
    /// How blocks take turns then, where they do.
    pub turns: Option<Turns>,
    /// The scales of its quantised blocks alone.
    pub scales: bool,
}

impl Default for LoraSpec {
    /// Rank 8 on every linear of every block.
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
            targets: Target::ALL.to_vec(),
            layers: Layers::All,
            ranks: Patterns::default(),
            alphas: Patterns::default(),
            stabilized: false,
            dora: false,
            vera: false,
            dropout: 0.0,
            frozen_a: false,
            classes: None,
            derivatives: Derivatives::default(),
            whole: false,
            turns: None,
            scales: false,
        }
    }
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
        let ranks = self.ranks.0.iter().map(|(_, rank)| ("lora-rank-pattern", *rank));
        for (option, rank) in [("lora-rank", self.rank)].into_iter().chain(ranks) {
            if rank == 0 || rank > 4096 {
                return fault(option, rank.to_string(), "a rank lies between 1 and 4096");
            }
        }
        let alphas = self.alphas.0.iter().map(|(_, alpha)| ("lora-alpha-pattern", *alpha));
        for (option, alpha) in [("lora-alpha", self.alpha)].into_iter().chain(alphas) {
            if !(alpha.is_finite() && alpha > 0.0) {
                return fault(option, alpha.to_string(), "alpha is a number above 0");
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return fault("lora-dropout", self.dropout.to_string(), "a share lies at 0 or above, and below 1");
        }
        let end =
            Target::ENDS.into_iter().find(|end| self.targets.contains(end)).and_then(|end| end.path(Naming::Llama));
        if let Some(end) = end.filter(|_| self.dora || self.dropout > 0.0) {
            return fault("lora-targets", end.into(), "at the ends of a model there is neither DoRA nor dropout here");
        }
        if self.vera {
            self.check_vera()?;
        }
        if self.dora && self.dropout > 0.0 {
            // PEFT then multiplies with the frozen matrix twice, once with the dropped inputs.
            return fault("lora-dropout", self.dropout.to_string(), "DoRA is trained without dropout here");
        }
        Ok(())
    }

    /// Checks that every pattern means a module of a graph.
    ///
    /// # Errors
    /// The first that means none.
    pub fn check_patterns(&self, modules: &[Module]) -> Result<()> {
        let ranks = self.ranks.0.iter().map(|(name, _)| ("lora-rank-pattern", name));
        let alphas = self.alphas.0.iter().map(|(name, _)| ("lora-alpha-pattern", name));
        for (option, name) in ranks.chain(alphas) {
            let one = Patterns(vec![(name.clone(), ())]);
            if !modules.iter().any(|module| one.of(&module.path).is_some()) {
                let fault = "no adapted module is called so, or has a path that ends so".into();
                return Err(Error::Option { option, value: name.clone(), fault });
            }
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
            Some(name) if !Target::ALL.iter().all(|target| self.targets.contains(target)) => {
                let fault = "this model has no such linear".into();
                Err(Error::Option { option: "lora-targets", value: name.into(), fault })
            }
            _ => Ok(()),
        }
    }

    /// The rank of the module at `path`.
    pub fn rank_of(&self, path: &str) -> usize {
        self.ranks.of(path).unwrap_or(self.rank)
    }

    /// What the product of the module at `path` is multiplied with.
    pub fn scale_of(&self, path: &str) -> f32 {
        let alpha = self.alphas.of(path).unwrap_or(self.alpha);
        if self.stabilized {
            return peft::scale(f64::from(alpha), self.rank_of(path), true) as f32;
        }
        alpha / self.rank_of(path) as f32
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
    /// The first factor, `[rank, in]`; with VeRA the one that is shared, held transposed: `[largest in, rank]`.
    pub a: ParamId,
    /// The second, held transposed: `[rank, out]`; with VeRA the one that is shared, `[largest out, rank]`.
    pub b: ParamId,
    /// The lengths of the rows, with DoRA.
    pub magnitude: Option<ParamId>,
    /// VeRA's vectors, of the rank and of the outputs, the latter in the order of the model's file.
    pub lambdas: Option<[ParamId; 2]>,
}

impl Module {
    /// Its own matrices, and what PEFT calls each.
    pub fn params(&self) -> impl Iterator<Item = (ParamId, &'static str)> + use<> {
        let magnitude = self.magnitude.map(|id| (id, "lora_magnitude_vector"));
        let names = match self.target {
            _ if self.lambdas.is_some() => ["vera_lambda_d", "vera_lambda_b"],
            Target::Embedding => ["lora_embedding_A", "lora_embedding_B"],
            _ => ["lora_A", "lora_B"],
        };
        self.lambdas.unwrap_or([self.a, self.b]).into_iter().zip(names).chain(magnitude)
    }

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

/// The row that Hugging Face's order has where llama.cpp keeps row `row`, for heads of `d` elements.
pub const fn hugging_face_row(row: usize, d: usize) -> usize {
    row / d * d + row % d / 2 + row % 2 * (d / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_order_of_rows_undoes_the_other() {
        for d in [2, 4, 64, 80] {
            for row in 0..3 * d {
                assert_eq!(llama_row(hugging_face_row(row, d), d), row);
            }
        }
    }
}
