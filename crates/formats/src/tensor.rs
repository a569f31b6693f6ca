//! A tensor as files hold it: a name, an element type, a shape and a range of bytes; and lists of them, found by name.
//!
//! Ranges are checked by the reader that makes an entry; nothing here reads a file or converts an element.

use pocketune_kernels::BlockType;

/// A tensor that a step can read, with its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The name in the file.
    pub name: &'a str,
    /// How the elements are stored.
    pub ty: BlockType,
    /// Outermost dimension first: a matrix is `[rows, cols]`.
    pub shape: &'a [usize],
    /// The elements, row after row.
    pub data: &'a [u8],
    /// Which of the model's files holds it.
    pub file: usize,
    /// Where in that file the data begins, for reading ahead and releasing.
    pub offset: usize,
}

/// How a file says that elements are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Element {
    /// In a way that a step can read.
    Block(BlockType),
    /// In another way, by its name: listed, never read.
    Other(Box<str>),
}

impl Element {
    /// The name for reports and messages.
    pub fn name(&self) -> &str {
        match self {
            Element::Block(ty) => ty.name(),
            Element::Other(name) => name,
        }
    }
}

/// A tensor of a file's list, of whatever element type.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The name in the file.
    pub name: Box<str>,
    /// How the elements are stored.
    pub element: Element,
    /// Outermost dimension first.
    pub shape: Box<[usize]>,
    /// Which of the model's files holds it.
    pub file: usize,
    /// Where in that file the data begins. `offset + bytes` lies inside the file.
    pub offset: usize,
    /// Bytes of data.
    pub bytes: usize,
}

impl TensorInfo {
    /// Number of elements. The product was checked when the entry was made.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The tensors of a model, in the order of the files, found by name.
#[derive(Debug, Default)]
pub struct TensorList {
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<usize>,
}

impl TensorList {
    /// A list of tensors with distinct names.
    ///
    /// # Errors
    /// The name that two of them have.
    pub fn new(tensors: Vec<TensorInfo>) -> std::result::Result<Self, Box<str>> {
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_unstable_by_key(|&i| &tensors[i].name);
        if let Some(pair) = by_name.windows(2).find(|pair| tensors[pair[0]].name == tensors[pair[1]].name) {
            return Err(tensors[pair[0]].name.clone());
        }
        Ok(Self { tensors, by_name })
    }

    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        let at = self.by_name.binary_search_by_key(&name, |&i| &self.tensors[i].name).ok()?;
        Some(&self.tensors[self.by_name[at]])
    }

    /// All tensors, in the order of the files.
    pub fn as_slice(&self) -> &[TensorInfo] {
        &self.tensors
    }
}
