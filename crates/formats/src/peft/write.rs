//! The encoding of `adapter_model.safetensors`, streamed: the header first, then each tensor as its owner writes it.

use std::io::{self, Error, ErrorKind, Write};

use serde_json::{Map, Value, json};

use super::{PREFIX, SUFFIX_A, SUFFIX_B, SUFFIX_EMBEDDING, SUFFIX_M};

/// A tensor of f32 that is about to be written.
#[derive(Clone, Debug)]
pub struct TensorSpec {
    /// The name in the file.
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

/// The names of A, B and DoRA's magnitudes in the file, for the module at `path`, which may be an embedding.
pub fn tensor_names(path: &str, embedding: bool) -> [String; 3] {
    let [a, b] = if embedding { SUFFIX_EMBEDDING } else { [SUFFIX_A, SUFFIX_B] };
    [a, b, SUFFIX_M].map(|suffix| format!("{PREFIX}{path}{suffix}"))
}

/// The name in the file of a tensor that was trained whole.
pub fn saved_name(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// Writes a safetensors file of f32 tensors. `fill(i, out)` writes the elements of tensor `i`, little-endian; nothing
/// is held.
///
/// # Errors
/// Those of `out` and `fill`; and when two tensors have one name, a size overflows, or `fill` writes another number of
/// bytes than the shape needs.
pub fn write_tensors(
    out: &mut dyn Write,
    tensors: &[TensorSpec],
    fill: &mut dyn FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let (mut sizes, mut start) = (Vec::with_capacity(tensors.len()), 0u64);
    for TensorSpec { name, shape } in tensors {
        let bytes = shape.iter().try_fold(4u64, |bytes, &dim| bytes.checked_mul(dim as u64));
        let Some((bytes, end)) = bytes.and_then(|bytes| Some((bytes, start.checked_add(bytes)?))) else {
            return Err(Error::new(ErrorKind::InvalidInput, format!("tensor {name:?}: {shape:?} is too large")));
        };
        let entry: Value = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        if header.insert(name.clone(), entry).is_some() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("two tensors are named {name:?}")));
        }
        sizes.push(bytes);
        start = end;
    }
    let mut header = serde_json::to_vec(&header)?;
    // Data begins at a multiple of 8, as PEFT's own files do.
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (i, &want) in sizes.iter().enumerate() {
        let mut counted = Counted { out, written: 0 };
        fill(i, &mut counted)?;
        if counted.written != want {
            let (name, found) = (&tensors[i].name, counted.written);
            return Err(Error::new(ErrorKind::InvalidData, format!("tensor {name:?}: {found} bytes for {want}")));
        }
    }
    Ok(())
}

/// Counts what passes through.
struct Counted<'a> {
    out: &'a mut dyn Write,
    written: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.written += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
