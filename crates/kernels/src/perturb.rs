//! Directions for methods that find a change by moving: random numbers as a function of a seed, added to a matrix on its way into memory that
//! a kernel reads next, or taken from it for good. No direction is ever stored, and the matrix itself is written by the step alone.
//!
//! Element `i` of a direction is a function of its stream and of `i`, so pieces and threads change no bit.

use crate::per_isa::per_isa;
use crate::philox::Philox;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Elements that are drawn at a time: 16 draws of four numbers.
const BLOCK: usize = 64;
/// Elements of a task; a multiple of [`BLOCK`].
const PIECE: usize = 4096;
/// The highest rank of a direction.
pub const MOST_RANK: usize = 4;

/// What the numbers of a direction are.
#[derive(Clone, Copy, Debug)]
pub enum Draw {
    /// Standard normal, each on its own.
    Normal(Philox),
    /// 1 or -1, with the same chance.
    Signs(Philox),
    /// `U Vᵀ`, with standard normal `U: [rows, rank]` and `V: [cols, rank]`.
    LowRank {
        /// Draws U.
        u: Philox,
        /// Draws V.
        v: Philox,
        /// At most [`MOST_RANK`].
        rank: usize,
    },
}

/// A direction in which a matrix moves.
#[derive(Clone, Copy, Debug)]
pub struct Direction {
    /// Its numbers.
    pub draw: Draw,
    /// Elements whose magnitude is above this stay where they are; below zero, all do.
    pub limit: f32,
}

/// `out = θ + by z`, for `θ: [_, cols]`.
pub fn moved(isa: Isa, pool: &Pool, theta: &[f32], cols: usize, along: Direction, by: f32, out: &mut [f32]) {
    assert!(theta.len() == out.len(), "{} {}", theta.len(), out.len());
    let out = Rows::new(out, PIECE);
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        moved_piece(isa, &theta[range.clone()], cols, range.start, along, by, out);
    });
}

/// The numbers of a direction from element `first` of a matrix of `cols` columns on.
pub fn numbers(isa: Isa, pool: &Pool, cols: usize, first: usize, of: Draw, out: &mut [f32]) {
    let out = Rows::new(out, PIECE);
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        numbers_piece(isa, cols, first + range.start, of, out);
    });
}

/// `out = θ + by z` with numbers that are there; elements whose magnitude is above `limit` stay.
pub fn moved_by(isa: Isa, pool: &Pool, theta: &[f32], z: &[f32], limit: f32, by: f32, out: &mut [f32]) {
    assert!(theta.len() == out.len() && z.len() == out.len(), "{} {} {}", theta.len(), z.len(), out.len());
    let out = Rows::new(out, PIECE);
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        moved_by_piece(isa, &theta[range.clone()], &z[range], limit, by, out);
    });
}

/// `θ ← keep θ - Σ c z` for the elements of a matrix from `first` on, where all directions have the same limit, and it is that of θ before.
pub fn step(isa: Isa, pool: &Pool, theta: &mut [f32], at: (usize, usize), keep: f32, along: &[(Direction, f32)]) {
    let (cols, first) = at;
    let theta = Rows::new(theta, PIECE);
    pool.run(theta.pieces(), &|task, _| {
        let (theta, range) = theta.piece(task);
        step_piece(isa, theta, cols, first + range.start, keep, along);
    });
}

/// The magnitude that `count` elements (at least one) do not exceed, and as few others as ties allow.
pub fn smallest(theta: &[f32], count: usize) -> f32 {
    // Magnitudes are in the order of their bits: halving finds the bits from the highest down.
    let (mut low, mut high) = (0_u32, f32::INFINITY.to_bits());
    while low < high {
        let middle = low + (high - low) / 2;
        let within = theta.iter().filter(|x| x.to_bits() & 0x7fff_ffff <= middle).count();
        if within >= count { high = middle } else { low = middle + 1 }
    }
    f32::from_bits(low)
}

per_isa!(fn moved_piece(theta: &[f32], cols: usize, first: usize, along: Direction, by: f32, out: &mut [f32]) = moved_body);
per_isa!(fn numbers_piece(cols: usize, first: usize, of: Draw, out: &mut [f32]) = numbers_body);
per_isa!(fn moved_by_piece(theta: &[f32], z: &[f32], limit: f32, by: f32, out: &mut [f32]) = moved_by_body);
per_isa!(fn step_piece(theta: &mut [f32], cols: usize, first: usize, keep: f32, along: &[(Direction, f32)]) = step_body);

