//! Q4_K, Q5_K and Q6_K: blocks of 256 elements in groups with small scales of their own. Two fits make a block. First every group alone: several
//! step widths around that of its range, each rounded, and the scale (and minimum) of least squares for those integers; the one of the least
//! error is kept. Then the block's half floats follow from the largest of them, and each group tries the integers beside its rounded
//! scale and minimum, measured as a reader will see them. Errors are plain sums of squares, in lanes, so that every instruction set agrees.

use half::f16;

use super::{extreme, inverse};

/// How the tried widths of a step differ from the one of the range: by tenths of a level, up to one level.
const TRIES: i32 = 10;

/// Rounds to the nearest integer, ties to even, where that is below 2^22.
#[inline(always)]
fn nearest(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: the sum has no bits after the point.
    (x + MAGIC) - MAGIC
}

/// What a reader will see of a half float.
#[inline(always)]
fn rounded(x: f32) -> f32 {
    f16::from_f32(x).to_f32()
}

/// The sum of `N` numbers, a multiple of 16, by 16 lanes and a tree.
#[inline(always)]
fn sum<const N: usize>(of: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0_f32; 16];
    for at in (0..N).step_by(16) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += of(at + lane);
        }
    }
    let mut width = 8;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Scale and minimum of `y = scale q - minimum`, `0 <= q <= most`, `minimum >= 0`, for a group of 32.
