//! How an adapter is trained, by name: what is trained and how its change is found, the defaults of the paper that a name comes from, and
//! one sentence on what is exact about it. What does not go together is refused here, with the nearest thing that works.

use super::zeroth::Zeroth;
use super::{Optimizer, Order};
use crate::backend::{Law, Sides, Still};
use crate::error::{Error, Result};
use crate::graph::{LoraSpec, Naming, Target, Turns};

/// A way to train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Gradients of every matrix of the adapter.
    #[default]
    Backprop,
    /// Gradients of second factors alone.
    LoraFa,
    /// Gradients of factors and magnitudes.
    Dora,
    /// Gradients of two vectors for each linear, around random matrices that all share.
    Vera,
    /// The slope along one direction, from losses on both of its sides.
    Mezo,
    /// The same, with the largest numbers left where they are.
    SparseMezo,
    /// Slopes along several directions at once, by how much they differ.
    Fzoo,
    /// The slope along a direction of low rank.
    Lozo,
    /// The slope along a direction in some of the blocks.
    Lezo,
    /// The slope along a direction of the scales of quantised blocks.
    Qzo,
    /// Gradients of all of the model's own tensors.
    Full,
    /// The same, by plain SGD.
    Lomo,
    /// The same, with second moments of rows and columns.
    AdaLomo,
    /// The same, with moments of a projection of the gradient, and a factor for each channel.
    Apollo,
    /// The same with a projection to one row, and a factor for each tensor.
    ApolloMini,
    /// The same by AdamW, with moments that are kept as products of rank 4.
    Mlorc,
    /// The same by AdamW of a projection onto the gradient's leading singular vectors.
    Galore,
    /// Gradients of one block of the model at a time.
    BAdam,
    /// Gradients of the model's ends, and of some of its blocks at a time.
    Lisa,
}

