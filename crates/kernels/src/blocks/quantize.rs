//! Quantisation of whole blocks, for files: the other way of [`super::dequantize`]. Types of 32 elements have the bytes of ggml's
//! reference quantisers (and of the `gguf` Python package); those of 256 fit their scales by least squares ([`k`]). A step never
//! quantises. Nothing here looks for what is not finite: [`largest`] says what a type can hold, and callers compare.

mod k;

use half::{bf16, f16};

use super::BlockType;

/// The largest magnitude that elements of a type may have; scales and minimums are half floats in most.
pub fn largest(ty: BlockType) -> f32 {
    match ty {
        BlockType::F32 => f32::MAX,
        BlockType::BF16 => bf16::MAX.to_f32(),
        _ => f16::MAX.to_f32(),
    }
}

crate::per_isa::per_isa!(
    /// Writes the blocks of the finite elements in `src` to `dst`. The bytes are the same on every instruction set.
    ///
    /// # Panics
    /// When `src` is no whole number of blocks or `dst` is not exactly as many blocks.
    pub fn quantize(ty: BlockType, src: &[f32], dst: &mut [u8]) = quantize_body
);

#[inline(always)]
fn quantize_body(ty: BlockType, src: &[f32], dst: &mut [u8]) {
    let bytes = ty.row_bytes(src.len());
    assert_eq!(Some(dst.len()), bytes, "{} elements of {} need another number of bytes", src.len(), ty.name());
    match ty {
        BlockType::F32 => blocks(src, dst, |x: &[f32; 1], b: &mut [u8; 4]| *b = x[0].to_le_bytes()),
        BlockType::F16 => blocks(src, dst, |x: &[f32; 1], b: &mut [u8; 2]| *b = f16::from_f32(x[0]).to_le_bytes()),
        BlockType::BF16 => blocks(src, dst, |x: &[f32; 1], b: &mut [u8; 2]| *b = bf16::from_f32(x[0]).to_le_bytes()),
        BlockType::Q8_0 => blocks(src, dst, q8_0),
        BlockType::Q4_0 => blocks(src, dst, q4_0),
        BlockType::Q4_1 => blocks(src, dst, q4_1),
        BlockType::Q5_0 => blocks(src, dst, q5_0),
        BlockType::Q5_1 => blocks(src, dst, q5_1),
        BlockType::Q4_K => blocks(src, dst, k::q4_k),
        BlockType::Q5_K => blocks(src, dst, k::q5_k),
        BlockType::Q6_K => blocks(src, dst, k::q6_k),
    }
}

#[inline(always)]
fn blocks<const LEN: usize, const BYTES: usize>(
    src: &[f32],
    dst: &mut [u8],
    one: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    for (x, block) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        one(x, block);
    }
}

#[inline(always)]
fn put_half(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}

/// `1 / d`, and 0 where there is no scale.
#[inline(always)]
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// `d = max|x| / 127`, rounded away from zero at the halves.
#[inline(always)]
fn q8_0(x: &[f32; 32], block: &mut [u8; 34]) {
    let d = x.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / 127.0;
    let inverse = inverse(d);
    put_half(block, 0, d);
    for (q, x) in block[2..].iter_mut().zip(x) {
        *q = (x * inverse).round() as i8 as u8;
    }
}

/// The element of the largest magnitude, the first of them where there are two.
#[inline(always)]
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(x[0], |most, &x| if x.abs() > most.abs() { x } else { most })
}

/// The scale that puts the extreme at `-half`, and the integers `q` of `y = d (q - half)`, `q < 2 half`.
#[inline(always)]
fn symmetric(x: &[f32; 32], half: f32) -> (f32, [u8; 32]) {
    let d = extreme(x) / -half;
    let inverse = inverse(d);
    let most = 2.0 * half - 1.0;
    (d, std::array::from_fn(|i| (x[i] * inverse + (half + 0.5)).clamp(0.0, most) as u8))
}

/// Scale, minimum, and the integers `q` of `y = d q + m`, `q <= most`.
#[inline(always)]
fn affine(x: &[f32; 32], most: f32) -> (f32, f32, [u8; 32]) {
    let (low, high) = x.iter().fold((f32::MAX, f32::MIN), |(low, high), &x| (low.min(x), high.max(x)));
    let d = (high - low) / most;
    let inverse = inverse(d);
    (d, low, std::array::from_fn(|i| ((x[i] - low) * inverse + 0.5).clamp(0.0, most) as u8))
}

#[inline(always)]
fn put_nibbles(bytes: &mut [u8], q: &[u8; 32]) {
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = (q[i] & 15) | q[i + 16] << 4;
    }
}

#[inline(always)]
fn put_fifth_bits(bytes: &mut [u8], q: &[u8; 32]) {
    let bits = q.iter().enumerate().fold(0_u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
    bytes.copy_from_slice(&bits.to_le_bytes());
}

#[inline(always)]
fn q4_0(x: &[f32; 32], block: &mut [u8; 18]) {
    let (d, q) = symmetric(x, 8.0);
    put_half(block, 0, d);
    put_nibbles(&mut block[2..], &q);
}

#[inline(always)]
fn q4_1(x: &[f32; 32], block: &mut [u8; 20]) {
    let (d, m, q) = affine(x, 15.0);
    put_half(block, 0, d);
    put_half(block, 2, m);
    put_nibbles(&mut block[4..], &q);
}

#[inline(always)]
fn q5_0(x: &[f32; 32], block: &mut [u8; 22]) {
    let (d, q) = symmetric(x, 16.0);
    put_half(block, 0, d);
    put_fifth_bits(&mut block[2..6], &q);
    put_nibbles(&mut block[6..], &q);
}

#[inline(always)]
fn q5_1(x: &[f32; 32], block: &mut [u8; 24]) {
    let (d, m, q) = affine(x, 31.0);
    put_half(block, 0, d);
    put_half(block, 2, m);
    put_fifth_bits(&mut block[4..8], &q);
    put_nibbles(&mut block[8..], &q);
}
