//! What a run of a program reads, and what it found.

use std::ops::Range;

use pocketune_kernels::attention::Segment;
use pocketune_kernels::dropout::Mask;
use pocketune_kernels::philox::Philox;

/// The label of a row that has none.
pub const NO_LABEL: u32 = u32::MAX;

/// The rows of one run: records one after another, without padding.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token of each row.
    pub ids: &'a [u32],
    /// Position of each row in its record.
    pub positions: &'a [u32],
    /// What each row should predict, or [`NO_LABEL`]. Unused when generating.
    pub labels: &'a [u32],
    /// The tokens that are chosen among, where not all are; labels are of them.
    pub choices: &'a [u32],
    /// Where the records lie.
    pub segments: &'a [Segment],
    /// What the summed loss is divided by in gradients: the targets of the whole step.
    pub targets: usize,
    /// Where its random numbers come from.
    pub noise: Noise,
    /// Rows that see the same perturbation, one after another; none where nothing is perturbed.
    pub groups: &'a [Group],
}

/// Rows that see the same perturbation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// One past the last of its rows; they begin where those of the group before end.
    pub end: usize,
    /// Which one it is of the update's.
    pub number: usize,
}

impl<'a> Batch<'a> {
    /// The parts of the rows `window` by group, counted from its start, with the group's number.
    pub(super) fn parts(&self, window: &Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> + use<'a> {
        let (from, to) = (window.start, window.end);
        let mut start = 0;
        self.groups.iter().filter_map(move |group| {
            let rows = start.max(from)..group.end.min(to);
            start = group.end;
            (rows.start < rows.end).then(|| (rows.start - from..rows.end - from, group.number))
        })
    }

    /// The number of the group that a row is of.
    pub(super) fn group_of(&self, row: usize) -> usize {
        self.groups.iter().find(|group| row < group.end).map_or(0, |group| group.number)
    }
}

/// What the random numbers of a pass are a function of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noise {
    /// The seed of the run.
    pub seed: u64,
    /// The pass's own number.
    pub pass: u64,
}

impl Noise {
    /// The streams of random numbers that masks come from begin here; each pass has 2^16 of them.
    const STREAM: u64 = 1 << 63;

    /// Those that rounding comes from begin here; each pass has 2^16 of them, one for each tensor.
    const ROUNDING: u64 = 1 << 62;

    /// The random numbers that one of the model's tensors is rounded with.
    pub(super) fn rounding(self, tensor: usize) -> Philox {
        Philox::new(self.seed, Self::ROUNDING | (self.pass << 16 & (Self::ROUNDING - 1)) | tensor as u64 & 0xffff)
    }

    pub(super) fn mask(self, stream: u64, share: f32) -> Mask {
        Mask::new(Philox::new(self.seed, Self::STREAM | (self.pass << 16 & (Self::STREAM - 1)) | stream), share)
    }
}

/// What a run found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Sum of the losses of all targets.
    pub loss: f64,
    /// Targets that were the most likely token.
    pub hits: usize,
    /// Number of targets.
    pub targets: usize,
}

impl Outcome {
    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self { loss: self.loss + other.loss, hits: self.hits + other.hits, targets: self.targets + other.targets }
    }

    /// Mean loss of a target.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.targets.max(1) as f64
    }

    /// The share of targets that were the most likely token.
    pub fn accuracy(&self) -> f64 {
        self.hits as f64 / self.targets.max(1) as f64
    }
}