#[inline(always)]
fn fit_affine(x: &[f32; 32], most: f32) -> (f32, f32) {
    let (low, high) = x.iter().fold((0.0_f32, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    if high <= low {
        return (0.0, -low);
    }
    let n = x.len() as f32;
    let sum_x = sum::<32>(|i| x[i]);
    let (mut best, mut least) = ((0.0, -low), f32::MAX);
    for shift in -TRIES..=TRIES {
        let inverse = (most + 0.1 * shift as f32) / (high - low);
        let q: [f32; 32] = std::array::from_fn(|i| nearest((inverse * (x[i] - low)).clamp(0.0, most)));
        let (sum_q, sum_qq, sum_xq) = (sum::<32>(|i| q[i]), sum::<32>(|i| q[i] * q[i]), sum::<32>(|i| x[i] * q[i]));
        let determinant = n * sum_qq - sum_q * sum_q;
        let mut scale = (n * sum_xq - sum_x * sum_q) / determinant;
        let mut minimum = (sum_q * sum_xq - sum_qq * sum_x) / determinant;
        // Of equal numbers, all above zero, there is no line to fit but one through zero.
        if determinant <= 0.0 || minimum < 0.0 {
            (scale, minimum) = (sum_xq / sum_qq, 0.0);
        }
        let error = sum::<32>(|i| {
            let off = scale * q[i] - minimum - x[i];
            off * off
        });
        if error < least {
            (best, least) = ((scale, minimum), error);
        }
    }
    best
}

/// The integers of a group under what a reader will see, and their error.
#[inline(always)]
fn round_affine(x: &[f32; 32], scale: f32, minimum: f32, most: f32) -> ([f32; 32], f32) {
    let inverse = inverse(scale);
    let q: [f32; 32] = std::array::from_fn(|i| nearest(((x[i] + minimum) * inverse).clamp(0.0, most)));
    let error = sum::<32>(|i| {
        let off = scale * q[i] - minimum - x[i];
        off * off
    });
    (q, error)
}

/// A block of Q4_K or Q5_K before its bits are packed.
struct Affine {
    d: f32,
    m: f32,
    /// Six bits each, of eight groups.
    scales: [u8; 8],
    minimums: [u8; 8],
    q: [[u8; 32]; 8],
}

#[inline(always)]
fn affine(x: &[f32; 256], most: f32) -> Affine {
    let groups = x.as_chunks::<32>().0;
    let fits: [(f32, f32); 8] = std::array::from_fn(|g| fit_affine(&groups[g], most));
    let (widest, lowest) =
        fits.iter().fold((0.0_f32, 0.0_f32), |(scale, minimum), fit| (scale.max(fit.0), minimum.max(fit.1)));
    let (d, m) = (rounded(widest / 63.0), rounded(lowest / 63.0));
    let mut block = Affine { d, m, scales: [0; 8], minimums: [0; 8], q: [[0; 32]; 8] };
    for (g, x) in groups.iter().enumerate() {
        let near = |x: f32, d: f32| nearest((x * inverse(d)).clamp(0.0, 63.0));
        let (scale, minimum) = (near(fits[g].0, d), near(fits[g].1, m));
        let mut least = f32::MAX;
        for (to_scale, to_minimum) in (-1..=1).flat_map(|scale| (-1..=1).map(move |minimum| (scale, minimum))) {
            let scale = (scale + to_scale as f32).clamp(0.0, 63.0);
            let minimum = (minimum + to_minimum as f32).clamp(0.0, 63.0);
            let (q, error) = round_affine(x, d * scale, m * minimum, most);
            if error < least {
                least = error;
                (block.scales[g], block.minimums[g]) = (scale as u8, minimum as u8);
                block.q[g] = q.map(|q| q as u8);
            }
        }
    }
    block
}

impl Affine {
    /// `d: f16, m: f16, packed: [u8; 12]`; see [`crate::blocks::dequantize`] for the packing.
    #[inline(always)]
    fn put_scales(&self, to: &mut [u8]) {
        super::put_half(to, 0, self.d);
        super::put_half(to, 2, self.m);
        let packed = &mut to[4..16];
        for g in 0..4 {
            packed[g] = self.scales[g] | self.scales[g + 4] >> 4 << 6;
            packed[g + 4] = self.minimums[g] | self.minimums[g + 4] >> 4 << 6;
            packed[g + 8] = self.scales[g + 4] & 15 | self.minimums[g + 4] << 4;
        }
    }

    /// 32 bytes hold the low nibbles of group `2c` and, above them, those of `2c + 1`.
    #[inline(always)]
    fn put_nibbles(&self, to: &mut [u8]) {
        for (pair, bytes) in self.q.as_chunks::<2>().0.iter().zip(to.as_chunks_mut::<32>().0) {
            for (i, byte) in bytes.iter_mut().enumerate() {
                *byte = pair[0][i] & 15 | pair[1][i] << 4;
            }
        }
    }
}

#[inline(always)]
pub(super) fn q4_k(x: &[f32; 256], block: &mut [u8; 144]) {
    let fitted = affine(x, 15.0);
    fitted.put_scales(block);
    fitted.put_nibbles(&mut block[16..]);
}

#[inline(always)]
pub(super) fn q5_k(x: &[f32; 256], block: &mut [u8; 176]) {
    let fitted = affine(x, 31.0);
    fitted.put_scales(block);
    for (i, high) in block[16..48].iter_mut().enumerate() {
        *high = fitted.q.iter().enumerate().fold(0, |bits, (g, q)| bits | (q[i] >> 4) << g);
    }
    fitted.put_nibbles(&mut block[48..]);
}

/// The scale of `y = scale q`, `-32 <= q < 32`, for a group of 16: the extreme lies at -32, or near it.
#[inline(always)]
fn fit_symmetric(x: &[f32; 16]) -> f32 {
    let extreme = extreme(x);
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut most) = (0.0, 0.0);
    for shift in -TRIES..=TRIES {
        let inverse = -(32.0 + 0.1 * shift as f32) / extreme;
        let q: [f32; 16] = std::array::from_fn(|i| nearest((x[i] * inverse).clamp(-32.0, 31.0)));
        let (sum_xq, sum_qq) = (sum::<16>(|i| x[i] * q[i]), sum::<16>(|i| q[i] * q[i]));
        // Of the squares of x, least squares takes this much away.
        let taken = sum_xq * sum_xq * super::inverse(sum_qq);
        if taken > most {
            (best, most) = (sum_xq / sum_qq, taken);
        }
    }
    best
}

/// Two bits each of the high parts, and four of the low ones; see [`crate::blocks::dequantize`] for the order.
#[inline(always)]
pub(super) fn q6_k(x: &[f32; 256], block: &mut [u8; 210]) {
    let groups = x.as_chunks::<16>().0;
    let fits: [f32; 16] = std::array::from_fn(|g| fit_symmetric(&groups[g]));
    let d = rounded(extreme(&fits) / -128.0);
    super::put_half(block, 208, d);
    let mut integers = [0_u8; 256];
    for (g, (x, to)) in groups.iter().zip(integers.as_chunks_mut::<16>().0).enumerate() {
        let scale = nearest((fits[g] * inverse(d)).clamp(-128.0, 127.0));
        let mut least = f32::MAX;
        for beside in -1..=1 {
            let scale = (scale + beside as f32).clamp(-128.0, 127.0);
            let step = d * scale;
            let inverse = inverse(step);
            let q: [f32; 16] = std::array::from_fn(|i| nearest((x[i] * inverse).clamp(-32.0, 31.0)));
            let error = sum::<16>(|i| {
                let off = step * q[i] - x[i];
                off * off
            });
            if error < least {
                least = error;
                block[192 + g] = scale as i8 as u8;
                *to = q.map(|q| (q + 32.0) as u8);
            }
        }
    }
    for half in 0..2 {
        let q = &integers[half * 128..][..128];
        for i in 0..64 {
            block[half * 64 + i] = q[i] & 15 | q[i + 64] << 4;
        }
        for i in 0..32 {
            block[128 + half * 32 + i] = q[i] >> 4 | q[i + 32] >> 4 << 2 | q[i + 64] >> 4 << 4 | q[i + 96] >> 4 << 6;
        }
    }
}
