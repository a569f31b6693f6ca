//! The lowest validation loss so far, and when to stop for want of a lower one.

use serde::{Deserialize, Serialize};

use super::progress::bits;

/// What a validation means for the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Lower than any before.
    Better,
    /// Not lower.
    Worse,
    /// Not lower, too many times in a row.
    Enough,
}

/// The validations of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The update after which the loss was lowest, and what it was.
    lowest: Option<(usize, Lowest)>,
    /// Validations since, none of them lower.
    worse: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Lowest(#[serde(with = "bits")] f64);

impl Best {
    /// Takes the loss after `iter` updates in; `patience` validations in a row without a lower one are enough.
    pub fn take(&mut self, iter: usize, loss: f64, patience: Option<usize>) -> Verdict {
        if self.lowest.is_none_or(|(_, Lowest(lowest))| loss < lowest) {
            (self.lowest, self.worse) = (Some((iter, Lowest(loss))), 0);
            return Verdict::Better;
        }
        self.worse += 1;
        if self.is_enough(patience) { Verdict::Enough } else { Verdict::Worse }
    }

    /// Whether the loss has not fallen for `patience` validations.
    pub fn is_enough(&self, patience: Option<usize>) -> bool {
        patience.is_some_and(|patience| self.worse >= patience)
    }

    /// The update after which the loss was lowest.
    pub fn iter(&self) -> Option<usize> {
        self.lowest.map(|(iter, _)| iter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stops_after_so_many_in_a_row_that_are_not_lower() {
        let mut best = Best::default();
        let losses = [3.0, 2.0, 2.5, 1.0, 1.0, 1.5].iter().enumerate();
        let verdicts: Vec<Verdict> = losses.map(|(iter, &loss)| best.take(iter, loss, Some(2))).collect();
        use Verdict::{Better, Enough, Worse};
        assert_eq!(verdicts, [Better, Better, Worse, Better, Worse, Enough]);
        assert_eq!(best.iter(), Some(3));
        let mut patient = Best::default();
        assert!((0..9).all(|iter| patient.take(iter, 1.0, None) != Enough));
    }
}
