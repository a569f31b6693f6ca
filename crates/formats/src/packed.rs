//! Matrices that other runtimes packed into safetensors: bitsandbytes' 4-bit (NF4 and FP4, also with doubly quantised scales) and MLX's groups of 2,
//! 4 or 8 bits. Which it is shows from the tensors beside the matrix; what the parts stand for is [`Packed`]'s to say. Here they are found, and checked
//! to fit together; shapes that don't and widths that cross a word are refused.
//!
//! ```text
//! bitsandbytes: X.weight u8 [n/2, 1], rows one after the other in blocks of `blocksize`;
//!   X.weight.absmax, X.weight.quant_map f32 [16], X.weight.quant_state.bitsandbytes__nf4: JSON
//!   doubly: absmax u8, nested_absmax f32, nested_quant_map f32 [256], and nested_offset in the JSON
//! MLX: X.weight u32 [rows, cols bits / 32]; X.scales, X.biases [rows, groups]; `quantization` in config.json
//! ```

use std::ops::Range;

use std::ops::RangeInclusive;

use pocketune_kernels::BlockType;
use pocketune_kernels::blocks::{Floats, Meaning, Packed, Scales};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model::ModelFiles;
use crate::tensor::{Element, TensorInfo};

/// Most bytes of what bitsandbytes says of a matrix; real ones have some two hundred.
const MAX_STATE: usize = 1 << 14;

/// How many elements may share a scale. Real ones have 32 to 4,096; with fewer than these the scales would outweigh the elements.
const SHARING: RangeInclusive<usize> = 16..=4096;

/// A packed matrix of a model's files.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Where its parts lie.
    pub packed: Packed<Part>,
}

/// A part of one of a model's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Which of the files.
    pub file: usize,
    /// Where it begins; `offset + bytes` lies inside the file.
    pub offset: usize,
    /// Its length.
    pub bytes: usize,
}

impl Part {
    fn of(info: &TensorInfo) -> Self {
        Self { file: info.file, offset: info.offset, bytes: info.bytes }
    }

    /// The bytes of elements `of` of `whole`, from the file's beginning.
    pub(crate) fn range(&self, of: Range<usize>, whole: usize) -> Range<usize> {
        let at = |element: usize| self.offset + (self.bytes as u64 * element as u64 / whole.max(1) as u64) as usize;
        at(of.start)..at(of.end)
    }
}

/// What bitsandbytes says of a matrix.
#[derive(Deserialize)]
struct QuantState {
    blocksize: usize,
    shape: Vec<usize>,
    dtype: String,
    #[serde(default)]
    nested_blocksize: usize,
    #[serde(default)]
    nested_offset: f32,
}

impl PackedMatrix {
    /// The packed matrix `name` of a model, or `None` where it is missing or not packed.
    ///
    /// # Errors
    /// When what belongs to it is missing or doesn't fit.
    pub fn find(files: &ModelFiles, name: &str) -> Result<Option<Self>> {
        let reader = Reader { files, name };
        let Some(info) = files.info(name) else { return Ok(None) };
        match &info.element {
            Element::Other(ty) if &**ty == "u8" => reader.table(info).map(Some),
            Element::Other(ty) if &**ty == "u32" => reader.groups(info).map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes of everything that grows with the matrix.
    pub fn bytes(&self) -> usize {
        let mut bytes = 0;
        self.packed.each_part(|part| bytes += part.bytes);
        bytes
    }
}

/// Reads what belongs to the matrix `name`.
struct Reader<'a> {
    files: &'a ModelFiles,
    name: &'a str,
}

impl<'a> Reader<'a> {
    fn fault(&self, fault: String) -> Error {
        Error::Packed { path: self.files.path().into(), tensor: self.name.into(), fault }
    }

    fn part(&self, name: &str) -> Result<&'a TensorInfo> {
        self.files.info(name).ok_or_else(|| self.fault(format!("{name} is missing")))
    }

    /// A tensor of `len` floats.
    fn floats(&self, name: &str, len: usize) -> Result<Floats<Part>> {
        let info = self.part(name)?;
        let Element::Block(ty @ (BlockType::F32 | BlockType::F16 | BlockType::BF16)) = info.element else {
            return Err(self.fault(format!("{name} has elements of type {}, not floats", info.element.name())));
        };
        if info.elements() != len {
            return Err(self.fault(format!("{name} has {} elements instead of {len}", info.elements())));
        }
        Ok(Floats { ty, data: Part::of(info) })
    }

