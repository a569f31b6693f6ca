//! The rows of a tensor as a file is to hold them: dequantised a few at a time, in Hugging Face's order or llama.cpp's, norms as the format
//! keeps them. It never holds more than what it is asked for, and lets pages go that were read.

use pocketune_formats::{BlockType, ModelFiles, PackedMatrix, Part, Tensor, TensorInfo};
use pocketune_kernels::Isa;
use pocketune_kernels::dequant::{Source, dequantize};

use crate::error::Result;
use crate::graph::{hugging_face_row, llama_row};

/// What rows are read from.
enum From<'a> {
    Blocks(Tensor<'a>),
    /// Packed by another runtime.
    Packed(&'a TensorInfo, PackedMatrix),
}

/// From one order of rows to the other, for heads of so many elements.
#[derive(Clone, Copy)]
enum Turned {
    /// From Hugging Face's order to llama.cpp's.
    ToLlama(usize),
    /// The way back.
    ToHuggingFace(usize),
}

/// Rows of a tensor.
pub(super) struct Rows<'a> {
    files: &'a ModelFiles,
    from: From<'a>,
    pub rows: usize,
    pub cols: usize,
    /// Where rows go from one order to the other.
    turned: Option<Turned>,
    /// Every element is multiplied with this after [`Rows::plus`] was added.
    pub times: f32,
    /// Added to every element.
    pub plus: f32,
}

impl<'a> Rows<'a> {
    /// The tensor `name` of a model as it is: a matrix by its rows, anything else as one row.
    ///
    /// # Errors
    /// When its elements can't be read.
    pub fn find(files: &'a ModelFiles, name: &str) -> Result<Option<Self>> {
        let plain = |from, rows, cols| Self { files, from, rows, cols, turned: None, times: 1.0, plus: 0.0 };
        if let (Some(info), Some(matrix)) = (files.info(name), PackedMatrix::find(files, name)?) {
            let (rows, cols) = (matrix.rows, matrix.cols);
            return Ok(Some(plain(From::Packed(info, matrix), rows, cols)));
        }
        let Some(tensor) = files.tensor(name)? else { return Ok(None) };
        let elements: usize = tensor.shape.iter().product();
        let cols = tensor.shape.last().copied().unwrap_or(1);
        Ok(Some(plain(From::Blocks(tensor), elements / cols.max(1), cols)))
    }

    /// Its rows one by one in llama.cpp's order, for heads of `d` elements; a vector's elements are its rows.
    pub fn turned(self, d: usize) -> Self {
        self.by_rows(Turned::ToLlama(d))
    }

    fn by_rows(self, turned: Turned) -> Self {
        let (rows, cols) = if self.rows == 1 { (self.cols, 1) } else { (self.rows, self.cols) };
        Self { rows, cols, turned: Some(turned), ..self }
    }

    /// Its numbers as they were before they went the way of `there`: in its order, multiplied and added to as in its file.
    pub fn back(mut self, there: &Rows) -> Self {
        (self.times, self.plus) = (1.0 / there.times, -there.plus * there.times);
        match there.turned {
            Some(Turned::ToLlama(d) | Turned::ToHuggingFace(d)) => self.by_rows(Turned::ToHuggingFace(d)),
            None => self,
        }
    }

    /// The name in the file that is read.
    pub fn name(&self) -> &'a str {
        match &self.from {
            From::Blocks(tensor) => tensor.name,
            From::Packed(info, _) => &info.name,
        }
    }

    /// In how many places of the files it lies.
    pub fn places(&self) -> usize {
        match &self.from {
            From::Blocks(_) => 1,
            From::Packed(_, matrix) => {
                let mut places = 0;
                matrix.packed.each_part(|_| places += 1);
                places
            }
        }
    }

    /// Outermost dimension first, in the file that is read.
    pub fn shape(&self) -> Vec<usize> {
        match &self.from {
            From::Blocks(tensor) => tensor.shape.to_vec(),
            From::Packed(_, matrix) => vec![matrix.rows, matrix.cols],
        }
    }

    /// The type in the file that is read, where it is one of ours.
    pub fn ty(&self) -> Option<BlockType> {
        match &self.from {
            From::Blocks(tensor) => Some(tensor.ty),
            From::Packed(..) => None,
        }
    }

    /// The bytes of the tensor, where a file that holds it as `ty` has the same.
    pub fn unchanged(&self, ty: BlockType) -> Option<&'a [u8]> {
        match &self.from {
            From::Blocks(tensor) if tensor.ty == ty => {
                (self.turned.is_none() && self.times == 1.0 && self.plus == 0.0).then_some(tensor.data)
            }
            _ => None,
        }
    }

    /// The row of the file that is read which becomes row `row`.
    pub fn source_row(&self, row: usize) -> usize {
        match self.turned {
            None => row,
            Some(Turned::ToLlama(d)) => hugging_face_row(row, d),
            Some(Turned::ToHuggingFace(d)) => llama_row(row, d),
        }
    }

    /// Reads rows from `first` on into `to`, a whole number of them.
    pub fn read(&self, isa: Isa, first: usize, to: &mut [f32]) {
        for (at, to) in to.chunks_exact_mut(self.cols).enumerate() {
            let row = self.source_row(first + at);
            match &self.from {
                From::Blocks(tensor) => {
                    let bytes = tensor.data.len() / self.rows.max(1);
                    dequantize(isa, Source::Blocks(tensor.ty, &tensor.data[row * bytes..(row + 1) * bytes]), to);
                }
                From::Packed(_, matrix) => {
                    let packed = matrix.packed.map(|part| self.files.part(part));
                    dequantize(isa, Source::Packed(&packed, row * self.cols), to);
                }
            }
        }
        if self.plus != 0.0 || self.times != 1.0 {
            to.iter_mut().for_each(|x| *x = (*x + self.plus) * self.times);
        }
    }

    /// Lets the pages of rows go that lie around `first..first + count`.
    pub fn release(&self, first: usize, count: usize) {
        let release = |part: &Part| self.files.release(part, first..first + count, self.rows);
        match &self.from {
            From::Blocks(tensor) => {
                release(&Part { file: tensor.file, offset: tensor.offset, bytes: tensor.data.len() });
            }
            From::Packed(_, matrix) => matrix.packed.each_part(release),
        }
    }
}
