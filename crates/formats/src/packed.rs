//! Matrices that other runtimes packed into safetensors: bitsandbytes' 4-bit (NF4 and FP4, also with doubly quantised scales) and MLX's groups of 2,
//! 4 or 8 bits. They are read row by row, to become a file that a step can read; a step itself never reads them. Which it is shows from the
//! tensors beside the matrix. It refuses shapes that don't fit together and widths that cross a word.
//!
//! ```text
//! bitsandbytes: X.weight u8 [n/2, 1], the first of two elements in the high bits, rows one after the other in blocks of `blocksize`;
//!   X.weight.absmax, X.weight.quant_map f32 [16], X.weight.quant_state.bitsandbytes__nf4: JSON;  y = quant_map[q] absmax
//!   doubly: absmax u8, nested_absmax f32, nested_quant_map f32 [256];  absmax = nested_quant_map[u] nested_absmax + nested_offset
//! MLX: X.weight u32 [rows, cols bits / 32], the first element in the low bits; X.scales, X.biases [rows, groups];  y = scale q + bias
//! ```

use half::{bf16, f16};
use pocketune_kernels::BlockType;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::model::ModelFiles;
use crate::tensor::{Element, TensorInfo};

/// Most bytes of what bitsandbytes says of a matrix; real ones have some two hundred.
const MAX_STATE: usize = 1 << 14;

/// A packed matrix.
pub struct Packed<'a> {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// The bytes of its integers.
    info: &'a TensorInfo,
    data: &'a [u8],
    kind: Kind<'a>,
}

enum Kind<'a> {
    /// Blocks over all rows together; a table, the scale of each block, and what elements are rounded to.
    Table { table: Floats<'a>, block: usize, scales: Scales<'a>, ty: BlockType },
    /// Groups of a row: bits of an element, elements of a group, and the scale and the bias of each group.
    Groups { bits: usize, group: usize, scales: Floats<'a>, biases: Floats<'a> },
}

/// The scales of blocks.
enum Scales<'a> {
    Plain(Floats<'a>),
    /// Quantised themselves, in blocks.
    Nested {
        integers: &'a [u8],
        table: Floats<'a>,
        block: usize,
        scales: Floats<'a>,
        offset: f32,
    },
}

impl Scales<'_> {
    fn at(&self, at: usize) -> f32 {
        match self {
            Scales::Plain(scales) => scales.at(at),
            Scales::Nested { integers, table, block, scales, offset } => {
                table.at(usize::from(integers[at])) * scales.at(at / block) + offset
            }
        }
    }
}

/// Floats as the file has them; it is checked that they are there.
#[derive(Clone, Copy)]
struct Floats<'a> {
    ty: BlockType,
    data: &'a [u8],
}

impl Floats<'_> {
    fn at(&self, at: usize) -> f32 {
        let two = |at: usize| [self.data[2 * at], self.data[2 * at + 1]];
        match self.ty {
            BlockType::F16 => f16::from_le_bytes(two(at)).to_f32(),
            BlockType::BF16 => bf16::from_le_bytes(two(at)).to_f32(),
            _ => f32::from_le_bytes(self.data.as_chunks().0[at]),
        }
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

impl<'a> Packed<'a> {
    /// The packed matrix `name` of a model, or `None` where it is missing or not packed.
    ///
    /// # Errors
    /// When what belongs to it is missing or doesn't fit.
    pub fn find(files: &'a ModelFiles, name: &str) -> Result<Option<Self>> {
        let reader = Reader { files, name };
        let Some(info) = files.info(name) else { return Ok(None) };
        match &info.element {
            Element::Other(ty) if &**ty == "u8" => reader.table(info).map(Some),
            Element::Other(ty) if &**ty == "u32" => reader.groups(info).map(Some),
            _ => Ok(None),
        }
    }

    /// The tensor of its integers.
    pub fn info(&self) -> &'a TensorInfo {
        self.info
    }

    /// Reads row `row`.
    ///
    /// # Panics
    /// When there is no such row or `to` has another length.
    pub fn read(&self, row: usize, to: &mut [f32]) {
        assert!(row < self.rows && to.len() == self.cols, "row {row} of {} x {}", self.rows, self.cols);
        match &self.kind {
            Kind::Table { table, block, scales, ty } => {
                for (col, to) in to.iter_mut().enumerate() {
                    let at = row * self.cols + col;
                    let byte = self.data[at / 2];
                    let q = if at.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
                    *to = rounded(table.at(usize::from(q)) * scales.at(at / block), *ty);
                }
            }
            Kind::Groups { bits, group, scales, biases } => {
                let (in_word, groups) = (32 / bits, self.cols / group);
                let words = &self.data.as_chunks::<4>().0[row * self.cols / in_word..];
                for (col, to) in to.iter_mut().enumerate() {
                    let word = u32::from_le_bytes(words[col / in_word]);
                    let q = (word >> (col % in_word * bits)) & ((1 << bits) - 1);
                    let at = row * groups + col / group;
                    *to = scales.at(at) * q as f32 + biases.at(at);
                }
            }
        }
    }
}

