//! How large elements can be, by the numbers that their block has for all of them: what is known of quantised elements before any of them is looked
//! at. In runs of 32, the shortest block, and never less than the largest magnitude with the bits that dequantisation gives.

use super::{Source, Strip};
use crate::BlockType;
use crate::matmul::int16::Extent;

/// Elements of a run.
pub(crate) const RUN: usize = 32;
/// Runs of the longest block, and of a strip at most.
pub(crate) const MOST_RUNS: usize = 8;

/// How half floats are widened.
pub(super) trait Halves {
    /// The one at byte `at`.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn half(block: &[u8], at: usize) -> f32;
}

/// On any processor.
pub(super) struct Plain;

impl Halves for Plain {
    #[inline(always)]
    unsafe fn half(block: &[u8], at: usize) -> f32 {
        half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
    }
}

/// Whether blocks of a type bound their elements.
pub(super) fn bounded(src: Source) -> bool {
    !matches!(src, Source::Blocks(BlockType::F32 | BlockType::F16 | BlockType::BF16, _) | Source::Packed(..))
}

/// What each row may have.
///
/// # Safety
/// As [`Halves::half`].
#[inline(always)]
pub(super) unsafe fn rows<H: Halves>(src: Strip, to: &mut [Extent]) {
    let mut bounds = [0.0; MOST_RUNS];
    let bounds = &mut bounds[..src.len / RUN];
    of_known_type!(src, src => for (at, to) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { runs::<H, KNOWN>(src.row(at), bounds) };
        *to = bounds.iter().fold(Extent::NONE, |extent, &bound| extent.with_run(bound));
    });
}

/// Adds what each run of columns may have, in each of its columns.
///
/// # Safety
/// As [`Halves::half`].
#[inline(always)]
pub(super) unsafe fn add_columns<H: Halves>(src: Strip, to: &mut [Extent]) {
    let mut bounds = [0.0; MOST_RUNS];
    let bounds = &mut bounds[..src.len / RUN];
    of_known_type!(src, src => for at in 0..src.rows {
        // SAFETY: the caller's promise.
        unsafe { runs::<H, KNOWN>(src.row(at), bounds) };
        for (to, &bound) in to.iter_mut().zip(&*bounds) {
            *to = to.with(bound);
        }
    });
}

/// The larger; `b` where there is no number.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// The largest magnitude of `d q + m` for `q` from 0 to `last`.
#[inline(always)]
fn of_affine(d: f32, m: f32, last: f32) -> f32 {
    larger(m.abs(), (d * last + m).abs())
}

/// The largest magnitude that each run of a row can have, of blocks of the type `KNOWN`.
#[inline(always)]
unsafe fn runs<H: Halves, const KNOWN: u8>(src: Source, to: &mut [f32]) {
    let Source::Blocks(ty, src) = src else { return };
    macro_rules! each {
        ($ty:ident, $bytes:literal, $block:ident => $bound:expr) => {
            if const { KNOWN == BlockType::$ty as u8 } {
                for ($block, to) in src.as_chunks::<$bytes>().0.iter().zip(to) {
                    *to = $bound;
                }
            }
        };
    }
    macro_rules! groups {
        ($ty:ident, $bytes:literal, $last:literal) => {
            if const { KNOWN == BlockType::$ty as u8 } {
                for (block, to) in src.as_chunks::<$bytes>().0.iter().zip(to.as_chunks_mut::<8>().0) {
                    let (d, m) = (H::half(block, 0), H::half(block, 2));
                    let packed = &block[4..16];
                    for g in 0..4 {
                        let (a, b, c) = (packed[g], packed[g + 4], packed[g + 8]);
                        to[g] = of_affine(d * f32::from(a & 63), -(m * f32::from(b & 63)), $last);
                        let (scale, min) = ((c & 15) | ((a >> 2) & 0x30), (c >> 4) | ((b >> 2) & 0x30));
                        to[g + 4] = of_affine(d * f32::from(scale), -(m * f32::from(min)), $last);
                    }
                }
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            BlockType::Q8_0 => each!(Q8_0, 34, block => H::half(block, 0).abs() * 128.0),
            BlockType::Q4_0 => each!(Q4_0, 18, block => H::half(block, 0).abs() * 8.0),
            BlockType::Q4_1 => each!(Q4_1, 20, block => of_affine(H::half(block, 0), H::half(block, 2), 15.0)),
            BlockType::Q5_0 => each!(Q5_0, 22, block => H::half(block, 0).abs() * 16.0),
            BlockType::Q5_1 => each!(Q5_1, 24, block => of_affine(H::half(block, 0), H::half(block, 2), 31.0)),
            BlockType::Q4_K => groups!(Q4_K, 144, 15.0),
            BlockType::Q5_K => groups!(Q5_K, 176, 31.0),
            BlockType::Q6_K => {
                if const { KNOWN == BlockType::Q6_K as u8 } {
                    for (block, to) in src.as_chunks::<210>().0.iter().zip(to.as_chunks_mut::<8>().0) {
                        let d = H::half(block, 208);
                        for (scales, to) in block[192..208].as_chunks::<2>().0.iter().zip(to) {
                            let [a, b] = [d * f32::from(scales[0] as i8), d * f32::from(scales[1] as i8)];
                            *to = larger(a.abs(), b.abs()) * 32.0;
                        }
                    }
                }
            }
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::dequantize;

    #[test]
    fn no_element_is_above_what_its_block_says_and_some_come_near() {
        let mut state = 1_u32;
        for ty in BlockType::ALL {
            let mut nearest = 0.0_f32;
            for _ in 0..400 {
                let mut block: Vec<u8> = std::iter::repeat_with(|| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (state >> 24) as u8
                })
                .take(ty.block_bytes() * (256 / ty.block_len()))
                .collect();
                // Half floats around one, so that all are numbers.
                for half in block.chunks_exact_mut(ty.block_bytes()).flat_map(|block| match ty {
                    BlockType::Q6_K => vec![&mut block[209]],
                    BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 => vec![&mut block[1]],
                    BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K => {
                        let (first, second) = block.split_at_mut(2);
                        vec![&mut first[1], &mut second[1]]
                    }
                    _ => Vec::new(),
                }) {
                    *half = *half & 0x83 | 0x3c;
                }
                let src = Source::Blocks(ty, &block);
                assert_eq!(bounded(src), ty.block_len() > 1);
                if ty.block_len() == 1 {
                    continue;
                }
                let (mut bounds, mut elements) = ([f32::NAN; 8], [0.0; 256]);
                let row = Strip { first: src, apart: 0, rows: 1, len: elements.len() };
                // SAFETY: any processor has these instructions.
                of_known_type!(row, row => unsafe { runs::<Plain, KNOWN>(row.row(0), &mut bounds) });
                dequantize(ty, &block, &mut elements);
                for (&bound, run) in bounds.iter().zip(elements.chunks_exact(RUN)) {
                    let most = run.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    assert!(most <= bound, "{}: {most} above {bound}", ty.name());
                    nearest = nearest.max(most / bound);
                }
            }
            assert!(ty.block_len() == 1 || nearest > 0.99, "{} comes to {nearest} of its bound", ty.name());
        }
    }
}
