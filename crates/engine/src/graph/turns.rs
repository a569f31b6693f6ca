//! Blocks of a model that learn in turns: a few at a time, each turn with fresh optimizer's states, for which there is room once. The room is that of the first
//! blocks; whichever block learns uses it. All blocks of a model have the same tensors, of the same shapes.

use super::Graph;

/// What learns at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turns {
    /// So many blocks.
    pub blocks: usize,
    /// Whether what lies outside of blocks always learns; never otherwise.
    pub ends: bool,
}

impl Turns {
    /// The chance that `block` of `blocks` learns.
    pub fn chance(self, blocks: usize) -> f64 {
        self.blocks.min(blocks) as f64 / blocks as f64
    }

    /// The chance that the gradient gets as far as `block` of `blocks`, because it or one before it learns.
    pub fn reach(self, block: usize, blocks: usize) -> f64 {
        if self.ends {
            return 1.0;
        }
        let none = (0..self.blocks.min(blocks)).map(|at| {
            let (later, left) = ((blocks - block - 1) as f64 - at as f64, (blocks - at) as f64);
            later.max(0.0) / left
        });
        1.0 - none.product::<f64>()
    }
}

impl Graph {
    /// The same, of a model whose own tensors are trained, with blocks that learn in turns.
    #[must_use]
    pub fn in_turns(mut self, turns: Turns) -> Self {
        let blocks = self.blocks_of_params();
        for (param, block) in self.params.iter_mut().zip(blocks) {
            match block {
                None => param.trained = turns.ends,
                Some(block) => param.remembered = block < turns.blocks,
            }
        }
        self.turns = Some(turns);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_gets_to_the_last_block_always_and_to_the_first_when_it_learns() {
        let one = Turns { blocks: 1, ends: false };
        assert_eq!((one.reach(0, 8), one.reach(3, 8), one.reach(7, 8)), (0.125, 0.5, 1.0));
        let two = Turns { blocks: 2, ends: false };
        // Of the six pairs of four blocks, three have the first.
        assert!((two.reach(0, 4) - 0.5).abs() < 1e-12 && two.reach(2, 4) == 1.0);
        assert_eq!(Turns { ends: true, ..one }.reach(0, 8), 1.0);
        assert_eq!(Turns { blocks: 9, ends: true }.chance(3), 1.0);
    }
}
