//! Element and block layouts of weight tensors, as GGUF defines them, their exact dequantisation (the scalar reference), and their
//! quantisation, for files; and what other runtimes pack in other ways ([`Packed`]).
//!
//! Only types that a step can read are here; a file may hold others, and its reader says so by name.

mod dequantize;
mod packed;
mod quantize;

pub use dequantize::dequantize;
pub(crate) use packed::rounded_to;
pub use packed::{Floats, Meaning, Packed, Scales};
pub use quantize::{largest, quantize};

/// How the elements of a weight tensor are stored. A row is a whole number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(non_camel_case_types)]
pub enum BlockType {
    /// 32-bit floats.
    F32,
    /// IEEE half floats.
    F16,
    /// bfloat16.
    BF16,
    /// 32 elements of 8 bits and a scale.
    Q8_0,
    /// 32 elements of 4 bits and a scale.
    Q4_0,
    /// 32 elements of 4 bits, a scale and a minimum.
    Q4_1,
    /// 32 elements of 5 bits and a scale.
    Q5_0,
    /// 32 elements of 5 bits, a scale and a minimum.
    Q5_1,
    /// 256 elements of 4 bits in 8 groups with 6-bit scales and minimums.
    Q4_K,
    /// 256 elements of 5 bits in 8 groups with 6-bit scales and minimums.
    Q5_K,
    /// 256 elements of 6 bits in 16 groups with 8-bit scales.
    Q6_K,
}

impl BlockType {
    /// Every supported type.
    pub const ALL: [BlockType; 11] = [
        BlockType::F32,
        BlockType::F16,
        BlockType::BF16,
        BlockType::Q8_0,
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
    ];

    /// The name that files, reports and messages use, such as `q4_1`.
    pub const fn name(self) -> &'static str {
        match self {
            BlockType::F32 => "f32",
            BlockType::F16 => "f16",
            BlockType::BF16 => "bf16",
            BlockType::Q8_0 => "q8_0",
            BlockType::Q4_0 => "q4_0",
            BlockType::Q4_1 => "q4_1",
            BlockType::Q5_0 => "q5_0",
            BlockType::Q5_1 => "q5_1",
            BlockType::Q4_K => "q4_k",
            BlockType::Q5_K => "q5_k",
            BlockType::Q6_K => "q6_k",
        }
    }

    /// The type that GGUF writes as `id` (ggml's `ggml_type`), or `None` when it is not a supported one.
    pub const fn from_ggml_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => BlockType::F32,
            1 => BlockType::F16,
            2 => BlockType::Q4_0,
            3 => BlockType::Q4_1,
            6 => BlockType::Q5_0,
            7 => BlockType::Q5_1,
            8 => BlockType::Q8_0,
            12 => BlockType::Q4_K,
            13 => BlockType::Q5_K,
            14 => BlockType::Q6_K,
            30 => BlockType::BF16,
            _ => return None,
        })
    }

    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        match self {
            BlockType::F32 | BlockType::F16 | BlockType::BF16 => 1,
            BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q5_0 | BlockType::Q5_1 => 32,
            BlockType::Q4_K | BlockType::Q5_K | BlockType::Q6_K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            BlockType::F32 => 4,
            BlockType::F16 | BlockType::BF16 => 2,
            BlockType::Q8_0 => 34,
            BlockType::Q4_0 => 18,
            BlockType::Q4_1 => 20,
            BlockType::Q5_0 => 22,
            BlockType::Q5_1 => 24,
            BlockType::Q4_K => 144,
            BlockType::Q5_K => 176,
            BlockType::Q6_K => 210,
        }
    }

    /// Bytes of a row of `cols` elements, or `None` when that is no whole number of blocks or too large.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}