/// What a method starts from where the user named nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Defaults {
    /// The learning rate.
    pub rate: f32,
    /// Rank of the adapters.
    pub rank: usize,
    /// Linears that get one, as they are typed.
    pub targets: &'static str,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 19] = [
        Method::Backprop,
        Method::LoraFa,
        Method::Dora,
        Method::Vera,
        Method::Mezo,
        Method::SparseMezo,
        Method::Fzoo,
        Method::Lozo,
        Method::Lezo,
        Method::Qzo,
        Method::Full,
        Method::Lomo,
        Method::AdaLomo,
        Method::Apollo,
        Method::ApolloMini,
        Method::Mlorc,
        Method::Galore,
        Method::BAdam,
        Method::Lisa,
    ];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Backprop => "backprop",
            Method::LoraFa => "lora-fa",
            Method::Dora => "dora",
            Method::Vera => "vera",
            Method::Mezo => "mezo",
            Method::SparseMezo => "sparse-mezo",
            Method::Fzoo => "fzoo",
            Method::Lozo => "lozo",
            Method::Lezo => "lezo",
            Method::Qzo => "qzo",
            Method::Full => "full",
            Method::Lomo => "lomo",
            Method::AdaLomo => "adalomo",
            Method::Apollo => "apollo",
            Method::ApolloMini => "apollo-mini",
            Method::Mlorc => "mlorc",
            Method::Galore => "galore",
            Method::BAdam => "badam",
            Method::Lisa => "lisa",
        }
    }

    /// What it does, and what of it is exact.
    pub const fn words(self) -> &'static str {
        match self {
            Method::Backprop => "Exact gradients of the whole adapter",
            Method::LoraFa => {
                "Exact gradients of second factors; first factors stay as they were drawn, and their inputs are not kept"
            }
            Method::Dora => {
                "Exact gradients of factors and magnitudes, with the lengths of rows as constants, as its paper has them"
            }
            Method::Vera => {
                "Exact gradients of two vectors for each linear, around two random matrices of rank 256 that all share and nobody trains"
            }
            Method::Mezo => {
                "No gradient: an estimate of the slope along one random direction, from two exact losses; needs many more updates"
            }
            Method::SparseMezo => "mezo, with the three quarters of every matrix that are largest left where they are",
            Method::Fzoo => {
                "No gradient: an estimate from nine exact losses along eight directions of signs, normed by how far losses scatter"
            }
            Method::Lozo => "mezo along directions of rank 2, half of which stays for 50 updates",
            Method::Lezo => "mezo in a quarter of the blocks, chosen anew for every update",
            Method::Qzo => {
                "mezo on the scales of a quantised model's blocks, whose integers stay; the slope is clipped to 100, and the model itself is trained, in a file"
            }
            Method::Full => {
                "Exact gradients of all parameters, no adapter: the model itself is trained, in a file, by --optimizer adamw, adamw8bit or sgd"
            }
            Method::Lomo => "full by plain SGD, which remembers nothing",
            Method::AdaLomo => {
                "full with exact gradients and a second moment of which means of rows and columns are kept; steps are bounded tensor by tensor"
            }
            Method::Apollo => {
                "full along exact gradients, whose channels are scaled by AdamW's moments of a random projection to 16 rows"
            }
            Method::ApolloMini => "apollo with a projection to one row, and one scale for each tensor",
            Method::Mlorc => {
                "full by AdamW with exact gradients, whose moments of matrices are kept as products of rank 4 between updates"
            }
            Method::Galore => {
                "full by AdamW of the part of the exact gradient along 16 leading singular vectors, found every 200 updates; embedding and head too"
            }
            Method::BAdam => {
                "Exact gradients of one block at a time, by AdamW from fresh moments, the next after 100 updates; embedding, head and last norm stay"
            }
            Method::Lisa => {
                "Exact gradients of embedding, head and last norm always, and of two blocks drawn for 20 updates, by AdamW from fresh moments"
            }
        }
    }

    /// The method called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// What it starts from: of methods without gradients, what their papers have for LoRA; the rate of fzoo, whose steps are normed, is ours.
    pub const fn defaults(self) -> Defaults {
        match self {
            Method::Backprop | Method::LoraFa | Method::Dora => Defaults { rate: 1e-4, rank: 8, targets: "all-linear" },
            Method::Vera => Defaults { rate: 4e-3, rank: 256, targets: "all-linear" },
            Method::Mezo | Method::SparseMezo | Method::Lozo | Method::Lezo => {
                Defaults { rate: 1e-4, rank: 8, targets: "q_proj,v_proj" }
            }
            Method::Full | Method::BAdam => Defaults { rate: 2e-5, rank: 8, targets: "all-linear" },
            Method::Mlorc => Defaults { rate: 1e-4, rank: 8, targets: "all-linear" },
            Method::Galore => Defaults { rate: 1e-3, rank: 8, targets: "all-linear" },
            Method::Qzo => Defaults { rate: 1e-6, rank: 8, targets: "all-linear" },
            Method::Lomo => Defaults { rate: 1e-2, rank: 8, targets: "all-linear" },
            Method::AdaLomo => Defaults { rate: 1e-3, rank: 8, targets: "all-linear" },
            Method::Apollo | Method::ApolloMini | Method::Lisa => {
                Defaults { rate: 5e-5, rank: 8, targets: "all-linear" }
            }
            Method::Fzoo => Defaults { rate: 3e-2, rank: 8, targets: "q_proj,v_proj" },
        }
    }

    /// The learning rate where a method without gradients moves all parameters: MeZO's paper's; that of fzoo, whose steps are normed, is ours.
    pub const fn rate_of_all(self) -> f32 {
        match self {
            Method::Fzoo => 1e-3,
            _ => 1e-6,
        }
    }

    /// How it looks at losses, where it has no gradients.
    pub const fn zeroth(self) -> Option<Zeroth> {
        let mezo = Zeroth {
            law: Law::Normal,
            sides: Sides::Two,
            still: Still::Nothing,
            eps: 1e-2,
            renew: 1,
            clip: f64::INFINITY,
        };
        Some(match self {
            Method::Mezo => mezo,
            Method::SparseMezo => Zeroth { still: Still::Large(0.75), ..mezo },
            Method::Fzoo => Zeroth { law: Law::Signs, sides: Sides::One(8), ..mezo },
            Method::Lozo => Zeroth { law: Law::LowRank(2), renew: 50, ..mezo },
            Method::Lezo => Zeroth { still: Still::Blocks(0.75), ..mezo },
            Method::Qzo => Zeroth { law: Law::Scales, eps: 1e-3, clip: 100.0, ..mezo },
            _ => return None,
        })
    }

    /// Whether it trains the model itself, without an adapter.
    pub const fn trains_all(self) -> bool {
        matches!(
            self,
            Method::Qzo
                | Method::Full
                | Method::Lomo
                | Method::AdaLomo
                | Method::Apollo
                | Method::ApolloMini
                | Method::Mlorc
                | Method::Galore
                | Method::BAdam
                | Method::Lisa
        )
    }

    /// What learns at a time, where blocks take turns, in what order, and for how many updates.
    pub const fn turns(self) -> Option<(Turns, Order, usize)> {
        match self {
            Method::BAdam => Some((Turns { blocks: 1, ends: false }, Order::Random, 100)),
            Method::Lisa => Some((Turns { blocks: 2, ends: true }, Order::Drawn, 20)),
            _ => None,
        }
    }

    /// The update rule, where the method is one.
    pub const fn optimizer(self) -> Option<Optimizer> {
        match self {
            Method::Lomo => Some(Optimizer::Sgd),
            Method::BAdam | Method::Lisa => Some(Optimizer::AdamW),
            Method::Mlorc => Some(Optimizer::Mlorc),
            Method::Galore => Some(Optimizer::Galore),
            Method::AdaLomo => Some(Optimizer::AdaLomo),
            Method::Apollo => Some(Optimizer::Apollo { mini: false }),
            Method::ApolloMini => Some(Optimizer::Apollo { mini: true }),
            _ => None,
        }
    }

    /// The adapters of `spec` as this method trains them; `given` where they come from a file.
    ///
    /// # Errors
    /// When it can't train such adapters.
    pub fn adapt(self, spec: LoraSpec, given: bool) -> Result<LoraSpec> {
        let fault = |fault: String| Err(Error::Option { option: "method", value: self.name().into(), fault });
        let in_blocks = |what: &str| match end(&spec) {
            Some(end) => fault(format!(
                "it {what} the linears of blocks, not {end}; leave that out of --lora-targets, or take --method backprop"
            )),
            None => Ok(spec.clone()),
        };
        match self {
            Method::Vera if given && !spec.vera => {
                fault("the adapter to start from is no VeRA adapter; --method backprop trains it".into())
            }
            Method::Vera if spec.dora => fault("it is no DoRA; --method dora trains magnitudes".into()),
            Method::Vera => Ok(LoraSpec { vera: true, ..spec }),
            _ if spec.vera => fault("the adapter to start from is VeRA's; --method vera trains it".into()),
            Method::Backprop => Ok(spec),
            _ if self.trains_all() && given => {
                fault("it trains the model itself; `pocketune merge` puts the adapter into it first".into())
            }
            Method::Qzo => Ok(LoraSpec { whole: true, scales: true, ..LoraSpec::default() }),
            _ if self.trains_all() => {
                let turns = self.turns().map(|(turns, ..)| turns);
                Ok(LoraSpec { whole: true, turns, ..LoraSpec::default() })
            }
            Method::Dora if given && !spec.dora => {
                fault("the adapter to start from has no magnitudes; --method backprop trains it".into())
            }
            Method::Dora => Ok(LoraSpec { dora: true, ..spec }),
            _ if spec.dora => fault("it is for plain LoRA; --method dora trains magnitudes".into()),
            Method::LoraFa => Ok(LoraSpec { frozen_a: true, ..in_blocks("trains")? }),
            _ if spec.dropout > 0.0 => {
                fault("losses are compared with each other, so nothing may be dropped; leave --lora-dropout out".into())
            }
            _ => in_blocks("moves"),
        }
    }
}

/// The first of a model's ends that has an adapter.
fn end(spec: &LoraSpec) -> Option<&'static str> {
    Target::ENDS.into_iter().find(|end| spec.targets.contains(end)).and_then(|end| end.path(Naming::Llama))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_found_by_its_name() {
        for method in Method::ALL {
            assert_eq!(Method::named(method.name()), Some(method));
            assert!(Target::parse_list(method.defaults().targets).is_ok());
        }
        assert_eq!(Method::named("gradient-descent"), None);
    }
}
