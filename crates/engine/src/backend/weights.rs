//! Binds a graph's frozen matrices and vectors to a model's mapped tensors, after checking that they are there in the right shape.

use std::ops::Range;

use pocketune_formats::{ModelFiles, Tensor};
use pocketune_kernels::matmul::Weight;
use pocketune_kernels::{BlockType, blocks};

use crate::error::{Error, Result};
use crate::families::{Config, Family, gguf_name};
use crate::graph::{Graph, VectorId, WeightId};

/// Bytes that the system maps around a page that is touched.
pub const FAULT_AROUND: usize = 64 << 10;

/// How far beyond a part pages are released: recent kernels map whole stretches of the page cache, up to a large page.
const RELEASE_MARGIN: usize = 2 << 20;

/// A model's files with the places of what a graph needs from them.
pub struct Weights {
    files: ModelFiles,
    matrices: Vec<Place>,
    vectors: Vec<Place>,
}

#[derive(Clone)]
struct Place {
    name: String,
    ty: BlockType,
    rows: usize,
    cols: usize,
    file: usize,
    offset: usize,
    bytes: usize,
}

impl Weights {
    /// Finds every tensor of `graph` in `files`.
    ///
    /// # Errors
    /// When one is missing, or has another shape or an element type that can't be read.
    pub fn bind(files: ModelFiles, config: &Config, graph: &Graph) -> Result<Self> {
        let family = config.family;
        let mut matrices = Vec::new();
        for decl in &graph.weights {
            let tensor = find(&files, family, &decl.name)?;
            let fits = tensor.shape == [decl.rows, decl.cols];
            matrices.push(place(&files, &tensor, decl.rows, decl.cols, fits)?);
        }
        let mut vectors = Vec::new();
        for decl in &graph.vectors {
            let tensor = find(&files, family, &decl.name)?;
            let fits = tensor.shape == [decl.len];
            vectors.push(place(&files, &tensor, 1, decl.len, fits)?);
        }
        Ok(Self { files, matrices, vectors })
    }

    /// How each matrix is stored.
    pub fn types(&self) -> Vec<BlockType> {
        self.matrices.iter().map(|place| place.ty).collect()
    }

    /// The matrix as kernels read it.
    pub fn matrix(&self, id: WeightId) -> Weight<'_> {
        let place = &self.matrices[id.0];
        Weight::new(place.ty, place.rows, place.cols, self.bytes(place))
    }

    /// Lets the pages of a matrix go; the next read brings them back.
    pub fn release(&self, id: WeightId) {
        let place = &self.matrices[id.0];
        self.release_range(place.file, place.offset, place.bytes);
    }

    /// Lets the pages of some rows go.
    pub fn release_rows(&self, id: WeightId, rows: Range<usize>) {
        let place = &self.matrices[id.0];
        let row = place.bytes / place.rows.max(1);
        self.release_range(place.file, place.offset + rows.start * row, rows.len() * row);
    }

    /// With what the system mapped around it.
    fn release_range(&self, file: usize, offset: usize, bytes: usize) {
        let file = &self.files.files()[file];
        let start = offset.saturating_sub(RELEASE_MARGIN);
        let end = (offset + bytes + RELEASE_MARGIN).min(file.bytes().len());
        file.release(start, end - start);
    }

    /// Reads a vector into `out`, adding `plus` to every element.
    ///
    /// # Errors
    /// When an element is not finite.
    pub fn read_vector(&self, id: VectorId, plus: f32, out: &mut [f32]) -> Result<()> {
        let place = &self.vectors[id.0];
        blocks::dequantize(place.ty, self.bytes(place), out);
        // It is never read again.
        self.release_range(place.file, place.offset, place.bytes);
        if let Some(at) = out.iter().position(|x| !x.is_finite()) {
            return Err(self.not_finite(place, at, out[at]));
        }
        out.iter_mut().for_each(|x| *x += plus);
        Ok(())
    }

    /// Looks for the first element that is not finite, in every matrix: what to do when a loss came out as NaN.
    pub fn find_not_finite(&self) -> Option<Error> {
        for place in &self.matrices {
            let row_bytes = place.bytes / place.rows.max(1);
            let mut row = vec![0.0; place.cols];
            for (at, bytes) in self.bytes(place).chunks_exact(row_bytes.max(1)).enumerate() {
                blocks::dequantize(place.ty, bytes, &mut row);
                if let Some(col) = row.iter().position(|x| !x.is_finite()) {
                    return Some(self.not_finite(place, at * place.cols + col, row[col]));
                }
            }
        }
        None
    }

    /// Bytes of all tensors that a step reads.
    pub fn mapped_bytes(&self) -> usize {
        self.matrices.iter().map(|place| place.bytes).sum()
    }

    /// The files behind it.
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    fn bytes(&self, place: &Place) -> &[u8] {
        &self.files.files()[place.file].bytes()[place.offset..place.offset + place.bytes]
    }

    fn not_finite(&self, place: &Place, at: usize, found: f32) -> Error {
        let fault = format!("tensor {} holds {found} at element {at}", place.name);
        Error::Model { path: self.files.path().into(), fault }
    }
}

fn find<'a>(files: &'a ModelFiles, family: Family, hf: &str) -> Result<Tensor<'a>> {
    let name = if files.gguf().is_some() { gguf_name(family, hf).unwrap_or_else(|| hf.into()) } else { hf.into() };
    let missing = || Error::Model { path: files.path().into(), fault: format!("tensor {name} is missing") };
    files.tensor(&name)?.ok_or_else(missing)
}

fn place(files: &ModelFiles, tensor: &Tensor, rows: usize, cols: usize, fits: bool) -> Result<Place> {
    let whole = tensor.ty.row_bytes(cols).and_then(|row| row.checked_mul(rows)) == Some(tensor.data.len());
    if !fits || !whole {
        let wanted = if rows == 1 { format!("[{cols}]") } else { format!("[{rows}, {cols}]") };
        let fault =
            format!("tensor {} has shape {:?} where the configuration says {wanted}", tensor.name, tensor.shape);
        return Err(Error::Model { path: files.path().into(), fault });
    }
    Ok(Place {
        name: tensor.name.into(),
        ty: tensor.ty,
        rows,
        cols,
        file: tensor.file,
        offset: tensor.offset,
        bytes: tensor.data.len(),
    })
}
