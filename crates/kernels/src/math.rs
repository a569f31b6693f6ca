//! Elementary functions as short branch-free polynomials, so that one source gives the same bits on every instruction set,
//! alone or in a vector lane.

use crate::Element;

/// e to the power of `x`, within 2 units in the last place; 0 below -87.3, `f32::MAX`-ish above 88.7 (never infinite).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let low = x < LOWEST;
    let (p, n) = exp_parts(x.clamp(LOWEST, 88.7));
    // 2^n in two halves: n = 128 alone would overflow the exponent.
    let half = n >> 1;
    let scale = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    let y = p * scale(half) * scale(n - half);
    if low { 0.0 } else { y }
}

/// The same of an `x` that is not above zero, with fewer steps: nothing can overflow.
#[inline(always)]
pub fn exp_of_negative(x: f32) -> f32 {
    let low = x < LOWEST;
    let x = if low { LOWEST } else { x };
    let (p, n) = exp_parts(x);
    let y = p * f32::from_bits(((n + 127) << 23) as u32);
    if low { 0.0 } else { y }
}

/// What a number to be raised to must not fall below.
const LOWEST: f32 = -87.3;

/// `p` and `n` with `e^x = p 2^n`.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two pieces, so that `x - n ln 2` keeps its low bits.
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the float.
    const ROUND: f32 = 12_582_912.0;
    let shifted = x.mul_add(LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    let mut p = 1.0 / 720.0_f32;
    p = p.mul_add(r, 1.0 / 120.0);
    p = p.mul_add(r, 1.0 / 24.0);
    p = p.mul_add(r, 1.0 / 6.0);
    p = p.mul_add(r, 0.5);
    p = p.mul_add(r, 1.0);
    p = p.mul_add(r, 1.0);
    (p, (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// The hyperbolic tangent, `1 - 2 / (e^2x + 1)`; absolute error below 1e-6.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// The normal distribution at `x`: what lies below, `Φ(x) = (1 + erf(x / sqrt 2)) / 2`, and the density, `e^(-x²/2) / sqrt(2π)`. Absolute
/// errors below 2e-7; below zero `Φ` is within 1e-5 of its own size down to -12, since nothing is taken from 1 there.
///
/// The tail is `Φ(-|x|) = e^(-x²/2) p(t)` with `t = 1 / (1 + 0.3 |x|)` and a polynomial fitted to within 1.2e-7 of it.
#[inline(always)]
pub fn normal(x: f32) -> (f32, f32) {
    let bell = exp(-0.5 * x * x);
    let t = 1.0 / x.abs().mul_add(0.3, 1.0);
    let mut p = 0.036_089_364_f32;
    p = p.mul_add(t, -0.158_935_77);
    p = p.mul_add(t, 0.209_349_65);
    p = p.mul_add(t, -0.056_452_863);
    p = p.mul_add(t, 0.130_033_97);
    p = p.mul_add(t, 0.099_464_69);
    p = p.mul_add(t, 0.120_826_37);
    p = p.mul_add(t, 0.119_624_54);
    let tail = bell * (p * t);
    (if x < 0.0 { tail } else { 1.0 - tail }, bell * NORMAL_PEAK)
}

/// `1 / sqrt(2π)`.
pub const NORMAL_PEAK: f32 = 0.398_942_3;

/// Lanes of a sum: partial sums `j mod 16`, folded as a tree. The order of every sum over a row, on every processor.
pub const LANES: usize = 16;

/// The sum of `f` over the elements of equally long slices, in the fixed lane order.
#[inline(always)]
pub fn lane_sum<const N: usize>(slices: [&[f32]; N], f: impl Fn([f32; N]) -> f32) -> f32 {
    let len = slices.iter().map(|slice| slice.len()).min().unwrap_or(0);
    let mut lanes = [0.0_f32; LANES];
    let whole = len / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let piece: [&[f32; LANES]; N] = slices.map(|slice| slice[at..].first_chunk().expect("a whole piece"));
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f(piece.map(|piece| piece[lane]));
        }
    }
    for (at, sum) in (whole..len).zip(&mut lanes) {
        *sum += f(slices.map(|slice| slice[at]));
    }
    fold(lanes)
}

/// The sum of `a[j] b[j]` in the fixed lane order, fused multiply-adds inside a lane.
#[inline(always)]
pub fn dot<T: Element>(a: &[T], b: &[T]) -> f32 {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut lanes = [0.0_f32; LANES];
    let mut chunks_a = a.chunks_exact(LANES);
    let mut chunks_b = b.chunks_exact(LANES);
    for (a, b) in (&mut chunks_a).zip(&mut chunks_b) {
        for lane in 0..LANES {
            lanes[lane] = a[lane].get().mul_add(b[lane].get(), lanes[lane]);
        }
    }
    for (lane, (a, b)) in chunks_a.remainder().iter().zip(chunks_b.remainder()).enumerate() {
        lanes[lane] = a.get().mul_add(b.get(), lanes[lane]);
    }
    fold(lanes)
}

/// The sum of lanes, a power of two of them, as a tree.
#[inline(always)]
pub(crate) fn fold<const N: usize>(mut lanes: [f32; N]) -> f32 {
    let mut width = N / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_a_few_units_of_the_true_value() {
        for i in -87_000..88_700 {
            let x = i as f32 / 1000.0;
            let want = f64::from(x).exp();
            let error = (f64::from(exp(x)) - want).abs() / want;
            assert!(error < 3e-7, "exp({x}) is off by {error:e}");
        }
        assert_eq!(exp(-200.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(500.0).is_finite());
        for x in (-100_000..=0).map(|i| i as f32 / 1000.0).chain([f32::NEG_INFINITY, -0.0]) {
            assert_eq!(exp_of_negative(x).to_bits(), exp(x).to_bits(), "{x}");
        }
        assert!(exp_of_negative(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_is_within_a_millionth() {
        for i in -20_000..20_000 {
            let x = i as f32 / 1000.0;
            assert!((f64::from(tanh(x)) - f64::from(x).tanh()).abs() < 1e-6, "tanh({x})");
        }
    }

    #[test]
    fn the_normal_distribution_is_within_its_bounds() {
        for i in -12_000..12_000 {
            let x = i as f32 / 1000.0;
            let (below, density) = normal(x);
            let wide = f64::from(x);
            let want = 0.5 * (1.0 + crate::reference::erf(wide * std::f64::consts::FRAC_1_SQRT_2));
            assert!((f64::from(below) - want).abs() < 2e-7, "Φ({x}) is {below} instead of {want}");
            let want = (-0.5 * wide * wide).exp() / (2.0 * std::f64::consts::PI).sqrt();
            assert!((f64::from(density) - want).abs() < 2e-7, "the density at {x} is {density} instead of {want}");
        }
        // Values of the tail from tables.
        for (x, want) in
            [(-2.0, 2.275_013_2e-2), (-5.0, 2.866_515_7e-7), (-8.0, 6.220_960_6e-16), (-12.0, 1.776_482_1e-33)]
        {
            let below = normal(x).0;
            assert!((below / want - 1.0).abs() < 1e-5, "Φ({x}) is {below:e} instead of {want:e}");
        }
        assert_eq!((normal(40.0), normal(-40.0)), ((1.0, 0.0), (0.0, 0.0)));
    }

    #[test]
    fn a_nan_stays_a_nan() {
        assert!(exp(f32::NAN).is_nan());
        assert!(sigmoid(f32::NAN).is_nan());
        assert!(tanh(f32::NAN).is_nan());
        assert!(normal(f32::NAN).0.is_nan());
    }
}
