//! Approximate slopes of smooth activations (Approx-BP, [2406.16282](https://arxiv.org/abs/2406.16282)): a step function of four levels in
//! place of the derivative, so that two bits an element are all that has to wait for the backward pass. Values are never approximated, and
//! ReLU, whose slope has but two levels, is left as it is. Sixteen levels share a word; every row begins with a word of its own.

use crate::activation::Act;
use crate::per_isa::per_isa;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Levels in a word.
const A_WORD: usize = 16;
/// Elements that one task handles, about.
const PIECE: usize = 8192;

/// Where the slope changes, and what it is before, between and after.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps {
    at: [f32; 3],
    slopes: [f32; 4],
}

/// The paper's fit to GELU. The tanh form differs from it by less than the steps do.
const REGELU2: Steps = Steps {
    at: [-3.185_881, -0.001_178_821_3, 3.190_832_6],
    slopes: [0.0, -0.049_222_61, (-0.049_222_611_456_178_46 + 1.097_963_206_541_729_7) as f32, 1.0],
};
/// And to SiLU.
const RESILU2: Steps = Steps {
    at: [-6.305_046, -0.000_868_494_2, 6.325_815],
    slopes: [0.0, -0.040_603_573, (-0.040_603_571_905_285_99 + 1.080_925_428_529_668) as f32, 1.0],
};

impl Steps {
    /// Those of a smooth activation of feed-forwards.
    pub const fn of(act: Act) -> Option<Self> {
        match act {
            Act::Silu => Some(RESILU2),
            Act::Gelu | Act::GeluTanh => Some(REGELU2),
            Act::Relu | Act::Tanh => None,
        }
    }

    /// Where `x` lies, from 0 to 3. A NaN is at 0, and shows in the value.
    #[inline(always)]
    pub(crate) fn level(&self, x: f32) -> u32 {
        u32::from(x > self.at[0]) + u32::from(x > self.at[1]) + u32::from(x > self.at[2])
    }

    /// The slope on a level.
    #[inline(always)]
    pub(crate) fn slope(&self, level: u32) -> f32 {
        let [far, below, above, beyond] = self.slopes;
        let low = if level == 0 { far } else { below };
        let high = if level == 2 { above } else { beyond };
        if level < 2 { low } else { high }
    }
}

/// Words that hold the levels of a row of `width` elements.
pub const fn words(width: usize) -> usize {
    width.div_ceil(A_WORD)
}

/// The levels of rows of `width` elements, as the bits of floats.
pub fn pack(isa: Isa, pool: &Pool, steps: Steps, width: usize, x: &[f32], levels: &mut [f32]) {
    assert!(x.len().is_multiple_of(width) && levels.len() == x.len() / width * words(width), "{width} {}", x.len());
    let rows = (PIECE / width).max(1);
    let levels = Rows::new(levels, rows * words(width));
    pool.run(levels.pieces(), &|task, _| {
        let (levels, _) = levels.piece(task);
        let first = task * rows * width;
        pack_rows(isa, steps, width, &x[first..first + levels.len() / words(width) * width], levels);
    });
}

/// `g` becomes `g` times the slope on each element's level.
pub fn backward(isa: Isa, pool: &Pool, steps: Steps, width: usize, levels: &[f32], g: &mut [f32]) {
    assert!(g.len().is_multiple_of(width) && levels.len() == g.len() / width * words(width), "{width} {}", g.len());
    let rows = (PIECE / width).max(1);
    let g = Rows::new(g, rows * width);
    pool.run(g.pieces(), &|task, _| {
        let (g, _) = g.piece(task);
        let first = task * rows * words(width);
        backward_rows(isa, steps, width, &levels[first..first + g.len() / width * words(width)], g);
    });
}

per_isa!(fn pack_rows(steps: Steps, width: usize, x: &[f32], levels: &mut [f32]) = pack_body);
per_isa!(fn backward_rows(steps: Steps, width: usize, levels: &[f32], g: &mut [f32]) = backward_body);

#[inline(always)]
fn pack_body(steps: Steps, width: usize, x: &[f32], levels: &mut [f32]) {
    for (x, levels) in x.chunks_exact(width).zip(levels.chunks_exact_mut(words(width))) {
        for (x, word) in x.chunks(A_WORD).zip(levels) {
            let levels = x.iter().enumerate().map(|(lane, &x)| steps.level(x) << (2 * lane));
            *word = f32::from_bits(levels.fold(0, |word, level| word | level));
        }
    }
}

#[inline(always)]
fn backward_body(steps: Steps, width: usize, levels: &[f32], g: &mut [f32]) {
    for (g, levels) in g.chunks_exact_mut(width).zip(levels.chunks_exact(words(width))) {
        for (g, word) in g.chunks_mut(A_WORD).zip(levels) {
            let word = word.to_bits();
            g.iter_mut().enumerate().for_each(|(lane, g)| *g *= steps.slope(word >> (2 * lane) & 3));
        }
    }
}
