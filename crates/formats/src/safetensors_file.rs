//! The header of a safetensors file, parsed by the `safetensors` crate and checked against the file's length.
//!
//! The length is compared here rather than by the crate's `SafeTensors::read_metadata`, whose sum of offsets wraps
//! around for headers that claim about 2^64 bytes. Nothing here reads the tensors' data.

use pocketune_kernels::BlockType;
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use crate::error::{Error, Result};
use crate::mapped::Mapped;
use crate::tensor::{Element, TensorInfo};

/// Most bytes of a header: models with thousands of tensors have under one MB. A hostile one takes some twenty times its
/// size when it is parsed (measured: 88 MB at this limit).
const MAX_HEADER_BYTES: u64 = 4 << 20;

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
    #[error("the header is malformed: {0}")]
    Header(serde_json::Error),
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
    // Deserialising checks shapes, types and offsets against each other: ranges follow one another without holes from 0.
    let metadata: Metadata = serde_json::from_slice(json).map_err(Problem::Header)?;
    if metadata.data_len() != data.len() {
        return Err(Problem::DataLength { want: metadata.data_len(), found: data.len() });
    }
    let data_at = bytes.len() - data.len();
    let mut tensors: Vec<TensorInfo> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| TensorInfo {
            name: name.into(),
            element: element(info.dtype),
            shape: info.shape.as_slice().into(),
            file,
            offset: data_at + info.data_offsets.0,
            bytes: info.data_offsets.1 - info.data_offsets.0,
        })
        .collect();
    // The crate's map has no order of its own; empty tensors share an offset.
    tensors.sort_unstable_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
    Ok(tensors)
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::Block(BlockType::F32),
        Dtype::F16 => Element::Block(BlockType::F16),
        Dtype::BF16 => Element::Block(BlockType::BF16),
        other => Element::Other(other.to_string().to_lowercase().into()),
    }
}
