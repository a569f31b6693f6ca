//! Stochastic rounding to bf16: a number goes to one of its two neighbours, the nearer one more often, so that it stays what it was on average
//! and steps smaller than bf16's own are not lost. Which one is a function of a stream of random numbers and the element's place alone.

use crate::per_isa::per_isa;
use crate::philox::Philox;
use crate::rows::Rows;
use crate::{Isa, Pool};

/// Elements that one task rounds.
const PIECE: usize = 16384;
/// Elements whose random bits are those of one position: two to each of its four words.
const SHARE: usize = 8;
/// Positions that are drawn together.
const WIDE: usize = 16;

/// Rounds `x` into `out`, as little-endian bytes; `first` is the place of its first element in the stream.
///
/// # Panics
/// When `out` has not two bytes for every number.
pub fn to_bf16(isa: Isa, pool: &Pool, numbers: Philox, first: u64, x: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), 2 * x.len(), "bytes of {} numbers in bf16", x.len());
    let out = Rows::new(out, 2 * PIECE);
    pool.run(out.pieces(), &|task, _| {
        let (out, range) = out.piece(task);
        let from = range.start / 2;
        piece(isa, numbers, first + from as u64, &x[from..range.end / 2], out);
    });
}

per_isa!(fn piece(numbers: Philox, first: u64, x: &[f32], out: &mut [u8]) = body);

#[inline(always)]
fn body(numbers: Philox, first: u64, x: &[f32], out: &mut [u8]) {
    let (out, _) = out.as_chunks_mut::<2>();
    let uneven = ((SHARE as u64 - first % SHARE as u64) % SHARE as u64) as usize;
    let (head, rest) = x.split_at(uneven.min(x.len()));
    let (head_out, rest_out) = out.split_at_mut(head.len());
    one_by_one(numbers, first, head, head_out);
    let start = first + head.len() as u64;
    let (groups, tail) = rest.as_chunks::<{ SHARE * WIDE }>();
    let (groups_out, tail_out) = rest_out.as_chunks_mut::<{ SHARE * WIDE }>();
    for (at, (x, out)) in groups.iter().zip(groups_out).enumerate() {
        let words = numbers.lanes::<WIDE>(start / SHARE as u64 + (at * WIDE) as u64);
        for i in 0..SHARE * WIDE {
            let word = words[i % SHARE / 2][i / SHARE];
            out[i] = rounded(x[i], word >> (16 * (i % 2)) & 0xffff);
        }
    }
    one_by_one(numbers, start + (groups.len() * SHARE * WIDE) as u64, tail, tail_out);
}

#[inline(always)]
fn one_by_one(numbers: Philox, first: u64, x: &[f32], out: &mut [[u8; 2]]) {
    for (at, (x, out)) in (first..).zip(x.iter().zip(out)) {
        let word = numbers.at(at / SHARE as u64)[(at % SHARE as u64 / 2) as usize];
        *out = rounded(*x, word >> (16 * (at % 2)) & 0xffff);
    }
}

/// The lower half of the bits is the share by which `x` is above its lower neighbour: adding 16 random bits carries just as often. What would
/// carry into infinity stays below.
#[inline(always)]
fn rounded(x: f32, random: u32) -> [u8; 2] {
    let bits = x.to_bits();
    let up = bits.wrapping_add(random);
    let chosen = if up & 0x7f80_0000 == 0x7f80_0000 { bits } else { up };
    ((chosen >> 16) as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(bytes: &[u8]) -> Vec<f32> {
        let word = |pair: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*pair)) << 16);
        bytes.as_chunks().0.iter().map(word).collect()
    }

    fn round(isa: Isa, threads: usize, numbers: Philox, first: u64, x: &[f32]) -> Vec<f32> {
        let mut out = vec![0; 2 * x.len()];
        to_bf16(isa, &Pool::new(threads).unwrap(), numbers, first, x, &mut out);
        back(&out)
    }

    #[test]
    fn numbers_go_to_their_neighbours_and_stay_what_they_are_on_average() {
        let numbers = Philox::new(7, 9);
        for x in [1.0 + 1.0 / 512.0, -3.3, 1e-30, 0.1] {
            let found = round(Isa::detect().unwrap(), 2, numbers, 0, &vec![x; 40_000]);
            let lower = f32::from_bits(x.to_bits() & 0xffff_0000);
            let upper = f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000);
            assert!(found.iter().all(|&y| y == lower || y == upper), "{x}");
            let mean = found.iter().map(|&y| f64::from(y)).sum::<f64>() / found.len() as f64;
            // Four standard deviations of the mean of as many fair choices.
            let off = 4.0 * 0.5 * f64::from(upper - lower).abs() / (found.len() as f64).sqrt();
            assert!((mean - f64::from(x)).abs() < off, "{x}: {mean}");
        }
    }

    #[test]
    fn bits_depend_on_the_place_alone() {
        let numbers = Philox::new(1, 2);
        let x: Vec<f32> = (0..70_001).map(|i| (i as f32).sin()).collect();
        let whole = round(Isa::Scalar, 1, numbers, 3, &x);
        assert_eq!(whole, round(Isa::detect().unwrap(), 3, numbers, 3, &x));
        for cut in [1, 5, 136, 20_000] {
            let mut parts = round(Isa::detect().unwrap(), 1, numbers, 3, &x[..cut]);
            parts.extend(round(Isa::detect().unwrap(), 2, numbers, 3 + cut as u64, &x[cut..]));
            assert_eq!(whole, parts, "cut at {cut}");
        }
    }

    #[test]
    fn what_bf16_holds_stays_and_nothing_finite_becomes_infinite() {
        let exact: Vec<f32> = [0.0_f32, -0.0, 1.0, -2.5, f32::from_bits(0x7f7f_0000)].repeat(100);
        assert_eq!(round(Isa::Scalar, 1, Philox::new(0, 0), 0, &exact), exact);
        let largest = round(Isa::Scalar, 1, Philox::new(0, 0), 0, &[f32::MAX; 500]);
        assert!(largest.iter().all(|x| x.is_finite()));
        let bad = round(Isa::Scalar, 1, Philox::new(0, 0), 0, &[f32::INFINITY, f32::NAN]);
        assert!(bad[0] == f32::INFINITY && bad[1].is_nan());
    }
}
