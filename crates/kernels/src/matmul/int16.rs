//! Operands as 16-bit integers: a row of the left operand, or an output's side of the right one, in groups of 256 elements of the sum, each
//! with a scale of its own.
//!
//! A scale makes the integers' Euclidean norm at most 32,700. Of quantised weights it need not be known for that what the elements are: a block's own numbers say
//! how large they can be, and then 65,000 is the most that their norm can be and 32,700 the most that one of them can. One operand at least is measured: values are.
//! So (Cauchy and Schwarz) no sum of products of two groups passes 2^31, nor does any part of it: sums of a group are exact in 32 bits, in whatever order. What
//! is lost is the rounding of each element to a step of 1/32,700 of its group's norm or thereabouts, some 1.4e-4 of the group's norm in all, a tenth of what bf16
//! loses. A group's sum becomes a float, is multiplied with both scales and added: one chain of fused multiply-adds over ascending groups, which begin at multiples
//! of 256 of the sum. So bits depend on no instruction set, no tiling and no piece that is a multiple of 256.

use crate::dequant::RUN;
use crate::math::fold;

/// Elements of the sum that share a scale.
pub(super) const GROUP: usize = 256;
/// The largest of a group's integers: what 16 bits hold, less what rounding may add.
const MOST: f32 = 32_700.0;
/// Their norm. With one operand's norm no more than [`MOST`] and the other's no more than this, a sum of products stays below 2^31.
const NORM: f32 = 65_000.0;
/// A group whose sum of squares is below (whose norm is below 3e-19) counts as zeros: squares of smaller numbers are no normal floats.
const LEAST: f32 = 1e-37;
/// Adding 1.5 * 2^23 rounds a small float to an integer, ties to even, and leaves it in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// Lanes of [`squares`].
const LANES: usize = 64;

/// How large a group is, as far as it is known before its integers are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extent {
    /// The sum of the squares, or more.
    squares: f32,
    /// The largest magnitude, or more.
    most: f32,
}

impl Extent {
    pub const NONE: Extent = Extent { squares: 0.0, most: 0.0 };

    /// Of elements with this sum of squares.
    #[inline(always)]
    pub fn measured(squares: f32) -> Self {
        Self { squares, most: squares.sqrt() }
    }

    /// With another element, no larger than `bound`.
    #[inline(always)]
    pub fn with(self, bound: f32) -> Self {
        let most = if self.most > bound { self.most } else { bound };
        Self { squares: bound.mul_add(bound, self.squares), most }
    }

    /// With another 32 of them.
    #[inline(always)]
    pub fn with_run(self, bound: f32) -> Self {
        let squares = (RUN as f32 * bound).mul_add(bound, self.squares);
        Self { squares, ..self.with(bound) }
    }

    /// What an integer of such a group stands for; no number where there is none in the group.
    #[inline(always)]
    pub fn scale(self) -> f32 {
        if self.squares < LEAST {
            return 0.0;
        }
        let (norm, most) = (self.squares.sqrt() / NORM, self.most / MOST);
        if most > norm { most } else { norm }
    }
}

/// What elements are multiplied with to become integers.
#[inline(always)]
pub(super) fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// The nearest integer to `x` times the `inverse` of its scale.
#[inline(always)]
pub(super) fn integer(x: f32, inverse: f32) -> i16 {
    x.mul_add(inverse, ROUND).to_bits() as i16
}

/// The sum of squares of a group that lies side by side: in 64 lanes, folded as a tree.
#[inline(always)]
pub(crate) fn squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for x in whole {
        for (lane, &x) in lanes.iter_mut().zip(x) {
            *lane = x.mul_add(x, *lane);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = x.mul_add(x, *lane);
    }
    fold(lanes)
}

/// The integers of a group that lies side by side, and its scale.
#[inline(always)]
pub(super) fn quantize(x: &[f32], to: &mut [i16]) -> f32 {
    let scale = Extent::measured(squares(x)).scale();
    let inverse = inverse(scale);
    for (to, &x) in to.iter_mut().zip(x) {
        *to = integer(x, inverse);
    }
    scale
}

/// The sum of a group's products, for the reference.
pub(super) fn dot(a: &[i16], b: &[i16]) -> i32 {
    a.iter().zip(b).fold(0, |sum, (&a, &b)| sum.wrapping_add(i32::from(a).wrapping_mul(i32::from(b))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_a_group_are_within_half_a_step_and_their_norm_within_bounds() {
        let wave = |i: usize| ((i * 37 % 101) as f32 - 50.0) * 0.13;
        for (len, peak, unit) in [(256, 0.0, 1.0), (256, 1e4, 1.0), (7, 0.0, 1e-12), (64, -300.0, 1e9), (1, 1.0, 1.0)] {
            let mut x: Vec<f32> = (0..len).map(|i| wave(i) * unit).collect();
            x[len / 2] += peak * unit;
            let mut got = vec![0; len];
            let scale = quantize(&x, &mut got);
            for (&x, &q) in x.iter().zip(&got) {
                let error = (f64::from(scale) * f64::from(q) - f64::from(x)).abs();
                assert!(error <= 0.5001 * f64::from(scale), "{x} became {q} steps of {scale}");
            }
            let norm = got.iter().map(|&q| f64::from(q).powi(2)).sum::<f64>().sqrt();
            assert!((32_600.0..32_768.0).contains(&norm), "a norm of {norm}");
        }
    }

    #[test]
    fn nothing_and_what_is_no_number_have_scales_that_say_so() {
        let mut to = [1; 4];
        assert_eq!(quantize(&[0.0, -0.0, 1e-25, -1e-30], &mut to), 0.0);
        assert_eq!(to, [0; 4]);
        assert!(!quantize(&[1.0, f32::NAN, 0.0, 2.0], &mut to).is_finite());
        assert!(!quantize(&[1.0, f32::INFINITY, 0.0, 2.0], &mut to).is_finite());
    }
}
