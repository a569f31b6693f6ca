//! The tensor list of a GGUF file: names, shapes, element types and ranges, checked against each other and the file's
//! length.

use pocketune_kernels::BlockType;

use super::Problem;
use super::cursor::Cursor;
use crate::tensor::{Element, TensorInfo, TensorList};

type Result<T> = std::result::Result<T, Problem>;

/// Name length, one byte of name, number of dimensions, type, offset.
pub(super) const MIN_BYTES: u64 = 8 + 1 + 4 + 4 + 8;

const MAX_NAME_BYTES: usize = 64;
const MAX_DIMS: u32 = 4;

/// Element types of ggml that a step can't read: id, name, elements and bytes of a block. Their tensors are listed.
const OTHERS: [(u32, &str, u64, u64); 23] = [
    (9, "q8_1", 32, 40),
    (10, "q2_k", 256, 84),
    (11, "q3_k", 256, 110),
    (15, "q8_k", 256, 292),
    (16, "iq2_xxs", 256, 66),
    (17, "iq2_xs", 256, 74),
    (18, "iq3_xxs", 256, 98),
    (19, "iq1_s", 256, 50),
    (20, "iq4_nl", 32, 18),
    (21, "iq3_s", 256, 110),
    (22, "iq2_s", 256, 82),
    (23, "iq4_xs", 256, 136),
    (24, "i8", 1, 1),
    (25, "i16", 1, 2),
    (26, "i32", 1, 4),
    (27, "i64", 1, 8),
    (28, "f64", 1, 8),
    (29, "iq1_m", 256, 56),
    (34, "tq1_0", 256, 54),
    (35, "tq2_0", 256, 66),
    (39, "mxfp4", 32, 17),
    (40, "nvfp4", 64, 36),
    (41, "q1_0", 128, 18),
];

/// A tensor as its entry claims it to be; the place of the data section is not known yet.
struct Claim<'a> {
    name: &'a str,
    element: Element,
    shape: Box<[usize]>,
    offset: u64,
    bytes: u64,
}

/// Reads `count` entries and checks that each tensor lies inside the file, aligned, and apart from the others.
pub(super) fn read(cursor: &mut Cursor<'_>, count: usize, alignment: u64, file: usize) -> Result<TensorList> {
    let mut claims = Vec::with_capacity(count);
    for _ in 0..count {
        claims.push(Claim::read(cursor, alignment)?);
    }
    // A file's length is below 2^63 and the alignment small, so this does not overflow.
    let data_at = (cursor.at() as u64).next_multiple_of(alignment);
    let tensors = claims.into_iter().map(|claim| claim.place(data_at, cursor.file_len(), file));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    check_apart(&tensors)?;
    TensorList::new(tensors).map_err(|tensor| Problem::DuplicateTensor { tensor: tensor.into() })
}

impl<'a> Claim<'a> {
    fn read(cursor: &mut Cursor<'a>, alignment: u64) -> Result<Self> {
        let name = cursor.name("tensor name", MAX_NAME_BYTES)?;
        let tensor = || name.to_string();
        let found = cursor.u32("number of dimensions")?;
        if found > MAX_DIMS {
            return Err(Problem::Dimensions { tensor: tensor(), found, limit: MAX_DIMS });
        }
        let dims = (0..found).map(|_| cursor.u64("dimension")).collect::<Result<Vec<u64>>>()?;
        let id = cursor.u32("element type")?;
        let offset = cursor.u64("tensor offset")?;

        let (element, ty, block, block_bytes) =
            element(id).ok_or_else(|| Problem::UnknownElement { tensor: tensor(), id })?;
        if dims.contains(&0) {
            return Err(Problem::ZeroDimension { tensor: tensor(), dims });
        }
        let cols = dims.first().copied().unwrap_or(1);
        if !cols.is_multiple_of(block) {
            return Err(Problem::PartialBlock { tensor: tensor(), cols, ty, block });
        }
        if !offset.is_multiple_of(alignment) {
            return Err(Problem::Misaligned { tensor: tensor(), offset, alignment });
        }
        // Both products must fit: the elements (counted later) and the bytes.
        let elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let bytes = elements.and_then(|n| (n / block).checked_mul(block_bytes));
        let fits = elements.is_some_and(|n| usize::try_from(n).is_ok());
        let Some(bytes) = bytes.filter(|_| fits) else {
            return Err(Problem::TooLarge { tensor: tensor(), dims });
        };
        let shape = dims.iter().rev().map(|&dim| dim as usize).collect();
        Ok(Self { name, element, shape, offset, bytes })
    }

    fn place(self, data_at: u64, file_len: usize, file: usize) -> Result<TensorInfo> {
        let start = u128::from(data_at) + u128::from(self.offset);
        let end = start + u128::from(self.bytes);
        if end > file_len as u128 {
            return Err(Problem::OutsideFile { tensor: self.name.into(), end, file: file_len });
        }
        let (offset, bytes) = (start as usize, self.bytes as usize);
        Ok(TensorInfo { name: self.name.into(), element: self.element, shape: self.shape, file, offset, bytes })
    }
}

/// The element type `id`: for the list, its name, and elements and bytes of a block.
fn element(id: u32) -> Option<(Element, &'static str, u64, u64)> {
    if let Some(ty) = BlockType::from_ggml_id(id) {
        return Some((Element::Block(ty), ty.name(), ty.block_len() as u64, ty.block_bytes() as u64));
    }
    let &(_, name, block, bytes) = OTHERS.iter().find(|other| other.0 == id)?;
    Some((Element::Other(name.into()), name, block, bytes))
}

fn check_apart(tensors: &[TensorInfo]) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_unstable_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            let (first, second) = (pair[0].name.to_string(), pair[1].name.to_string());
            return Err(Problem::Overlap { first, second, at: pair[1].offset });
        }
    }
    Ok(())
}
