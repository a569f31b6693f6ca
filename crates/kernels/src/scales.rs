//! The scales of quantised blocks as numbers that can be trained, while the integers under them stay: where each type has its scale, what a block's elements are multiples of, and a
//! step along random numbers, rounded to the half float that a scale is. Types without a scale are refused with `None`.

use half::f16;

use crate::philox::Philox;
use crate::rows::Rows;
use crate::{BlockType, Pool};

/// Blocks that one task steps.
const PIECE: usize = 1024;

/// Where a block has its scale and, where it has one, what is added or taken away regardless of it; both are half floats. The scale of a k-quant is the
/// one above its groups'.
pub const fn places(ty: BlockType) -> Option<(usize, Option<usize>)> {
    match ty {
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => Some((0, None)),
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => Some((0, Some(2))),
        BlockType::Q6_K => Some((208, None)),
        BlockType::F32 | BlockType::F16 | BlockType::BF16 => None,
    }
}

/// The blocks of `from` with a scale of one and nothing added: what their elements change by when a scale does.
///
/// # Panics
/// When the type has no scale, or `to` another length.
pub fn unit(ty: BlockType, from: &[u8], to: &mut [u8]) {
    let (at, added) = places(ty).expect("a type with scales");
    to.copy_from_slice(from);
    for block in to.chunks_exact_mut(ty.block_bytes()) {
        block[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        if let Some(added) = added {
            block[added..added + 2].fill(0);
        }
    }
}

/// `s ← keep s - by z` for the scale of every block, which does not change its sign, rounded to one of its two neighbours by `rounding`; `first` is the number of
/// the first block, and `z` has a number for each.
///
/// # Panics
/// When the type has no scale, or there are not as many numbers as blocks.
#[allow(clippy::too_many_arguments)]
pub fn step(
    pool: &Pool,
    ty: BlockType,
    blocks: &mut [u8],
    first: u64,
    (keep, by): (f32, f32),
    z: &[f32],
    rounding: Philox,
) {
    let ((at, _), bytes) = (places(ty).expect("a type with scales"), ty.block_bytes());
    assert_eq!(blocks.len(), z.len() * bytes, "bytes of {} blocks", z.len());
    let blocks = Rows::new(blocks, PIECE * bytes);
    pool.run(blocks.pieces(), &|task, _| {
        let (blocks, range) = blocks.piece(task);
        let from = range.start / bytes;
        for (number, (block, z)) in (from..).zip(blocks.chunks_exact_mut(bytes).zip(&z[from..])) {
            let before = f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
            let moved = before.mul_add(keep, -(by * z));
            let moved = if before >= 0.0 { moved.max(0.0) } else { moved.min(0.0) };
            let place = first + number as u64;
            let random = rounding.at(place / 4)[(place % 4) as usize] >> 16;
            block[at..at + 2].copy_from_slice(&rounded(moved, random).to_le_bytes());
        }
    });
}

/// One of the two half floats around `x`, the nearer one more often: `random` has 16 bits.
fn rounded(x: f32, random: u32) -> f16 {
    let x = x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
    let near = f16::from_f32(x);
    let value = near.to_f32();
    if value == x {
        return near;
    }
    // Half floats of one sign are in the order of their bits.
    let below = near.to_bits() - u16::from(value.abs() > x.abs());
    let [low, high] = [below, below + 1].map(|bits| f16::from_bits(bits).to_f32().abs());
    let share = (x.abs() - low) / (high - low);
    f16::from_bits(below + u16::from((random as f32) < share * 65536.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::blocks::{dequantize, quantize};

    fn blocks(ty: BlockType) -> (Vec<u8>, usize) {
        let len = 512;
        let x: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin() - 0.3).collect();
        let mut bytes = vec![0; ty.row_bytes(len).unwrap()];
        quantize(Isa::Scalar, ty, &x, &mut bytes);
        (bytes, len)
    }

    #[test]
    fn elements_change_by_their_multiples_when_a_scale_does() {
        for ty in BlockType::ALL.into_iter().filter(|ty| ty.block_len() > 1) {
            let (mut bytes, len) = blocks(ty);
            let (mut before, mut after, mut ones) = (vec![0.0; len], vec![0.0; len], vec![0.0; len]);
            let mut one = bytes.clone();
            unit(ty, &bytes, &mut one);
            dequantize(ty, &bytes, &mut before);
            dequantize(ty, &one, &mut ones);
            let scales = |bytes: &[u8]| -> Vec<f32> {
                let at = places(ty).unwrap().0;
                let scale = |block: &[u8]| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
                bytes.chunks_exact(ty.block_bytes()).map(scale).collect()
            };
            let old = scales(&bytes);
            let z = vec![0.25; old.len()];
            step(&Pool::new(2).unwrap(), ty, &mut bytes, 0, (1.0, 0.01), &z, Philox::new(1, 1));
            let new = scales(&bytes);
            assert!(old.iter().zip(&new).any(|(old, new)| old != new), "{ty:?}: nothing moved");
            dequantize(ty, &bytes, &mut after);
            for i in 0..len {
                let block = i / ty.block_len();
                let want = before[i] + (new[block] - old[block]) * ones[i];
                assert!((after[i] - want).abs() < 1e-5, "{ty:?} {i}: {} and {want}", after[i]);
            }
        }
    }

    #[test]
    fn scales_keep_their_sign_and_small_steps_are_right_on_average() {
        let (mut bytes, _) = blocks(BlockType::Q8_0);
        let z = vec![1e6; bytes.len() / 34];
        step(&Pool::new(1).unwrap(), BlockType::Q8_0, &mut bytes, 0, (1.0, 1.0), &z, Philox::new(1, 1));
        assert!(bytes.chunks_exact(34).all(|block| block[..2] == [0, 0]));
        let (x, numbers) = (0.010_001_5_f32, Philox::new(3, 4));
        let of = |i: u64| rounded(x, numbers.at(i)[0] >> 16).to_f32();
        let mean = (0..20_000).map(|i| f64::from(of(i))).sum::<f64>() / 20_000.0;
        assert!((mean - f64::from(x)).abs() < 2e-7, "{mean}");
        assert!((0..100).all(|i| rounded(-x, numbers.at(i)[0] >> 16).to_f32() == -of(i)));
    }
}
