//! VeRA (2310.11454): two random matrices that all adapted linears share and nobody trains, of which each takes as many columns or rows as it has, and
//! two trained vectors of each linear's own. `y = x Wᵀ + ((x Aᵀ ∘ d) Bᵀ) ∘ b`.

use super::{Graph, LoraSpec, Module, Naming, Of, Param, ParamId, Target};
use crate::error::{Error, Result};

/// What VeRA adds to one linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vera {
    /// A of all linears, held transposed, `[largest in, rank]`: this one takes the first `cols` rows.
    pub a: ParamId,
    /// B of all linears, `[largest out, rank]`: this one takes the first `rows` rows.
    pub b: ParamId,
    /// The vector on the rank.
    pub lambda_d: ParamId,
    /// The vector on the outputs, in the order of the model's file.
    pub lambda_b: ParamId,
    /// Numbers between the two products.
    pub rank: usize,
    /// Inputs.
    pub cols: usize,
    /// Outputs.
    pub rows: usize,
    /// Elements of a head, where the model's file has rows in llama.cpp's order. B's rows are in Hugging Face's.
    pub permuted: Option<usize>,
}

impl Graph {
    /// Adds the module of one linear; the shared matrices grow to what it needs.
    pub(super) fn add_vera(
        &mut self,
        path: &str,
        target: Target,
        [cols, rows]: [usize; 2],
        permuted: Option<usize>,
        rank: usize,
    ) -> Vera {
        let shared = Param { of: Of::Shared, rank: 0, cols: rank, trained: false, remembered: false };
        if self.params.is_empty() {
            self.params.extend([shared; 2]);
        }
        for (shared, needed) in self.params.iter_mut().zip([cols, rows]) {
            shared.rank = shared.rank.max(needed);
        }
        let of = Of::Module(self.modules.len());
        let [lambda_d, lambda_b] = [rank, rows].map(|cols| {
            self.params.push(Param { of, rank: 1, cols, trained: true, remembered: true });
            ParamId(self.params.len() - 1)
        });
        let (a, b, lambdas) = (ParamId(0), ParamId(1), Some([lambda_d, lambda_b]));
        self.modules.push(Module { path: path.into(), target, cols, rows, permuted, a, b, magnitude: None, lambdas });
        Vera { a, b, lambda_d, lambda_b, rank, cols, rows, permuted }
    }
}

impl LoraSpec {
    /// Checks that nothing is asked for that VeRA has not.
    pub(super) fn check_vera(&self) -> Result<()> {
        let fault = |option, value: String, fault: &str| Err(Error::Option { option, value, fault: fault.into() });
        if let Some((name, _)) = self.ranks.0.first() {
            return fault("lora-rank-pattern", name.clone(), "with VeRA all modules share matrices of one rank");
        }
        if let Some((name, _)) = self.alphas.0.first() {
            return fault("lora-alpha-pattern", name.clone(), "VeRA has no alpha; its vectors are trained instead");
        }
        if self.stabilized {
            return fault("use-rslora", "on".into(), "VeRA has no alpha; its vectors are trained instead");
        }
        if self.dropout > 0.0 {
            return fault("lora-dropout", self.dropout.to_string(), "VeRA is trained without dropout here");
        }
        let end = Target::ENDS.into_iter().find(|end| self.targets.contains(end));
        match end.and_then(|end| end.path(Naming::Llama)) {
            Some(end) => fault("lora-targets", end.into(), "VeRA is for the linears of blocks; leave that out"),
            None => Ok(()),
        }
    }
}