#[inline(always)]
fn moved_body(theta: &[f32], cols: usize, first: usize, along: Direction, by: f32, out: &mut [f32]) {
    let mut z = [0.0; BLOCK];
    for (at, (theta, out)) in theta.chunks(BLOCK).zip(out.chunks_mut(BLOCK)).enumerate() {
        draw(along.draw, cols, first + at * BLOCK, &mut z[..theta.len()]);
        for ((&theta, out), &z) in theta.iter().zip(out).zip(&z) {
            *out = if theta.abs() > along.limit { theta } else { z.mul_add(by, theta) };
        }
    }
}

#[inline(always)]
fn numbers_body(cols: usize, first: usize, of: Draw, out: &mut [f32]) {
    for (at, out) in out.chunks_mut(BLOCK).enumerate() {
        draw(of, cols, first + at * BLOCK, out);
    }
}

#[inline(always)]
fn moved_by_body(theta: &[f32], z: &[f32], limit: f32, by: f32, out: &mut [f32]) {
    for ((&theta, &z), out) in theta.iter().zip(z).zip(out) {
        *out = if theta.abs() > limit { theta } else { z.mul_add(by, theta) };
    }
}

#[inline(always)]
fn step_body(theta: &mut [f32], cols: usize, first: usize, keep: f32, along: &[(Direction, f32)]) {
    let limit = along.first().map_or(f32::INFINITY, |(direction, _)| direction.limit);
    for (at, theta) in theta.chunks_mut(BLOCK).enumerate() {
        let (mut z, mut sum) = ([0.0; BLOCK], [0.0; BLOCK]);
        for &(direction, by) in along {
            draw(direction.draw, cols, first + at * BLOCK, &mut z[..theta.len()]);
            for (sum, z) in sum.iter_mut().zip(z) {
                *sum = z.mul_add(by, *sum);
            }
        }
        for (theta, &sum) in theta.iter_mut().zip(&sum) {
            let by = if theta.abs() > limit { 0.0 } else { sum };
            *theta = theta.mul_add(keep, -by);
        }
    }
}

/// The numbers of a direction from element `first` on, for a matrix of `cols` columns.
#[inline(always)]
fn draw(draw: Draw, cols: usize, first: usize, out: &mut [f32]) {
    match draw {
        Draw::Normal(numbers) => normals(numbers, first as u64, out),
        Draw::Signs(numbers) => signs(numbers, first as u64, out),
        Draw::LowRank { u, v, rank } => {
            let mut at = 0;
            while at < out.len() {
                // As far as the row goes.
                let (row, col) = ((first + at) / cols, (first + at) % cols);
                let len = (cols - col).min(out.len() - at);
                let (mut left, mut right) = ([0.0; MOST_RANK], [0.0; BLOCK * MOST_RANK]);
                normals(u, (row * rank) as u64, &mut left[..rank]);
                normals(v, (col * rank) as u64, &mut right[..len * rank]);
                for (out, right) in out[at..at + len].iter_mut().zip(right.chunks_exact(rank)) {
                    *out = right.iter().zip(&left).fold(0.0, |sum, (&right, &left)| left.mul_add(right, sum));
                }
                at += len;
            }
        }
    }
}

/// Standard normal numbers from number `first` of the stream on.
#[inline(always)]
fn normals(numbers: Philox, first: u64, out: &mut [f32]) {
    let mut at = 0;
    while at < out.len() {
        let index = first + at as u64;
        let skip = (index % 4) as usize;
        let four = numbers.lanes::<{ BLOCK / 4 }>(index / 4);
        let mut z = [0.0; BLOCK];
        for lane in 0..BLOCK / 4 {
            let (a, b) = pair(four[0][lane], four[1][lane]);
            let (c, d) = pair(four[2][lane], four[3][lane]);
            z[4 * lane..4 * lane + 4].copy_from_slice(&[a, b, c, d]);
        }
        let len = (BLOCK - skip).min(out.len() - at);
        out[at..at + len].copy_from_slice(&z[skip..skip + len]);
        at += len;
    }
}

/// 1 or -1, a bit each.
#[inline(always)]
fn signs(numbers: Philox, first: u64, out: &mut [f32]) {
    let mut four = [0; 4];
    for (at, out) in out.iter_mut().enumerate() {
        let index = first + at as u64;
        if at == 0 || index.is_multiple_of(128) {
            four = numbers.at(index / 128);
        }
        let bit = four[(index % 128 / 32) as usize] >> (index % 32) & 1;
        *out = 1.0 - 2.0 * bit as f32;
    }
}

