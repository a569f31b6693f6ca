//! What can be wrong with a GGUF file.

use super::ValueType;

/// Something wrong inside a GGUF file, in one line; names from the file are quoted with control characters escaped.
#[derive(Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)] // The messages say what the fields are.
pub enum Problem {
    #[error("not a GGUF file: it begins with \"{}\" instead of \"GGUF\"", found.escape_ascii())]
    Magic { found: [u8; 4] },
    #[error("a big-endian GGUF file; only little-endian ones are read")]
    BigEndian,
    #[error("GGUF version {found}; versions 2 and 3 are read")]
    Version { found: u32 },
    #[error("truncated: {what} at byte {at} needs {need} bytes, {left} are left")]
    Truncated { what: &'static str, at: usize, need: u64, left: usize },
    #[error("claims {count} {what}, which need {need} bytes at least; {left} are left at byte {at}")]
    CountBeyondFile { what: &'static str, count: u64, need: u128, at: usize, left: usize },
    #[error("claims {count} {what}; at most {limit} are read")]
    TooMany { what: &'static str, count: u64, limit: u64 },
    #[error("{what} at byte {at} is {len} bytes long; at most {limit} are read")]
    NameTooLong { what: &'static str, at: usize, len: usize, limit: usize },
    #[error("{what} at byte {at} is not UTF-8")]
    NotUtf8 { what: &'static str, at: usize },
    #[error("{what} at byte {at} is empty")]
    EmptyName { what: &'static str, at: usize },
    #[error("metadata {key:?} has value type {id}, which GGUF does not define")]
    UnknownValueType { key: String, id: u32 },
    #[error("metadata {key:?} is an array of arrays, which is not read")]
    NestedArray { key: String },
    #[error("metadata {key:?} has a bool that is {found}, neither 0 nor 1")]
    BadBool { key: String, found: u8 },
    #[error("metadata {key:?} is there twice")]
    DuplicateKey { key: String },
    #[error("metadata {key:?} is {found}, where {wanted} is wanted")]
    WrongType { key: String, wanted: &'static str, found: String },
    #[error("metadata {key:?} is an array of {found}, where an array of {wanted} is wanted")]
    WrongArray { key: String, wanted: &'static str, found: ValueType },
    #[error("metadata {key:?} is {found}, where a number of at least 0 is wanted")]
    Negative { key: String, found: i64 },
    #[error("metadata {key:?} is not UTF-8")]
    ValueNotUtf8 { key: String },
    #[error("general.alignment is {found}; a power of two from 8 to {limit} is wanted")]
    Alignment { found: u64, limit: u64 },
    #[error("tensor {tensor:?} has {found} dimensions; at most {limit} are read")]
    Dimensions { tensor: String, found: u32, limit: u32 },
    #[error("tensor {tensor:?} has the shape {dims:?}: a dimension of 0")]
    ZeroDimension { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor:?} has the shape {dims:?}, more bytes than there are addresses")]
    TooLarge { tensor: String, dims: Vec<u64> },
    #[error("tensor {tensor:?} has element type {id}, which this version does not know")]
    UnknownElement { tensor: String, id: u32 },
    #[error("tensor {tensor:?} has rows of {cols} elements, no whole number of {ty} blocks of {block}")]
    PartialBlock { tensor: String, cols: u64, ty: &'static str, block: u64 },
    #[error("tensor {tensor:?} is at offset {offset}, no multiple of the alignment {alignment}")]
    Misaligned { tensor: String, offset: u64, alignment: u64 },
    #[error("tensor {tensor:?} ends at byte {end} of a file of {file} bytes; was its download interrupted?")]
    OutsideFile { tensor: String, end: u128, file: usize },
    #[error("tensors {first:?} and {second:?} overlap at byte {at}")]
    Overlap { first: String, second: String, at: usize },
    #[error("two tensors are named {tensor:?}")]
    DuplicateTensor { tensor: String },
}
