//! The rows of a tensor as a file is to hold them: dequantised a few at a time, in Hugging Face's order or llama.cpp's, norms as the format
//! keeps them. It never holds more than what it is asked for, and lets pages go that were read.

use pocketune_formats::{BlockType, ModelFiles, Tensor};
use pocketune_kernels::Isa;
use pocketune_kernels::dequant::dequantize_row;

/// How far beyond what was read pages are released: the system maps around a page that is touched.
const MARGIN: usize = 2 << 20;

/// Rows of a tensor.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    files: &'a ModelFiles,
    tensor: Tensor<'a>,
    pub rows: usize,
    pub cols: usize,
    /// Elements of a head, where rows go from Hugging Face's order to llama.cpp's.
    pub turned: Option<usize>,
    /// Every element is multiplied with this after [`Rows::plus`] was added.
    pub times: f32,
    /// Added to every element.
    pub plus: f32,
}

impl<'a> Rows<'a> {
    /// A tensor as it is: a matrix by its rows, anything else as one row.
    pub fn new(files: &'a ModelFiles, tensor: Tensor<'a>) -> Self {
        let elements: usize = tensor.shape.iter().product();
        let cols = tensor.shape.last().copied().unwrap_or(1);
        Self { files, tensor, rows: elements / cols.max(1), cols, turned: None, times: 1.0, plus: 0.0 }
    }

    /// Its rows one by one in llama.cpp's order, for heads of `d` elements; a vector's elements are its rows.
    pub fn turned(self, d: usize) -> Self {
        let (rows, cols) = if self.rows == 1 { (self.cols, 1) } else { (self.rows, self.cols) };
        Self { rows, cols, turned: Some(d), ..self }
    }

    /// The name in the file that is read.
    pub fn name(&self) -> &'a str {
        self.tensor.name
    }

    /// The type in the file that is read.
    pub fn ty(&self) -> BlockType {
        self.tensor.ty
    }

    /// The bytes of the tensor, where a file that holds it as `ty` has the same.
    pub fn unchanged(&self, ty: BlockType) -> Option<&'a [u8]> {
        let as_it_is = self.tensor.ty == ty && self.turned.is_none() && self.times == 1.0 && self.plus == 0.0;
        as_it_is.then_some(self.tensor.data)
    }

    /// The row of the file that is read which becomes row `row`.
    pub fn source_row(&self, row: usize) -> usize {
        self.turned.map_or(row, |d| hugging_face_row(row, d))
    }

    /// Reads rows from `first` on into `to`, a whole number of them.
    pub fn read(&self, isa: Isa, first: usize, to: &mut [f32]) {
        let bytes = self.tensor.data.len() / self.rows.max(1);
        for (at, to) in to.chunks_exact_mut(self.cols).enumerate() {
            let row = self.source_row(first + at);
            dequantize_row(isa, self.tensor.ty, &self.tensor.data[row * bytes..(row + 1) * bytes], to);
        }
        if self.plus != 0.0 || self.times != 1.0 {
            to.iter_mut().for_each(|x| *x = (*x + self.plus) * self.times);
        }
    }

    /// Lets the pages of rows go that lie around `first..first + count`.
    pub fn release(&self, first: usize, count: usize) {
        let bytes = self.tensor.data.len() / self.rows.max(1);
        let file = &self.files.files()[self.tensor.file];
        let start = (self.tensor.offset + first * bytes).saturating_sub(MARGIN);
        let end = (self.tensor.offset + (first + count) * bytes + MARGIN).min(file.bytes().len());
        file.release(start, end - start);
    }
}

/// The row that Hugging Face's order has where llama.cpp keeps row `row`, for heads of `d` elements.
pub(super) const fn hugging_face_row(row: usize, d: usize) -> usize {
    row / d * d + row % d / 2 + row % 2 * (d / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::llama_row;

    #[test]
    fn each_order_of_rows_undoes_the_other() {
        for d in [2, 4, 64, 80] {
            for row in 0..3 * d {
                assert_eq!(llama_row(hugging_face_row(row, d), d), row);
            }
        }
    }
}
