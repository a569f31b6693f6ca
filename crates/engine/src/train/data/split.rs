//! Which records of a file are kept for validation: one of every so many, drawn by the seed. The share is exact, the draw needs no second
//! pass, and a record's fate depends on its number and the seed alone.

use pocketune_kernels::philox::Philox;

/// The stream of random numbers that records are drawn by; epochs are shuffled by those below.
const STREAM: u64 = 3 << 32;

/// A share of records.
pub struct Split {
    share: f64,
    numbers: Philox,
}

impl Split {
    /// A share above 0 and at most 0.5.
    pub fn new(share: f64, seed: u64) -> Self {
        Self { share, numbers: Philox::new(seed, STREAM) }
    }

    /// Whether record number `at` is one of them. Block b is the records from b / share to (b + 1) / share; one of each is drawn.
    pub fn draws(&self, at: u64) -> bool {
        let bound = |block: u64| (block as f64 / self.share).ceil() as u64;
        let mut block = (at as f64 * self.share) as u64;
        while bound(block + 1) <= at {
            block += 1;
        }
        while bound(block) > at {
            block -= 1;
        }
        at == bound(block) + self.numbers.below(block, bound(block + 1) - bound(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_drawn_and_the_seed_says_which() {
        for share in [0.5, 0.3, 0.1, 0.01] {
            let drawn = |seed| (0..10_000).filter(|&at| Split::new(share, seed).draws(at)).collect::<Vec<_>>();
            let wanted = (10_000.0 * share) as i64;
            assert!((drawn(1).len() as i64 - wanted).abs() <= 1, "{share}: {}", drawn(1).len());
            assert_eq!(drawn(1), drawn(1));
            assert_ne!(drawn(1), drawn(2));
        }
    }
}
