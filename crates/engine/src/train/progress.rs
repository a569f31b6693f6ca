//! How far a run has come: all that the next update depends on beside the adapter and the optimizer's state. Random numbers and the
//! order of records are functions of the seed and a position, so the position is all there is to remember of them.

use serde::{Deserialize, Serialize};

use super::best::Best;
use super::numbers::Spikes;
use crate::backend::Outcome;

/// A run after some update.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Updates done, those that were skipped included.
    pub iter: usize,
    /// How far the endless sequence of passes was taken, in steps of [`super::Passes::step`].
    pub position: u64,
    /// Tokens of all updates.
    pub trained: u64,
    /// Updates that were skipped because their numbers were bad.
    pub skipped: usize,
    /// Those on ways that were gone back since.
    pub undone: usize,
    /// How many were skipped one after another, up to now.
    pub bad_in_a_row: usize,
    /// How often the learning rate was halved after a way back.
    pub halvings: u32,
    /// Since the last report.
    pub since: Since,
    /// What losses are usual.
    pub spikes: Spikes,
    /// The first report's loss.
    #[serde(with = "bits")]
    pub first_loss: f64,
    /// The last report's loss.
    #[serde(with = "bits")]
    pub last_loss: f64,
    /// Validation before the first update.
    pub valid_before: Option<Found>,
    /// The update after which the validation set was measured last.
    pub validated: usize,
    /// The lowest validation loss so far.
    pub best: Best,
    /// What the adapter measured that is on disk already, where the best one is kept.
    pub kept: Option<Found>,
}

/// What adds up between two reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Since {
    /// Sum of the mean losses of updates that count.
    #[serde(with = "bits")]
    pub losses: f64,
    /// Updates that count.
    pub counted: usize,
}

/// An [`Outcome`] that can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    #[serde(with = "bits")]
    loss: f64,
    hits: usize,
    targets: usize,
}

impl From<Outcome> for Found {
    fn from(Outcome { loss, hits, targets }: Outcome) -> Self {
        Self { loss, hits, targets }
    }
}

impl From<Found> for Outcome {
    fn from(Found { loss, hits, targets }: Found) -> Self {
        Self { loss, hits, targets }
    }
}

/// Floats as their bits: decimal digits would have to be read back by the same rules, and know no NaN.
pub(super) mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(x: &f64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(x.to_bits())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        u64::deserialize(from).map(f64::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_comes_back() {
        let outcome = Outcome { loss: f64::from_bits(0x3ff0_0000_0000_0001), hits: 3, targets: 4 };
        let progress = Progress {
            iter: usize::MAX >> 1,
            position: u64::MAX,
            first_loss: f64::NAN,
            last_loss: 0.1 + 0.2,
            valid_before: Some(outcome.into()),
            ..Progress::default()
        };
        let text = serde_json::to_string(&progress).unwrap();
        let back: Progress = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
        assert_eq!(back.last_loss.to_bits(), (0.1_f64 + 0.2).to_bits());
        assert_eq!(back.valid_before.map(Outcome::from), Some(outcome));
    }
}