/// Two standard normal numbers of two random words, after Box and Muller: `sqrt(-2 ln u)` times cosine and sine of `2π v`, where `u` lies in
/// (0, 1] and `v` in [0, 1), with 24 bits each.
#[inline(always)]
fn pair(u: u32, v: u32) -> (f32, f32) {
    const UNIT: f32 = 1.0 / (1 << 24) as f32;
    let far = (-2.0 * ln(((u >> 8) + 1) as f32 * UNIT)).sqrt();
    let (sin, cos) = turn((v >> 8) as f32 * UNIT);
    (far * cos, far * sin)
}

/// The natural logarithm of a normal number: the exponent, and `2 atanh(f / (2 + f))` of what is left, `1 + f` in `[sqrt 1/2, sqrt 2)`.
#[inline(always)]
fn ln(x: f32) -> f32 {
    const ROOT_HALF: i32 = 0x3f35_04f3;
    let exponent = (x.to_bits() as i32 - ROOT_HALF) >> 23;
    let f = f32::from_bits((x.to_bits() as i32 - (exponent << 23)) as u32) - 1.0;
    let s = f / (2.0 + f);
    let square = s * s;
    let mut p = 1.0 / 9.0_f32;
    p = p.mul_add(square, 1.0 / 7.0);
    p = p.mul_add(square, 1.0 / 5.0);
    p = p.mul_add(square, 1.0 / 3.0);
    p = p.mul_add(square, 1.0);
    (exponent as f32).mul_add(std::f32::consts::LN_2, 2.0 * s * p)
}

