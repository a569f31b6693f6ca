//! How an adapter is trained, by name: what is trained and how its change is found, the defaults of the paper that a name comes from, and
//! one sentence on what is exact about it. What does not go together is refused here, with the nearest thing that works.

use crate::error::{Error, Result};
use crate::graph::{LoraSpec, Naming, Target};

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
    pub const ALL: [Method; 3] = [Method::Backprop, Method::LoraFa, Method::Dora];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Backprop => "backprop",
            Method::LoraFa => "lora-fa",
            Method::Dora => "dora",
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
        }
    }

    /// The method called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// What it starts from.
    pub const fn defaults(self) -> Defaults {
        match self {
            Method::Backprop | Method::LoraFa | Method::Dora => Defaults { rate: 1e-4, rank: 8, targets: "all-linear" },
        }
    }

    /// The adapters of `spec` as this method trains them; `given` where they come from a file.
    ///
    /// # Errors
    /// When it can't train such adapters.
    pub fn adapt(self, spec: LoraSpec, given: bool) -> Result<LoraSpec> {
        let fault = |fault: String| Err(Error::Option { option: "method", value: self.name().into(), fault });
        match self {
            Method::Backprop => Ok(spec),
            Method::Dora if given && !spec.dora => {
                fault("the adapter to start from has no magnitudes; --method backprop trains it".into())
            }
            Method::Dora => Ok(LoraSpec { dora: true, ..spec }),
            Method::LoraFa if spec.dora => {
                fault("DoRA trains both factors; --method dora trains it, lora-fa plain LoRA".into())
            }
            Method::LoraFa => match end(&spec) {
                Some(end) => fault(format!(
                    "it trains the linears of blocks, not {end}; leave that out of --lora-targets, or take --method backprop"
                )),
                None => Ok(LoraSpec { frozen_a: true, ..spec }),
            },
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
