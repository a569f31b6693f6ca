//! Binds a graph's frozen matrices and vectors to a model's mapped tensors, after checking that they are there in the right shape.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pocketune_formats::{ModelFiles, PackedMatrix, Part};
use pocketune_kernels::blocks::{Packed, quantize};
use pocketune_kernels::matmul::{Weight, counted_as};
use pocketune_kernels::{BlockType, Isa};

use crate::error::{Error, Result};
use crate::families::{Config, Family, gguf_name};
use crate::graph::{Graph, VectorId, WeightId};

/// A model's files with the places of what a graph needs from them.
pub struct Weights {
    files: ModelFiles,
    matrices: Vec<Place>,
    vectors: Vec<Place>,
    /// The one file behind it, to be written, where the model itself is trained. What is written is seen through the mapping at once: both are
    /// the system's cache of the same file.
    store: Option<File>,
}

#[derive(Clone)]
struct Place {
    name: String,
    ty: BlockType,
    rows: usize,
    cols: usize,
    data: Data,
}

/// Where elements lie.
#[derive(Clone)]
enum Data {
    /// In blocks.
    Blocks(Part),
    /// As another runtime packed them.
    Packed(Packed<Part>),
}

impl Data {
    fn each_part(&self, mut see: impl FnMut(&Part)) {
        match self {
            Data::Blocks(part) => see(part),
            Data::Packed(packed) => packed.each_part(see),
        }
    }
}

/// How a frozen matrix is stored, as far as a plan is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its type, or the one that a packed matrix counts as.
    pub ty: BlockType,
    /// In how many places of its files it lies.
    pub places: usize,
}

impl From<BlockType> for Stored {
    fn from(ty: BlockType) -> Self {
        Self { ty, places: 1 }
    }
}

impl Weights {
    /// Finds every tensor of `graph` in `files`.
    ///
    /// # Errors
    /// When one is missing, or has another shape or an element type that can't be read.
    pub fn bind(files: ModelFiles, config: &Config, graph: &Graph) -> Result<Self> {
        let family = Some(config.family);
        let mut matrices = Vec::new();
        for decl in &graph.weights {
            matrices.push(place(&files, family, &decl.name, &[decl.rows, decl.cols])?);
        }
        let mut vectors = Vec::new();
        for decl in &graph.vectors {
            vectors.push(place(&files, family, &decl.name, &[decl.len])?);
        }
        Ok(Self { files, matrices, vectors, store: None })
    }

    /// The same over a file of plain floats that may be written.
    pub fn writable(self, store: File) -> Self {
        Self { store: Some(store), ..self }
    }

    /// The file that may be written, where there is one.
    pub fn store(&self) -> Option<&File> {
        self.store.as_ref()
    }

    /// Bytes of a matrix in its file.
    pub fn stored_bytes(&self, id: WeightId) -> usize {
        let mut bytes = 0;
        self.matrices[id.0].data.each_part(|part| bytes += part.bytes);
        bytes
    }

