//! Which type a tensor gets when a model is asked for in one: vectors stay f32, the head of a model in 4 or 5 bits gets 6, and rows that are no
//! whole number of blocks get the next type with smaller blocks, as in llama.cpp.

use pocketune_formats::BlockType;

/// Rows that are no whole number of blocks of the type that was meant for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Elements of a row.
    pub cols: usize,
    /// What was meant.
    pub wanted: BlockType,
    /// What they got.
    pub got: BlockType,
}

/// What a matrix with rows of `cols` is meant to have in a model that is asked for in `ty`.
pub(super) fn wanted(ty: BlockType, head: bool) -> BlockType {
    let few = matches!(
        ty,
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q4_K | BlockType::Q5_K
    );
    if head && few { BlockType::Q6_K } else { ty }
}

/// The type nearest to `wanted` whose blocks divide rows of `cols`.
pub(super) fn dividing(wanted: BlockType, cols: usize) -> BlockType {
    let of_32 = match wanted {
        BlockType::Q4_K => BlockType::Q5_0,
        BlockType::Q5_K => BlockType::Q5_1,
        BlockType::Q6_K => BlockType::Q8_0,
        other => other,
    };
    let divides = |ty: &BlockType| cols.is_multiple_of(ty.block_len());
    [wanted, of_32].into_iter().find(divides).unwrap_or(BlockType::F16)
}

/// The number that GGUF's `general.file_type` has for a model in `ty`.
pub(super) const fn file_type(ty: BlockType) -> usize {
    match ty {
        BlockType::F32 => 0,
        BlockType::F16 => 1,
        BlockType::Q4_0 => 2,
        BlockType::Q4_1 => 3,
        BlockType::Q8_0 => 7,
        BlockType::Q5_0 => 8,
        BlockType::Q5_1 => 9,
        BlockType::Q4_K => 14,
        BlockType::Q5_K => 16,
        BlockType::Q6_K => 18,
        BlockType::BF16 => 32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_is_fallen_back_to_divides_the_row_and_has_at_least_as_many_bits() {
        for ty in BlockType::ALL {
            for cols in [256, 576, 896, 32, 48, 7] {
                let got = dividing(ty, cols);
                assert!(got.row_bytes(cols).is_some(), "{} for {cols}", ty.name());
                let bits = |ty: BlockType| ty.block_bytes() as f64 / ty.block_len() as f64;
                assert!(bits(got) >= bits(ty), "{} for {} of {cols}", got.name(), ty.name());
            }
        }
    }
}
