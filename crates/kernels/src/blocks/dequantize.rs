//! Exact dequantisation of whole blocks: the scalar reference that every faster path must equal bit for bit.
//!
//! The bits are those of the `gguf` Python package: products and sums are rounded one by one in f32 and in its order,
//! so nothing here may be fused (`mul_add`) or reassociated. `d` is a block's scale, `m` its minimum, `q` an element's
//! small integer.

use half::{bf16, f16};

use super::BlockType;

/// Writes the elements of the blocks in `src` to `dst`.
///
/// # Panics
/// When `dst` is no whole number of blocks or `src` is not exactly as many blocks.
pub fn dequantize(ty: BlockType, src: &[u8], dst: &mut [f32]) {
    assert_eq!(
        Some(src.len()),
        ty.row_bytes(dst.len()),
        "{} elements of {} need another number of bytes",
        dst.len(),
        ty.name()
    );
    match ty {
        BlockType::F32 => blocks(src, dst, |b: &[u8; 4], y: &mut [f32; 1]| y[0] = f32::from_le_bytes(*b)),
        BlockType::F16 => blocks(src, dst, |b: &[u8; 2], y: &mut [f32; 1]| y[0] = half_at(b, 0)),
        BlockType::BF16 => blocks(src, dst, |b: &[u8; 2], y: &mut [f32; 1]| y[0] = bf16::from_le_bytes(*b).to_f32()),
        BlockType::Q8_0 => blocks(src, dst, q8_0),
        BlockType::Q4_0 => blocks(src, dst, q4_0),
        BlockType::Q4_1 => blocks(src, dst, q4_1),
        BlockType::Q5_0 => blocks(src, dst, q5_0),
        BlockType::Q5_1 => blocks(src, dst, q5_1),
        BlockType::Q4_K => blocks(src, dst, q4_k),
        BlockType::Q5_K => blocks(src, dst, q5_k),
        BlockType::Q6_K => blocks(src, dst, q6_k),
    }
}

fn blocks<const BYTES: usize, const LEN: usize>(
    src: &[u8],
    dst: &mut [f32],
    one: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, y) in src.as_chunks().0.iter().zip(dst.as_chunks_mut().0) {
        one(block, y);
    }
}

/// The half float at byte `at`, widened (exactly).
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// `d: f16, q: [i8; 32]`; `y = q d`.
fn q8_0(block: &[u8; 34], y: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (y, &q) in y.iter_mut().zip(&block[2..]) {
        *y = f32::from(q as i8) * d;
    }
}

/// `d: f16, nibbles: [u8; 16]`; low nibbles are elements 0..16, high ones 16..32; `y = d (q - 8)`.
fn q4_0(block: &[u8; 18], y: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (i, &byte) in block[2..].iter().enumerate() {
        y[i] = d * f32::from((byte & 15) as i8 - 8);
        y[i + 16] = d * f32::from((byte >> 4) as i8 - 8);
    }
}

/// `d: f16, m: f16, nibbles: [u8; 16]` in the order of Q4_0; `y = d q + m`.
fn q4_1(block: &[u8; 20], y: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (i, &byte) in block[4..].iter().enumerate() {
        y[i] = d * f32::from(byte & 15) + m;
        y[i + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// The 32 five-bit integers of Q5_0 and Q5_1: nibbles in the order of Q4_0, and bit `i` of `high` on top of element `i`.
fn five_bits(high: &[u8], nibbles: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| {
        let nibble = if i < 16 { nibbles[i] & 15 } else { nibbles[i - 16] >> 4 };
        nibble | ((high[i / 8] >> (i % 8)) & 1) << 4
    })
}

/// `d: f16, high: u32, nibbles: [u8; 16]`; `y = d (q - 16)`.
fn q5_0(block: &[u8; 22], y: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (y, q) in y.iter_mut().zip(five_bits(&block[2..6], &block[6..])) {
        *y = d * f32::from(q as i8 - 16);
    }
}

/// `d: f16, m: f16, high: u32, nibbles: [u8; 16]`; `y = d q + m`.
fn q5_1(block: &[u8; 24], y: &mut [f32; 32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (y, q) in y.iter_mut().zip(five_bits(&block[4..8], &block[8..])) {
        *y = d * f32::from(q) + m;
    }
}

/// Scale and minimum of group `g` (of 8) in the 12 packed bytes of Q4_K and Q5_K. Bytes 0..4 hold the scales of groups
/// 0..4 in their low 6 bits, bytes 4..8 the minimums; bytes 8..12 hold the low nibbles of groups 4..8 (scale low,
/// minimum high), whose upper 2 bits are the top bits of the first eight bytes.
fn group_scale_min(packed: &[u8], g: usize) -> (f32, f32) {
    let (scale, min) = if g < 4 {
        (packed[g] & 63, packed[g + 4] & 63)
    } else {
        let low = packed[g + 4];
        ((low & 15) | ((packed[g - 4] >> 2) & 0x30), (low >> 4) | ((packed[g] >> 2) & 0x30))
    };
    (f32::from(scale), f32::from(min))
}

/// `d: f16, m: f16, packed: [u8; 12], nibbles: [u8; 128]`; 32 bytes give group `2c` (low) and `2c + 1` (high);
/// `y = (d scale) q - (m min)`.
fn q4_k(block: &[u8; 144], y: &mut [f32; 256]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = group_scale_min(&block[4..16], g);
        let (d, m) = (d * scale, m * min);
        let nibbles = &block[16 + g / 2 * 32..][..32];
        for (y, byte) in y.iter_mut().zip(nibbles) {
            *y = d * f32::from((byte >> (g % 2 * 4)) & 15) - m;
        }
    }
}

/// `d: f16, m: f16, packed: [u8; 12], high: [u8; 32], nibbles: [u8; 128]`: Q4_K with bit `g` of `high[i]` on top of
/// element `i` of group `g`.
fn q5_k(block: &[u8; 176], y: &mut [f32; 256]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = group_scale_min(&block[4..16], g);
        let (d, m) = (d * scale, m * min);
        let nibbles = &block[48 + g / 2 * 32..][..32];
        for ((y, byte), high) in y.iter_mut().zip(nibbles).zip(&block[16..48]) {
            let q = ((byte >> (g % 2 * 4)) & 15) | ((high >> g) & 1) << 4;
            *y = d * f32::from(q) - m;
        }
    }
}

/// `low: [u8; 128], high: [u8; 64], scales: [i8; 16], d: f16`. Of each half (128 elements), 64 low bytes give 64
/// elements by their low nibbles, then 64 by their high ones; 32 high bytes give two bits each for four runs of 32. `y
/// = (d scale) (q - 32)`.
fn q6_k(block: &[u8; 210], y: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for (g, y) in y.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (half, run) = (g / 4, g % 4);
        let low = &block[half * 64 + run % 2 * 32..][..32];
        let high = &block[128 + half * 32..][..32];
        for i in 0..32 {
            let q = ((low[i] >> (run / 2 * 4)) & 15) | ((high[i] >> (run * 2)) & 3) << 4;
            let scale = f32::from(block[192 + g * 2 + i / 16] as i8);
            y[i] = (d * scale) * f32::from(q as i8 - 32);
        }
    }
}
