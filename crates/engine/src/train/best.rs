//! The lowest validation loss so far, and when to stop for want of a lower one.

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
#[derive(Clone, Copy, Debug)]
pub struct Best {
    patience: Option<usize>,
    lowest: Option<(usize, f64)>,
    worse: usize,
}

impl Best {
    /// Stops after `patience` validations in a row without a lower loss.
    pub fn new(patience: Option<usize>) -> Self {
        Self { patience, lowest: None, worse: 0 }
    }

    /// Takes the loss after `iter` updates in.
    pub fn take(&mut self, iter: usize, loss: f64) -> Verdict {
        if self.lowest.is_none_or(|(_, lowest)| loss < lowest) {
            (self.lowest, self.worse) = (Some((iter, loss)), 0);
            return Verdict::Better;
        }
        self.worse += 1;
        if self.patience.is_some_and(|patience| self.worse >= patience) { Verdict::Enough } else { Verdict::Worse }
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
        let mut best = Best::new(Some(2));
        let verdicts: Vec<Verdict> =
            [3.0, 2.0, 2.5, 1.0, 1.0, 1.5].iter().enumerate().map(|(iter, &loss)| best.take(iter, loss)).collect();
        use Verdict::{Better, Enough, Worse};
        assert_eq!(verdicts, [Better, Better, Worse, Better, Worse, Enough]);
        assert_eq!(best.iter(), Some(3));
        let mut patient = Best::new(None);
        assert!((0..9).all(|iter| patient.take(iter, 1.0) != Enough));
    }
}
