//! Whose turn it is to learn, where the blocks of a model take turns: a function of the seed and the number of the update, so that a run that goes on needs nothing
//! to know it.

use pocketune_kernels::philox::Philox;

/// The stream of random numbers that orders of blocks come from.
const STREAM: u64 = 1 << 42;

/// In what order blocks take their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each once, in a random order, and then in another.
    Random,
    /// From the first to the last.
    Ascending,
    /// From the last to the first.
    Descending,
    /// Drawn for every turn, whoever had the last.
    Drawn,
}

impl Order {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Order::Random => "random",
            Order::Ascending => "ascending",
            Order::Descending => "descending",
            Order::Drawn => "drawn",
        }
    }
}

/// How blocks take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shifts {
    /// In what order.
    pub order: Order,
    /// Updates of a turn.
    pub every: usize,
    /// Blocks of a turn.
    pub at_once: usize,
    /// The seed of random orders.
    pub seed: u64,
}

impl Shifts {
    /// The number of update `update` (from 1) inside its turn, from 1.
    pub const fn age(&self, update: usize) -> u64 {
        ((update - 1) % self.every + 1) as u64
    }

    /// Whether `block` of `blocks` learns in update `update`, from 1.
    pub fn learns(&self, update: usize, block: usize, blocks: usize) -> bool {
        let turn = (update - 1) / self.every;
        let place = |order: usize| Philox::new(self.seed, STREAM).place((order as u64) << 32, block, blocks);
        match self.order {
            Order::Random => place(turn / blocks) == turn % blocks,
            Order::Ascending => block == turn % blocks,
            Order::Descending => block == blocks - 1 - turn % blocks,
            Order::Drawn => place(turn) < self.at_once,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_learns_once_before_any_does_again() {
        for order in [Order::Random, Order::Ascending, Order::Descending] {
            let shifts = Shifts { order, every: 3, at_once: 1, seed: 5 };
            for round in 0..4 {
                let turns = (0..7).map(|turn| round * 21 + turn * 3 + 1);
                let who = |update| (0..7).filter(|&block| shifts.learns(update, block, 7)).collect::<Vec<_>>();
                let mut learnt: Vec<usize> = turns.flat_map(who).collect();
                learnt.sort_unstable();
                assert_eq!(learnt, (0..7).collect::<Vec<_>>(), "{order:?}");
            }
        }
    }

    #[test]
    fn as_many_blocks_as_asked_for_learn_for_a_whole_turn_and_all_do_in_time() {
        let shifts = Shifts { order: Order::Drawn, every: 4, at_once: 2, seed: 5 };
        let who = |update: usize| (0..9).filter(|&block| shifts.learns(update, block, 9)).collect::<Vec<_>>();
        let mut ever = [false; 9];
        for update in 1..200 {
            assert_eq!(who(update).len(), 2);
            assert_eq!(who(update), who(update - (shifts.age(update) as usize - 1)));
            who(update).into_iter().for_each(|block| ever[block] = true);
        }
        assert_eq!(ever, [true; 9]);
        assert_eq!([1, 4, 5, 6].map(|update| shifts.age(update)), [1, 4, 1, 2]);
    }
}
