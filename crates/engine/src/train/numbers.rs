//! Numbers gone bad: a loss or a gradient that is not finite, or a loss far above what is usual. Such an update is skipped and counted; after
//! a few in a row the run goes back to its last checkpoint with half the learning rate, and after a few such ways back it ends.

use serde::{Deserialize, Serialize};

use super::progress::bits;
use crate::error::{Error, Result};
use crate::graph::{Graph, ParamId};

/// Bad updates in a row that lead back to the last checkpoint.
pub const IN_A_ROW: usize = 3;
/// Ways back after which a run ends.
pub const MOST_HALVINGS: u32 = 4;

/// Losses that say what is usual.
const WINDOW: f64 = 50.0;
/// Losses before which nothing is unusual.
const FIRST: u32 = 20;

/// The running mean and variance of losses, the last ones counting most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spikes {
    #[serde(with = "bits")]
    mean: f64,
    #[serde(with = "bits")]
    variance: f64,
    count: u32,
}

impl Spikes {
    /// What a loss must be below: `most` standard deviations above the mean, where that many are asked for.
    pub fn limit(&self, most: Option<f64>) -> f64 {
        match most {
            Some(most) if self.count >= FIRST => self.mean + most * self.variance.sqrt().max(1e-3 * self.mean.abs()),
            _ => f64::INFINITY,
        }
    }

    /// Takes a usual loss in.
    pub fn take(&mut self, loss: f64) {
        self.count = self.count.saturating_add(1);
        let share = 1.0 / f64::from(self.count).min(WINDOW);
        let off = loss - self.mean;
        self.mean += share * off;
        self.variance = (1.0 - share) * (self.variance + share * off * off);
    }
}

/// After the first update, from the sums of squares of all gradients: each was finite and reached every second factor. Silence would mean that nothing is
/// trained (first factors get none at first where the second is zero).
///
/// # Errors
/// The first that did not.
pub fn check_first_gradients(sums: &[f64], graph: &Graph) -> Result<()> {
    if let Some(id) = (0..sums.len()).find(|&id| graph.whole && !sums[id].is_finite()) {
        let name = graph.name_of(ParamId(id));
        return Err(Error::Numbers(format!("the first gradient of {name} is not finite")));
    }
    for module in &graph.modules {
        for (id, factor) in module.params().filter(|(id, _)| graph.params[id.0].trained) {
            let sum = sums[id.0];
            if !sum.is_finite() {
                return Err(Error::Numbers(format!("the first gradient of {}.{factor} is not finite", module.path)));
            }
            // One of the factors begins at zero, and the other gets nothing before it moves.
            if matches!(factor, "lora_B" | "lora_embedding_A" | "vera_lambda_b") && sum == 0.0 {
                return Err(Error::Numbers(format!(
                    "no gradient reached {}.{factor} in the first update; it would never be trained",
                    module.path
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_far_above_the_usual_is_a_spike_and_a_slope_is_none() {
        let mut spikes = Spikes::default();
        for at in 0..FIRST {
            assert_eq!(spikes.limit(Some(4.0)), f64::INFINITY);
            spikes.take(3.0 + 0.1 * f64::from(at % 3));
        }
        assert_eq!(spikes.limit(None), f64::INFINITY);
        let limit = spikes.limit(Some(4.0));
        assert!(limit > 3.3 && limit < 3.6, "{limit}");
        for at in 0..500 {
            let loss = 3.0 - 0.005 * f64::from(at) + 0.1 * f64::from(at % 3);
            assert!(loss < spikes.limit(Some(4.0)), "update {at}");
            spikes.take(loss);
        }
        assert!(5.0 > spikes.limit(Some(6.0)));
    }
}