    /// Writes bytes of a matrix, from byte `at` of it on.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, id: WeightId, at: usize, bytes: &[u8]) -> Result<()> {
        self.put(&self.matrices[id.0], at, bytes)
    }

    /// Reads bytes of a matrix from its file, from byte `at` of it on; nothing stays mapped of them.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, id: WeightId, at: usize, bytes: &mut [u8]) -> Result<()> {
        let (store, first) = self.in_store(&self.matrices[id.0]);
        store.read_exact_at(bytes, first + at as u64).map_err(|error| Error::io(self.files.path(), error))
    }

    /// Writes a vector, from whose elements `plus` is taken away as it was added when they were read.
    ///
    /// # Errors
    /// The system's.
    pub fn write_vector(&self, id: VectorId, plus: f32, x: &[f32]) -> Result<()> {
        let place = &self.vectors[id.0];
        let plain: Vec<f32> = x.iter().map(|x| x - plus).collect();
        let mut bytes = vec![0; place.ty.row_bytes(x.len()).unwrap_or(0)];
        quantize(Isa::Scalar, place.ty, &plain, &mut bytes);
        self.put(place, 0, &bytes)
    }

    fn put(&self, place: &Place, at: usize, bytes: &[u8]) -> Result<()> {
        let (store, first) = self.in_store(place);
        store.write_all_at(bytes, first + at as u64).map_err(|error| Error::io(self.files.path(), error))
    }

    /// The file that may be written, and where in it a tensor begins.
    fn in_store(&self, place: &Place) -> (&File, u64) {
        match (&self.store, &place.data) {
            (Some(store), Data::Blocks(part)) => (store, part.offset as u64),
            _ => unreachable!("a model that is trained itself is one file of plain floats"),
        }
    }

    /// How each matrix is stored.
    pub fn stored(&self) -> Vec<Stored> {
        let stored = |place: &Place| {
            let mut places = 0;
            place.data.each_part(|_| places += 1);
            Stored { ty: place.ty, places }
        };
        self.matrices.iter().map(stored).collect()
    }

    /// The matrix as kernels read it.
    pub fn matrix(&self, id: WeightId) -> Weight<'_> {
        self.weight(&self.matrices[id.0])
    }

    /// The bytes of some rows of a matrix in blocks.
    pub fn rows(&self, id: WeightId, rows: Range<usize>) -> &[u8] {
        let Place { ty, cols, data, .. } = &self.matrices[id.0];
        let Data::Blocks(part) = data else { unreachable!("a model that is trained itself is in blocks") };
        let a_row = ty.row_bytes(*cols).unwrap_or(0);
        &self.files.part(part)[rows.start * a_row..rows.end * a_row]
    }

    fn weight(&self, place: &Place) -> Weight<'_> {
        let Place { ty, rows, cols, .. } = *place;
        match &place.data {
            Data::Blocks(part) => Weight::new(ty, rows, cols, self.files.part(part)),
            Data::Packed(packed) => Weight::packed(ty, rows, cols, packed.map(|part| self.files.part(part))),
        }
    }

    /// Asks the system to load some rows while something else is computed.
    pub fn read_ahead(&self, id: WeightId, rows: Range<usize>) {
        let place = &self.matrices[id.0];
        place.data.each_part(|part| self.files.read_ahead(part, rows.start..rows.end.min(place.rows), place.rows));
    }

    /// Maps the ends of some rows that are read next, and nothing beyond them.
    pub fn enter(&self, id: WeightId, rows: Range<usize>) {
        let place = &self.matrices[id.0];
        place.data.each_part(|part| self.files.enter(part, rows.start..rows.end.min(place.rows), place.rows));
    }

    /// Lets the pages of a matrix go; the next read brings them back.
    pub fn release(&self, id: WeightId) {
        self.release_rows(id, 0..self.matrices[id.0].rows);
    }

    /// Lets the pages of some rows go.
    pub fn release_rows(&self, id: WeightId, rows: Range<usize>) {
        self.release_part(&self.matrices[id.0], rows);
    }

    /// With what the system mapped around it.
    fn release_part(&self, place: &Place, rows: Range<usize>) {
        place.data.each_part(|part| self.files.release(part, rows.clone(), place.rows));
    }

    /// Reads a vector into `out`, adding `plus` to every element.
    ///
    /// # Errors
    /// When an element is not finite.
    pub fn read_vector(&self, id: VectorId, plus: f32, out: &mut [f32]) -> Result<()> {
        let place = &self.vectors[id.0];
        self.weight(place).read(Isa::Scalar, 0, 0..place.cols, out);
        // It is never read again.
        self.release_part(place, 0..1);
        if let Some(at) = out.iter().position(|x| !x.is_finite()) {
            return Err(self.not_finite(place, at, out[at]));
        }
        out.iter_mut().for_each(|x| *x += plus);
        Ok(())
    }

    /// Reads the tensor `name`, which no graph needs, where the model has it and it has this shape. Whether it has it.
    ///
    /// # Errors
    /// When it has another shape, or a value that is not finite.
    pub fn read_tensor(&self, name: &str, shape: &[usize], out: &mut [f32]) -> Result<bool> {
        if self.files.info(name).is_none() {
            return Ok(false);
        }
        let place = place(&self.files, None, name, shape)?;
        for (row, out) in out.chunks_exact_mut(place.cols).enumerate() {
            self.weight(&place).read(Isa::Scalar, row, 0..place.cols, out);
        }
        self.release_part(&place, 0..place.rows);
        match out.iter().position(|x| !x.is_finite()) {
            Some(at) => Err(self.not_finite(&place, at, out[at])),
            None => Ok(true),
        }
    }

    /// Looks for the first element that is not finite, in every matrix: what to do when a loss came out as NaN.
    pub fn find_not_finite(&self) -> Option<Error> {
        for place in &self.matrices {
            let mut row = vec![0.0; place.cols];
            for at in 0..place.rows {
                self.weight(place).read(Isa::Scalar, at, 0..place.cols, &mut row);
                if let Some(col) = row.iter().position(|x| !x.is_finite()) {
                    return Some(self.not_finite(place, at * place.cols + col, row[col]));
                }
            }
        }
        None
    }

    /// Bytes of all tensors that a step reads.
    pub fn mapped_bytes(&self) -> usize {
        let mut bytes = 0;
        self.matrices.iter().for_each(|place| place.data.each_part(|part| bytes += part.bytes));
        bytes
    }

    /// The files behind it.
    pub fn files(&self) -> &ModelFiles {
        &self.files
    }

    fn not_finite(&self, place: &Place, at: usize, found: f32) -> Error {
        let fault = format!("tensor {} holds {found} at element {at}", place.name);
        Error::Model { path: self.files.path().into(), fault }
    }
}

/// Finds the tensor that Hugging Face calls `hf`, which has the shape `wanted`.
fn place(files: &ModelFiles, family: Option<Family>, hf: &str, wanted: &[usize]) -> Result<Place> {
    let known = family.filter(|_| files.gguf().is_some()).and_then(|family| gguf_name(family, hf));
    let name = known.unwrap_or_else(|| hf.into());
    let fault = |fault: String| Error::Model { path: files.path().into(), fault };
    let (rows, cols) = if let [rows, cols] = *wanted { (rows, cols) } else { (1, wanted[0]) };
    let (found, ty, data) = match PackedMatrix::find(files, &name)? {
        Some(matrix) => {
            let found = vec![matrix.rows, matrix.cols];
            (found, Some(counted_as(rows, cols, matrix.bytes())), Data::Packed(matrix.packed))
        }
        None => {
            let tensor = files.tensor(&name)?.ok_or_else(|| fault(format!("tensor {name} is missing")))?;
            let (file, offset, bytes) = (tensor.file, tensor.offset, tensor.data.len());
            let whole = tensor.ty.row_bytes(cols).and_then(|row| row.checked_mul(rows)) == Some(bytes);
            (tensor.shape.to_vec(), Some(tensor.ty).filter(|_| whole), Data::Blocks(Part { file, offset, bytes }))
        }
    };
    match ty.filter(|_| found == wanted) {
        Some(ty) => Ok(Place { name, ty, rows, cols, data }),
        None => Err(fault(format!("tensor {name} has shape {found:?} where the configuration says {wanted:?}"))),
    }
}
