//! A model's files, whatever their format: decided by content, never by the name's ending.
//!
//! Opening maps files and reads their headers; no weight is touched, and nothing of what the model computes is known here.

use std::ops::Range;
use std::path::{Path, PathBuf};

use pocketune_kernels::BlockType;

use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::gguf::{self, Gguf};
use crate::hf::HfFolder;
use crate::mapped::{self, Mapped};
use crate::packed::Part;
use crate::tensor::{Element, Tensor, TensorInfo, TensorList};

/// The mapped files of one model.
#[derive(Debug)]
pub struct ModelFiles {
    path: PathBuf,
    files: Vec<Mapped>,
    tensors: TensorList,
    format: Format,
}

#[derive(Debug)]
enum Format {
    Gguf(Gguf),
    Hf(HfFolder),
}

impl ModelFiles {
    /// Opens a GGUF file or a Hugging Face folder.
    ///
    /// # Errors
    /// When it is missing, something else, or malformed.
    pub fn open(path: &Path) -> Result<Self> {
        if mapped::metadata(path)?.is_dir() {
            return Self::from_folder(Folder::open(path)?);
        }
        let file = Mapped::open(path)?;
        if !file.bytes().starts_with(&gguf::MAGIC) {
            return Err(Error::NotAModel { path: path.into(), found: looks_like(file.bytes()) });
        }
        Self::from_gguf(file)
    }

    /// Opens a Hugging Face folder.
    ///
    /// # Errors
    /// When a file is missing or malformed.
    pub fn from_folder(folder: Folder) -> Result<Self> {
        let path = folder.path().to_path_buf();
        let (folder, files, tensors) = HfFolder::read(folder)?;
        Ok(Self { path, files, tensors, format: Format::Hf(folder) })
    }

    /// Opens a GGUF file that is mapped, or held by the program.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn from_gguf(file: Mapped) -> Result<Self> {
        let path = file.path().to_path_buf();
        let (gguf, tensors) = Gguf::read(&file, 0)?;
        match gguf.meta().get_u64("split.count")? {
            Some(parts) if parts > 1 => Err(Error::SplitGguf { path, parts }),
            _ => Ok(Self { path, files: vec![file], tensors, format: Format::Gguf(gguf) }),
        }
    }

    /// The tensor of that name, or `None` when the model has none.
    ///
    /// # Errors
    /// When its element type can't be read.
    pub fn tensor(&self, name: &str) -> Result<Option<Tensor<'_>>> {
        let Some(info) = self.tensors.find(name) else {
            return Ok(None);
        };
        read(&self.path, &self.files, info).map(Some)
    }

    /// The entry of that name, of whatever element type.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.find(name)
    }

    /// The bytes of a part of one of its files.
    ///
    /// # Panics
    /// When the file is shorter.
    pub fn part(&self, part: &Part) -> &[u8] {
        &self.files[part.file].bytes()[part.offset..part.offset + part.bytes]
    }

    /// Asks the system to load elements `of` of a part of `whole` soon.
    pub fn read_ahead(&self, part: &Part, of: Range<usize>, whole: usize) {
        let bytes = part.range(of, whole);
        self.files[part.file].read_ahead(bytes.start, bytes.len());
    }

    /// Maps the ends of elements `of` of a part of `whole`, and nothing beyond them.
    pub fn enter(&self, part: &Part, of: Range<usize>, whole: usize) {
        let bytes = part.range(of, whole);
        self.files[part.file].enter(bytes.start, bytes.len());
    }

    /// Lets the pages of elements `of` of a part of `whole` go, and those around them.
    pub fn release(&self, part: &Part, of: Range<usize>, whole: usize) {
        let bytes = part.range(of, whole);
        self.files[part.file].release(bytes.start, bytes.len());
    }

    /// The bytes of a listed tensor.
    pub(crate) fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.files[info.file].bytes()[info.offset..info.offset + info.bytes]
    }

    /// All tensors in the order of the files, those of unsupported element types included.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = &TensorInfo> {
        self.tensors.as_slice().iter()
    }

    /// The GGUF header, where the model is a GGUF file.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.format {
            Format::Gguf(gguf) => Some(gguf),
            Format::Hf(_) => None,
        }
    }

    /// The content of `config.json`, where the model is a Hugging Face folder.
    pub fn hf_config(&self) -> Option<&serde_json::Value> {
        match &self.format {
            Format::Gguf(_) => None,
            Format::Hf(folder) => Some(folder.config()),
        }
    }

    /// What was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The Hugging Face folder, where it is one.
    pub fn folder(&self) -> Option<&Folder> {
        match &self.format {
            Format::Gguf(_) => None,
            Format::Hf(folder) => Some(folder.folder()),
        }
    }

    /// The mapped files that hold tensors.
    pub fn files(&self) -> &[Mapped] {
        &self.files
    }
}

/// A listed tensor with its bytes, when its elements can be read.
pub(crate) fn read<'a>(path: &Path, files: &'a [Mapped], info: &'a TensorInfo) -> Result<Tensor<'a>> {
    match &info.element {
        &Element::Block(ty) => {
            let data = &files[info.file].bytes()[info.offset..info.offset + info.bytes];
            Ok(Tensor { name: &info.name, ty, shape: &info.shape, data, file: info.file, offset: info.offset })
        }
        Element::Other(found) => Err(Error::UnsupportedType {
            path: path.into(),
            tensor: info.name.to_string(),
            found: found.to_string(),
            supported: BlockType::ALL.map(BlockType::name).join(", "),
        }),
    }
}

/// What a file that is no GGUF seems to be.
fn looks_like(bytes: &[u8]) -> &'static str {
    if is_safetensors(bytes) {
        "a safetensors file alone, without a configuration (give its folder instead)"
    } else if bytes.starts_with(b"PK\x03\x04") {
        "a ZIP archive or PyTorch checkpoint"
    } else if bytes.starts_with(b"version https://git-lfs") {
        "a Git LFS pointer instead of the file itself (run `git lfs pull`)"
    } else if bytes.trim_ascii_start().starts_with(b"<") {
        "a web page, perhaps saved by a failed download"
    } else if [b"lmgg", b"fmgg", b"tjgg"].iter().any(|old| bytes.starts_with(*old)) {
        "a GGML file from before GGUF (convert it with llama.cpp)"
    } else {
        "neither \"GGUF\" nor anything known at its beginning"
    }
}

/// Whether the file begins like safetensors: a small length and a JSON object.
pub(crate) fn is_safetensors(bytes: &[u8]) -> bool {
    matches!(bytes, [_, _, _, _, 0, 0, 0, 0, b'{', ..])
}