    fn table(&self, info: &TensorInfo) -> Result<PackedMatrix> {
        let name = self.name;
        let state = ["nf4", "fp4"].map(|kind| format!("{name}.quant_state.bitsandbytes__{kind}"));
        let state = state.iter().find_map(|name| self.files.info(name));
        let state = state.ok_or_else(|| self.fault("u8, and no quant_state of bitsandbytes beside it".into()))?;
        if state.bytes > MAX_STATE {
            return Err(self.fault(format!("its quant_state has {} bytes; at most {MAX_STATE} are read", state.bytes)));
        }
        let state: QuantState = serde_json::from_slice(self.files.bytes(state))
            .map_err(|error| self.fault(format!("its quant_state is malformed: {error}")))?;
        let &[rows, cols] = &state.shape[..] else {
            return Err(self.fault(format!("its quant_state has the shape {:?} instead of two numbers", state.shape)));
        };
        let elements = rows.checked_mul(cols).filter(|n| n.div_ceil(2) == info.bytes && *n > 0);
        let elements = elements.ok_or_else(|| self.fault(format!("{} bytes can't be {rows} x {cols}", info.bytes)))?;
        self.check_sharing(state.blocksize)?;
        let count = elements.div_ceil(state.blocksize);
        let scales = self.block_scales(&state, count)?;
        let table = self.floats(&format!("{name}.quant_map"), 16)?;
        let rounded = match &*state.dtype {
            "float16" => BlockType::F16,
            "bfloat16" => BlockType::BF16,
            _ => BlockType::F32,
        };
        let meaning = Meaning::Table { table, scales, rounded };
        let packed = Packed { integers: Part::of(info), bits: 4, run: state.blocksize, meaning };
        Ok(PackedMatrix { rows, cols, packed })
    }

    fn block_scales(&self, state: &QuantState, count: usize) -> Result<Scales<Part>> {
        let name = format!("{}.absmax", self.name);
        let info = self.part(&name)?;
        if !matches!(&info.element, Element::Other(ty) if &**ty == "u8") {
            return self.floats(&name, count).map(Scales::Plain);
        }
        let block = state.nested_blocksize;
        if info.bytes != count || block == 0 {
            let found = info.bytes;
            return Err(self.fault(format!("{name} has {found} scales instead of {count}, in blocks of {block}")));
        }
        Ok(Scales::Nested {
            integers: Part::of(info),
            table: self.floats(&format!("{}.nested_quant_map", self.name), 256)?,
            run: block,
            scales: self.floats(&format!("{}.nested_absmax", self.name), count.div_ceil(block))?,
            offset: state.nested_offset,
        })
    }

    fn groups(&self, info: &TensorInfo) -> Result<PackedMatrix> {
        let stem = self.name.strip_suffix(".weight").unwrap_or(self.name);
        let &[rows, words] = &info.shape[..] else {
            return Err(self.fault(format!("u32 of the shape {:?} is no packed matrix", info.shape)));
        };
        let config = self.files.hf_config().and_then(|config| config.get("quantization"));
        // A module may have numbers of its own.
        let size = |value: &serde_json::Value| value.get("group_size").and_then(serde_json::Value::as_u64);
        let group = config.and_then(|config| config.get(stem).and_then(size).or_else(|| size(config)));
        let group = group.and_then(|group| usize::try_from(group).ok());
        let group = group.ok_or_else(|| self.fault("u32, and config.json names no group_size of MLX".into()))?;
        self.check_sharing(group)?;
        let groups = match *self.part(&format!("{stem}.scales"))?.shape {
            [found, groups] if found == rows && groups > 0 => groups,
            _ => return Err(self.fault(format!("{stem}.scales does not have {rows} rows"))),
        };
        let cols = groups.checked_mul(group).filter(|&cols| rows > 0 && cols < 1 << 30);
        let cols = cols.ok_or_else(|| self.fault(format!("{groups} groups of {group} are too many")))?;
        let bits = 32 * words / cols;
        if !matches!(bits, 2 | 4 | 8) || 32 * words != bits * cols {
            return Err(self.fault(format!("{words} words for {cols} elements: only those of 2, 4 or 8 bits are read")));
        }
        let scales = self.floats(&format!("{stem}.scales"), rows * groups)?;
        let biases = self.floats(&format!("{stem}.biases"), rows * groups)?;
        let packed = Packed { integers: Part::of(info), bits, run: group, meaning: Meaning::Affine { scales, biases } };
        Ok(PackedMatrix { rows, cols, packed })
    }

    fn check_sharing(&self, elements: usize) -> Result<()> {
        if SHARING.contains(&elements) {
            return Ok(());
        }
        let (least, most) = (SHARING.start(), SHARING.end());
        Err(self.fault(format!("{elements} elements share a scale; it is between {least} and {most}")))
    }
}