/// What the other runtime would compute with.
fn rounded(x: f32, ty: BlockType) -> f32 {
    match ty {
        BlockType::F16 => f16::from_f32(x).to_f32(),
        BlockType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

/// Reads what belongs to the matrix `name`.
struct Reader<'a, 'n> {
    files: &'a ModelFiles,
    name: &'n str,
}

impl<'a> Reader<'a, '_> {
    fn fault(&self, fault: String) -> Error {
        Error::Packed { path: self.files.path().into(), tensor: self.name.into(), fault }
    }

    fn part(&self, name: &str) -> Result<&'a TensorInfo> {
        self.files.info(name).ok_or_else(|| self.fault(format!("{name} is missing")))
    }

    /// A tensor of `len` floats.
    fn floats(&self, name: &str, len: usize) -> Result<Floats<'a>> {
        let info = self.part(name)?;
        let Element::Block(ty @ (BlockType::F32 | BlockType::F16 | BlockType::BF16)) = info.element else {
            return Err(self.fault(format!("{name} has elements of type {}, not floats", info.element.name())));
        };
        if info.elements() != len {
            return Err(self.fault(format!("{name} has {} elements instead of {len}", info.elements())));
        }
        Ok(Floats { ty, data: self.files.bytes(info) })
    }

    fn table(&self, info: &'a TensorInfo) -> Result<Packed<'a>> {
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
        if state.blocksize == 0 {
            return Err(self.fault("its blocks have 0 elements".into()));
        }
        let count = elements.div_ceil(state.blocksize);
        let scales = self.block_scales(&state, count)?;
        let table = self.floats(&format!("{name}.quant_map"), 16)?;
        let ty = match &*state.dtype {
            "float16" => BlockType::F16,
            "bfloat16" => BlockType::BF16,
            _ => BlockType::F32,
        };
        let kind = Kind::Table { table, block: state.blocksize, scales, ty };
        Ok(Packed { rows, cols, info, data: self.files.bytes(info), kind })
    }

    fn block_scales(&self, state: &QuantState, count: usize) -> Result<Scales<'a>> {
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
            integers: self.files.bytes(info),
            table: self.floats(&format!("{}.nested_quant_map", self.name), 256)?,
            block,
            scales: self.floats(&format!("{}.nested_absmax", self.name), count.div_ceil(block))?,
            offset: state.nested_offset,
        })
    }

    fn groups(&self, info: &'a TensorInfo) -> Result<Packed<'a>> {
        let stem = self.name.strip_suffix(".weight").unwrap_or(self.name);
        let &[rows, words] = &info.shape[..] else {
            return Err(self.fault(format!("u32 of the shape {:?} is no packed matrix", info.shape)));
        };
        let config = self.files.hf_config().and_then(|config| config.get("quantization"));
        // A module may have numbers of its own.
        let size = |value: &serde_json::Value| value.get("group_size").and_then(serde_json::Value::as_u64);
        let group = config.and_then(|config| config.get(stem).and_then(size).or_else(|| size(config)));
        let group = group.and_then(|group| usize::try_from(group).ok()).filter(|group| (1..=4096).contains(group));
        let group = group.ok_or_else(|| self.fault("u32, and config.json names no group_size of MLX".into()))?;
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
        let kind = Kind::Groups { bits, group, scales, biases };
        Ok(Packed { rows, cols, info, data: self.files.bytes(info), kind })
    }
}
