//! Every block layout taken apart into runs of sixteen small integers with a scale and a minimum. The layouts are described at
//! [`crate::blocks::dequantize`]; `d` is a scale, `m` a minimum, `q` an element's integer.

use super::arch::{Bytes, add, bits, bytes, fifth, half, left, or};
use super::{Source, packed};
use crate::BlockType;

/// Adds to any float without changing it.
const NONE: f32 = -0.0;

/// What a layout needs of a vector width: the one step that all of them end in.
///
/// # Safety
/// All functions need the instruction set that the type stands for, and 16 elements at `from` and room for 16 at `to`, of any
/// alignment.
pub(super) trait Sixteen {
    /// What elements become: floats, or the bits of bfloat16s.
    type Out: Copy + Default;
    /// Writes `d q + m` for 16 signed bytes `q`; the product is rounded before the sum. `m` is -0.0 where a layout has none: that
    /// changes no float.
    unsafe fn affine(q: Bytes, d: f32, m: f32, to: *mut Self::Out);
    /// Writes `d (q + offset) + m` for twice 16 integers below 16, to 32 places.
    #[inline(always)]
    unsafe fn nibbles(q: [Bytes; 2], offset: i8, d: f32, m: f32, to: *mut Self::Out) {
        // SAFETY: the trait's contract.
        unsafe {
            Self::affine(add(q[0], offset), d, m, to);
            Self::affine(add(q[1], offset), d, m, to.add(16));
        }
    }
    /// Writes `values[q]` for twice 16 integers below 16, to 32 places.
    unsafe fn lookup(q: [Bytes; 2], values: &[f32; 16], to: *mut Self::Out);
    /// Takes 16 floats.
    unsafe fn singles(from: *const u8, to: *mut Self::Out);
    /// Widens 16 half floats.
    unsafe fn halves(from: *const u8, to: *mut Self::Out);
    /// Widens 16 bfloat16s.
    unsafe fn brains(from: *const u8, to: *mut Self::Out);
}

/// Dequantises whole blocks, or elements of a packed matrix.
///
/// # Safety
/// The processor has `S`'s instructions and those of `arch`; blocks of `src` are as many as those of `dst`.
#[inline(always)]
pub(super) unsafe fn row<S: Sixteen>(src: Source, dst: &mut [S::Out]) {
    let (ty, src) = match src {
        Source::Blocks(ty, src) => (ty, src),
        // SAFETY: the caller's promise.
        Source::Packed(packed, at) => return unsafe { packed::elements::<S>(packed, at, dst) },
    };
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => floats::<S>(ty, src, dst),
            BlockType::Q8_0 => blocks(src, dst, |b: &[u8; 34], y: &mut [S::Out; 32]| q8_0::<S>(b, y)),
            BlockType::Q4_0 => blocks(src, dst, |b: &[u8; 18], y: &mut [S::Out; 32]| q4_0::<S>(b, y)),
            BlockType::Q4_1 => blocks(src, dst, |b: &[u8; 20], y: &mut [S::Out; 32]| q4_1::<S>(b, y)),
            BlockType::Q5_0 => blocks(src, dst, |b: &[u8; 22], y: &mut [S::Out; 32]| q5_0::<S>(b, y)),
            BlockType::Q5_1 => blocks(src, dst, |b: &[u8; 24], y: &mut [S::Out; 32]| q5_1::<S>(b, y)),
            BlockType::Q4_K => blocks(src, dst, |b: &[u8; 144], y: &mut [S::Out; 256]| q4_k::<S>(b, y)),
            BlockType::Q5_K => blocks(src, dst, |b: &[u8; 176], y: &mut [S::Out; 256]| q5_k::<S>(b, y)),
            BlockType::Q6_K => blocks(src, dst, |b: &[u8; 210], y: &mut [S::Out; 256]| q6_k::<S>(b, y)),
        }
    }
}