/// Sine and cosine of `2π t` for `t` in `[0, 1)`: polynomials around the nearest quarter turn.
#[inline(always)]
fn turn(t: f32) -> (f32, f32) {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the float.
    const ROUND: f32 = 12_582_912.0;
    let shifted = 4.0_f32.mul_add(t, ROUND);
    let quarter = shifted.to_bits();
    let y = std::f32::consts::TAU * (shifted - ROUND).mul_add(-0.25, t);
    let square = y * y;
    let mut sin = 1.0 / 362_880.0_f32;
    sin = sin.mul_add(square, -1.0 / 5040.0);
    sin = sin.mul_add(square, 1.0 / 120.0);
    sin = sin.mul_add(square, -1.0 / 6.0);
    sin = (sin * square).mul_add(y, y);
    let mut cos = 1.0 / 40_320.0_f32;
    cos = cos.mul_add(square, -1.0 / 720.0);
    cos = cos.mul_add(square, 1.0 / 24.0);
    cos = cos.mul_add(square, -0.5);
    cos = cos.mul_add(square, 1.0);
    let (a, b) = if quarter & 1 == 1 { (cos, sin) } else { (sin, cos) };
    let sin = if quarter & 2 == 2 { -a } else { a };
    let cos = if quarter.wrapping_add(1) & 2 == 2 { -b } else { b };
    (sin, cos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(draw: Draw, len: usize, cols: usize) -> Vec<f32> {
        let (zero, mut out) = (vec![0.0; len], vec![0.0; len]);
        let along = Direction { draw, limit: f32::INFINITY };
        moved(Isa::Scalar, &Pool::new(1).unwrap(), &zero, cols, along, 1.0, &mut out);
        out
    }

    #[test]
    fn normal_numbers_are_box_and_mullers_of_their_words() {
        let numbers = Philox::new(7, 3);
        for (at, four) in of(Draw::Normal(numbers), 4000, 4000).chunks_exact(4).enumerate() {
            let words = numbers.at(at as u64).map(|word| f64::from(word >> 8));
            for pair in [0, 2] {
                let far = (-2.0 * ((words[pair] + 1.0) / f64::from(1 << 24)).ln()).sqrt();
                let angle = std::f64::consts::TAU * words[pair + 1] / f64::from(1 << 24);
                let want = [far * angle.cos(), far * angle.sin()];
                let off = (0..2).map(|i| (f64::from(four[pair + i]) - want[i]).abs()).fold(0.0, f64::max);
                assert!(off < 2e-6, "{at}: {four:?} instead of {want:?}");
            }
        }
    }

    #[test]
    fn moments_are_those_of_their_laws() {
        let mean = |x: &[f32], f: fn(f64) -> f64| x.iter().map(|&x| f(f64::from(x))).sum::<f64>() / x.len() as f64;
        let [u, v] = [1, 2].map(|stream| Philox::new(1, stream));
        for draw in [Draw::Normal(u), Draw::Signs(u), Draw::LowRank { u, v, rank: 2 }] {
            let (z, spread) = (of(draw, 200_000, 400), if matches!(draw, Draw::LowRank { .. }) { 2.0 } else { 1.0 });
            assert!(mean(&z, |x| x).abs() < 0.03, "{draw:?}");
            assert!((mean(&z, |x| x * x) / spread - 1.0).abs() < 0.1, "{draw:?}: {}", mean(&z, |x| x * x));
        }
        assert!((mean(&of(Draw::Normal(u), 200_000, 1), |x| x.powi(4)) - 3.0).abs() < 0.1);
        assert!(of(Draw::Signs(u), 1000, 1).iter().all(|x| x.abs() == 1.0));
    }

    #[test]
    fn low_rank_directions_are_outer_products() {
        let [u, v] = [5, 6].map(|stream| Philox::new(9, stream));
        let (rows, cols) = (3, 70);
        let (left, right) = (of(Draw::Normal(u), rows * 2, 1), of(Draw::Normal(v), cols * 2, 1));
        let z = of(Draw::LowRank { u, v, rank: 2 }, rows * cols, cols);
        for (i, &z) in z.iter().enumerate() {
            let (row, col) = (i / cols, i % cols);
            let want = left[2 * row] * right[2 * col] + left[2 * row + 1] * right[2 * col + 1];
            assert!((z - want).abs() < 1e-5, "{i}: {z} instead of {want}");
        }
    }

    #[test]
    fn threads_and_instruction_sets_change_no_bit() {
        let theta: Vec<f32> = (0..9000).map(|i| (i as f32 * 0.37).sin()).collect();
        let [u, v] = [1, 2].map(|stream| Philox::new(3, stream));
        for draw in [Draw::Normal(u), Draw::Signs(u), Draw::LowRank { u, v, rank: 2 }] {
            let along = Direction { draw, limit: 0.5 };
            let run = |isa, threads| {
                let (pool, mut out, mut to) = (Pool::new(threads).unwrap(), vec![0.0; 9000], theta.clone());
                moved(isa, &pool, &theta, 300, along, 0.01, &mut out);
                step(isa, &pool, &mut to, (300, 0), 0.99, &[(along, 0.3), (along, -0.1)]);
                // The same in two parts, and from numbers that were drawn before.
                let mut parts = theta.clone();
                let (head, tail) = parts.split_at_mut(1200);
                step(isa, &pool, head, (300, 0), 0.99, &[(along, 0.3), (along, -0.1)]);
                step(isa, &pool, tail, (300, 1200), 0.99, &[(along, 0.3), (along, -0.1)]);
                let (mut z, mut again) = (vec![0.0; 9000], vec![0.0; 9000]);
                numbers(isa, &pool, 300, 0, draw, &mut z);
                moved_by(isa, &pool, &theta, &z, 0.5, 0.01, &mut again);
                assert!(to == parts && out == again, "{draw:?}");
                out.iter().chain(&to).map(|x| x.to_bits()).collect::<Vec<u32>>()
            };
            let scalar = run(Isa::Scalar, 1);
            assert!(scalar == run(Isa::detect().unwrap(), 1) && scalar == run(Isa::detect().unwrap(), 3), "{draw:?}");
        }
    }

    #[test]
    fn elements_above_the_limit_stay() {
        let theta = [0.1, -0.6, 0.5, -0.2, 0.9];
        assert_eq!((smallest(&theta, 1), smallest(&theta, 3), smallest(&theta, 5)), (0.1, 0.5, 0.9));
        assert_eq!(smallest(&[0.0; 4], 1), 0.0);
        let along = Direction { draw: Draw::Signs(Philox::new(1, 1)), limit: smallest(&theta, 3) };
        let mut out = theta;
        step(Isa::Scalar, &Pool::new(1).unwrap(), &mut out, (5, 0), 1.0, &[(along, 0.25)]);
        for (before, after) in theta.iter().zip(out) {
            assert_eq!((before - after).abs() > 0.2, before.abs() <= 0.5, "{before} {after}");
        }
    }
}
