//! Random weights, made block by block as they are written: random small integers under scales that give a standard deviation of
//! about 0.02 and a mean of zero. It quantises nothing, and holds one chunk in memory.

use std::io::{self, Write};

use clap::ValueEnum;
use half::f16;
use pocketune_kernels::BlockType;
use pocketune_kernels::philox::Philox;

/// Blocks that are made and written at once.
const CHUNK: usize = 4096;

/// How matrices can be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
#[allow(non_camel_case_types)] // The names are GGUF's.
pub enum WeightType {
    /// 4 bits and a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 4 bits with scales of scales.
    Q4_K,
    /// 8 bits and a scale for 32.
    Q8_0,
}

impl WeightType {
    /// Its blocks.
    pub fn block_type(self) -> BlockType {
        match self {
            WeightType::Q4_0 => BlockType::Q4_0,
            WeightType::Q4_1 => BlockType::Q4_1,
            WeightType::Q4_K => BlockType::Q4_K,
            WeightType::Q8_0 => BlockType::Q8_0,
        }
    }

    /// The blocks of a matrix with `cols` columns: its own, or Q4_0 where a row would be no whole number of those.
    pub fn layout(self, cols: usize) -> BlockType {
        let own = self.block_type();
        if cols.is_multiple_of(own.block_len()) { own } else { BlockType::Q4_0 }
    }

    /// llama.cpp's number for a file that is mostly of this type.
    pub fn file_type(self) -> usize {
        match self {
            WeightType::Q4_0 => 2,
            WeightType::Q4_1 => 3,
            WeightType::Q8_0 => 7,
            WeightType::Q4_K => 14,
        }
    }
}

/// Writes `bytes` bytes of random blocks.
pub fn write(out: &mut dyn Write, ty: BlockType, mut bytes: usize, random: Philox) -> io::Result<()> {
    let mut chunk = vec![0; bytes.min(CHUNK * ty.block_bytes())];
    let mut position = 0;
    while bytes > 0 {
        let now = bytes.min(chunk.len());
        let chunk = &mut chunk[..now];
        for sixteen in chunk.chunks_mut(16) {
            let four = random.at(position);
            position += 1;
            for (bytes, number) in sixteen.chunks_mut(4).zip(four) {
                bytes.copy_from_slice(&number.to_le_bytes()[..bytes.len()]);
            }
        }
        chunk.chunks_exact_mut(ty.block_bytes()).for_each(|block| scale(ty, block));
        out.write_all(chunk)?;
        bytes -= now;
    }
    Ok(())
}

/// Puts the scales into a block of random bytes. A uniform 4-bit integer has a standard deviation of 4.61, an 8-bit one of 73.9.
fn scale(ty: BlockType, block: &mut [u8]) {
    let mut put = |at: usize, number: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(number).to_le_bytes());
    /// 0.02 / 4.61 with few bits, so that 7.5 times it is a half float too.
    const NIBBLE: f32 = 71.0 / 64.0 / 256.0;
    match ty {
        // Integers from -8 to 7 have a mean of -1/2; signs of scales that are drawn make it zero over many blocks.
        BlockType::Q4_0 => sign_of_random(block, NIBBLE),
        BlockType::Q8_0 => sign_of_random(block, 0.02 / 73.9),
        // Integers from 0 to 15 around the middle.
        BlockType::Q4_1 => {
            put(0, NIBBLE);
            put(2, -7.5 * NIBBLE);
        }
        // The same, times 6-bit scales that are drawn: their root mean square is 36.4. Minimums equal scales: byte `g + 4` repeats
        // byte `g`, and the upper nibbles of the last four bytes their lower ones.
        BlockType::Q4_K => {
            put(0, 1.0 / 8192.0);
            put(2, 7.5 / 8192.0);
            block.copy_within(4..8, 8);
            block[12..16].iter_mut().for_each(|byte| *byte = (*byte & 15) * 17);
        }
        other => unreachable!("{} is no type of WeightType", other.name()),
    }
}

fn sign_of_random(block: &mut [u8], scale: f32) {
    let scale = if block[0] & 1 == 0 { scale } else { -scale };
    block[..2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use pocketune_kernels::blocks::dequantize;

    #[test]
    fn weights_of_every_type_have_a_mean_of_zero_and_a_deviation_of_two_hundredths() {
        for ty in [WeightType::Q4_0, WeightType::Q4_1, WeightType::Q4_K, WeightType::Q8_0] {
            let (layout, elements) = (ty.layout(256), 1 << 18);
            let mut bytes = Vec::new();
            write(&mut bytes, layout, layout.row_bytes(elements).unwrap(), Philox::new(1, 2)).unwrap();
            let mut values = vec![0.0; elements];
            dequantize(layout, &bytes, &mut values);
            let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / elements as f64;
            let square = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / elements as f64;
            assert!(mean.abs() < 2e-4, "{ty:?}: mean {mean}");
            assert!((square.sqrt() - 0.02).abs() < 1e-3, "{ty:?}: deviation {}", square.sqrt());
        }
    }

    #[test]
    fn rows_that_are_no_whole_number_of_large_blocks_are_stored_as_q4_0() {
        assert_eq!(WeightType::Q4_K.layout(896), BlockType::Q4_0);
        assert_eq!(WeightType::Q4_K.layout(4864), BlockType::Q4_K);
    }
}