#[inline(always)]
fn blocks<T, const BYTES: usize, const LEN: usize>(
    src: &[u8],
    dst: &mut [T],
    one: impl Fn(&[u8; BYTES], &mut [T; LEN]),
) {
    for (block, y) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        one(block, y);
    }
}

#[inline(always)]
unsafe fn floats<S: Sixteen>(ty: BlockType, src: &[u8], dst: &mut [S::Out]) {
    let bytes = 16 * ty.block_bytes();
    for (from, to) in src.chunks(bytes).zip(dst.chunks_mut(16)) {
        let (mut padded, mut copy) = ([0; 64], [S::Out::default(); 16]);
        let whole = to.len() == 16;
        padded[..from.len()].copy_from_slice(from);
        let at = if whole { from.as_ptr() } else { padded.as_ptr() };
        let out = if whole { to.as_mut_ptr() } else { copy.as_mut_ptr() };
        // SAFETY: `at` has 16 elements, and `out` room for as many.
        unsafe {
            match ty {
                BlockType::F16 => S::halves(at, out),
                BlockType::BF16 => S::brains(at, out),
                _ => S::singles(at, out),
            }
        }
        if !whole {
            to.copy_from_slice(&copy[..to.len()]);
        }
    }
}

/// Elements `at..at + 16` of a block: `d q + m`.
#[inline(always)]
unsafe fn put<S: Sixteen>(q: Bytes, d: f32, m: f32, y: &mut [S::Out], at: usize) {
    // SAFETY: the slice has room for 16; the instructions are the caller's promise.
    unsafe { S::affine(q, d, m, y[at..at + 16].as_mut_ptr()) }
}

#[inline(always)]
unsafe fn q8_0<S: Sixteen>(block: &[u8; 34], y: &mut [S::Out; 32]) {
    // SAFETY: the caller's promise, here and in the layouts below.
    unsafe {
        let d = half(block, 0);
        put::<S>(bytes(block, 2), d, NONE, y, 0);
        put::<S>(bytes(block, 18), d, NONE, y, 16);
    }
}

#[inline(always)]
unsafe fn q4_0<S: Sixteen>(block: &[u8; 18], y: &mut [S::Out; 32]) {
    // SAFETY: as q8_0.
    unsafe {
        let (d, q) = (half(block, 0), bytes(block, 2));
        S::nibbles([bits::<0>(q, 15), bits::<4>(q, 15)], -8, d, NONE, y.as_mut_ptr());
    }
}

#[inline(always)]
unsafe fn q4_1<S: Sixteen>(block: &[u8; 20], y: &mut [S::Out; 32]) {
    // SAFETY: as q8_0.
    unsafe {
        let (d, m, q) = (half(block, 0), half(block, 2), bytes(block, 4));
        S::nibbles([bits::<0>(q, 15), bits::<4>(q, 15)], 0, d, m, y.as_mut_ptr());
    }
}

#[inline(always)]
unsafe fn q5_0<S: Sixteen>(block: &[u8; 22], y: &mut [S::Out; 32]) {
    // SAFETY: as q8_0.
    unsafe {
        let (d, q) = (half(block, 0), bytes(block, 6));
        put::<S>(add(or(bits::<0>(q, 15), fifth(block, 2)), -16), d, NONE, y, 0);
        put::<S>(add(or(bits::<4>(q, 15), fifth(block, 4)), -16), d, NONE, y, 16);
    }
}

#[inline(always)]
unsafe fn q5_1<S: Sixteen>(block: &[u8; 24], y: &mut [S::Out; 32]) {
    // SAFETY: as q8_0.
    unsafe {
        let (d, m, q) = (half(block, 0), half(block, 2), bytes(block, 8));
        put::<S>(or(bits::<0>(q, 15), fifth(block, 4)), d, m, y, 0);
        put::<S>(or(bits::<4>(q, 15), fifth(block, 6)), d, m, y, 16);
    }
}

