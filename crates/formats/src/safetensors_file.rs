//! The header of a safetensors file, its entries parsed by the `safetensors` crate and checked against the file's length.
//!
//! The list is made here rather than by the crate's `Metadata`, which takes some twenty times the header's size and keeps the last of two
//! tensors of one name. Nothing here reads the tensors' data.

use std::fmt;

use pocketune_kernels::BlockType;
use safetensors::Dtype;
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::error::{Error, Result, plain};
use crate::mapped::Mapped;
use crate::tensor::{Element, TensorInfo};

/// Most bytes of a header: models with thousands of tensors have under one MB.
const MAX_HEADER_BYTES: u64 = 4 << 20;
/// Most dimensions of a tensor; those of language models have two.
const MAX_DIMS: usize = 8;

/// Something wrong inside a safetensors file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Problem {
    #[error("not a safetensors file: {len} bytes, too short for the length of a header")]
    TooShort { len: usize },
    #[error("claims a header of {header} bytes; at most {limit} are read. Is it a safetensors file?")]
    HeaderTooLarge { header: u64, limit: u64 },
    #[error("truncated: a header of {header} bytes in a file of {file}; was its download interrupted?")]
    HeaderBeyondFile { header: u64, file: usize },
    #[error("the header is malformed: {}", plain(&.0.to_string()))]
    Header(serde_json::Error),
    #[error("tensor {tensor:?} begins at byte {offset} of the data, where byte {end} is free")]
    Place { tensor: String, offset: usize, end: usize },
    #[error("two tensors are named {tensor:?}")]
    Duplicate { tensor: String },
    #[error("the header describes {want} bytes of data, {found} are there; was its download interrupted?")]
    DataLength { want: usize, found: usize },
}

/// Reads the tensor list of `file`, number `index` of the model, in the order of the data.
///
/// # Errors
/// When the file is malformed.
pub fn read(file: &Mapped, index: usize) -> Result<Vec<TensorInfo>> {
    parse(file.bytes(), index).map_err(|problem| Error::Safetensors { path: file.path().into(), problem })
}

fn parse(bytes: &[u8], file: usize) -> std::result::Result<Vec<TensorInfo>, Problem> {
    let (length, rest) = bytes.split_first_chunk().ok_or(Problem::TooShort { len: bytes.len() })?;
    let header = u64::from_le_bytes(*length);
    if header > MAX_HEADER_BYTES {
        return Err(Problem::HeaderTooLarge { header, limit: MAX_HEADER_BYTES });
    }
    let Some((json, data)) = rest.split_at_checked(header as usize) else {
        return Err(Problem::HeaderBeyondFile { header, file: bytes.len() });
    };
    let Header(mut tensors) = serde_json::from_slice(json).map_err(Problem::Header)?;
    // Empty tensors share an offset.
    tensors.sort_unstable_by(|a, b| (a.offset, a.bytes, &a.name).cmp(&(b.offset, b.bytes, &b.name)));
    let end = check_places(&tensors)?;
    if end != data.len() {
        return Err(Problem::DataLength { want: end, found: data.len() });
    }
    let data_at = bytes.len() - data.len();
    for info in &mut tensors {
        (info.file, info.offset) = (file, info.offset + data_at);
    }
    Ok(tensors)
}

/// Every tensor follows the one before without a hole, and no two have one name; the result is where the last one ends.
fn check_places(tensors: &[TensorInfo]) -> std::result::Result<usize, Problem> {
    let mut end = 0;
    for info in tensors {
        if info.offset != end {
            return Err(Problem::Place { tensor: info.name.to_string(), offset: info.offset, end });
        }
        end = info.offset + info.bytes;
    }
    let mut names: Vec<&str> = tensors.iter().map(|info| &*info.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Problem::Duplicate { tensor: pair[0].into() }),
        None => Ok(end),
    }
}

/// The tensors of a header, each checked for itself, with offsets from where the data begins. Read as a stream: a header takes a few times
/// its size.
struct Header(Vec<TensorInfo>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let claim = map.next_value::<safetensors::tensor::TensorInfo>()?;
            let (start, end) = claim.data_offsets;
            let elements = claim.shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
            let bits = elements.and_then(|n| n.checked_mul(claim.dtype.bitsize()));
            let bytes = bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
            if claim.shape.len() > MAX_DIMS || bytes.is_none() || end.checked_sub(start) != bytes {
                let (ty, dims) = (claim.dtype, claim.shape.len());
                let shape = &claim.shape[..dims.min(MAX_DIMS)];
                return Err(A::Error::custom(format_args!(
                    "tensor {name:?} of type {ty} and the shape {shape:?} can't lie from {start} to {end}"
                )));
            }
            let (element, bytes) = (element(claim.dtype), end - start);
            tensors.push(TensorInfo {
                name: name.into(),
                element,
                shape: claim.shape.into(),
                file: 0,
                offset: start,
                bytes,
            });
        }
        Ok(Header(tensors))
    }
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::Block(BlockType::F32),
        Dtype::F16 => Element::Block(BlockType::F16),
        Dtype::BF16 => Element::Block(BlockType::BF16),
        other => Element::Other(other.to_string().to_lowercase().into()),
    }
}