/// `d scale` and `-(m min)` of the 8 groups of Q4_K and Q5_K; adding a negative is subtracting.
#[inline(always)]
unsafe fn groups(block: &[u8]) -> [(f32, f32); 8] {
    // SAFETY: as q8_0.
    let (d, m) = unsafe { (half(block, 0), half(block, 2)) };
    let packed = &block[4..16];
    let mut out = [(0.0, 0.0); 8];
    for g in 0..4 {
        let (a, b, c) = (packed[g], packed[g + 4], packed[g + 8]);
        out[g] = (d * f32::from(a & 63), -(m * f32::from(b & 63)));
        let (scale, min) = ((c & 15) | ((a >> 2) & 0x30), (c >> 4) | ((b >> 2) & 0x30));
        out[g + 4] = (d * f32::from(scale), -(m * f32::from(min)));
    }
    out
}

#[inline(always)]
unsafe fn q4_k<S: Sixteen>(block: &[u8; 144], y: &mut [S::Out; 256]) {
    // SAFETY: as q8_0.
    unsafe {
        let groups = groups(block);
        for (c, y) in y.as_chunks_mut::<64>().0.iter_mut().enumerate() {
            let [(d0, m0), (d1, m1)] = [groups[2 * c], groups[2 * c + 1]];
            let (a, b) = (bytes(block, 16 + 32 * c), bytes(block, 32 + 32 * c));
            S::nibbles([bits::<0>(a, 15), bits::<0>(b, 15)], 0, d0, m0, y.as_mut_ptr());
            S::nibbles([bits::<4>(a, 15), bits::<4>(b, 15)], 0, d1, m1, y[32..].as_mut_ptr());
        }
    }
}

#[inline(always)]
unsafe fn q5_k<S: Sixteen>(block: &[u8; 176], y: &mut [S::Out; 256]) {
    // SAFETY: as q8_0.
    unsafe {
        let groups = groups(block);
        for part in 0..2 {
            let mut high = bytes(block, 16 + 16 * part);
            for c in 0..4 {
                let [(d0, m0), (d1, m1)] = [groups[2 * c], groups[2 * c + 1]];
                let q = bytes(block, 48 + 32 * c + 16 * part);
                // Bits 2c and 2c + 1 of `high`, moved to bit 4.
                let first = left::<4>(bits::<0>(high, 1));
                let second = left::<3>(bits::<0>(high, 2));
                put::<S>(or(bits::<0>(q, 15), first), d0, m0, y, 64 * c + 16 * part);
                put::<S>(or(bits::<4>(q, 15), second), d1, m1, y, 64 * c + 32 + 16 * part);
                high = bits::<2>(high, 63);
            }
        }
    }
}

#[inline(always)]
unsafe fn q6_k<S: Sixteen>(block: &[u8; 210], y: &mut [S::Out; 256]) {
    // SAFETY: as q8_0.
    unsafe {
        let d = half(block, 208);
        for part in 0..4 {
            // Part `p` of a half: bytes 16 p.. of its 32 high bytes, whose four pairs of bits belong to runs of 32 elements.
            let (side, at) = (part / 2, part % 2 * 16);
            let high = bytes(block, 128 + 32 * side + at);
            let low = [bytes(block, 64 * side + at), bytes(block, 64 * side + 32 + at)];
            let q = [
                or(bits::<0>(low[0], 15), left::<4>(bits::<0>(high, 3))),
                or(bits::<0>(low[1], 15), left::<4>(bits::<2>(high, 3))),
                or(bits::<4>(low[0], 15), left::<4>(bits::<4>(high, 3))),
                or(bits::<4>(low[1], 15), left::<4>(bits::<6>(high, 3))),
            ];
            for (run, q) in q.into_iter().enumerate() {
                let scale = f32::from(block[192 + 8 * side + 2 * run + at / 16] as i8);
                put::<S>(add(q, -32), d * scale, NONE, y, 128 * side + 32 * run + at);
            }
        }
    }
}
