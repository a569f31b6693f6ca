//! Tensors on their way into a file, strip by strip: the threads of a pool read, quantise and check one strip each, and their bytes go out in
//! order. What is held is a strip for every thread, whatever the size of the model; which thread made a strip changes nothing.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pocketune_formats::BlockType;
use pocketune_kernels::blocks::{largest, quantize};
use pocketune_kernels::{Isa, Pool};

use super::rows::Rows;
use crate::error::{Error, Result};

/// Elements of a strip, where a row has no more.
const STRIP: usize = 1 << 17;

/// Bytes that are copied at a time.
const COPIED: usize = 1 << 20;

/// The threads and what they hold.
pub(super) struct Stream<'a> {
    pool: Pool,
    isa: Isa,
    strips: Vec<Mutex<Strip>>,
    /// What the model is called in messages.
    model: &'a Path,
}

#[derive(Default)]
struct Strip {
    x: Vec<f32>,
    bytes: Vec<u8>,
    /// The first element that the type can't hold, counted from the strip's first.
    bad: Option<(usize, f32)>,
}

impl<'a> Stream<'a> {
    /// With as many threads as the process may use.
    pub fn new(model: &'a Path) -> Result<Self> {
        let io = |error: std::io::Error| Error::System(format!("a thread can't be started: {error}"));
        let pool = Pool::new(crate::threads::default()).map_err(io)?;
        let strips = (0..pool.threads()).map(|_| Mutex::default()).collect();
        Ok(Self { pool, isa: Isa::detect().map_err(Error::System)?, strips, model })
    }

    /// Writes a tensor as `ty`, whose blocks divide its rows.
    pub fn write(&self, rows: &Rows, ty: BlockType, to: &mut Sink) -> Result<()> {
        match rows.unchanged(ty) {
            Some(bytes) => self.copy(rows, bytes, to),
            None => self.quantize(rows, ty, to),
        }
    }

    fn copy(&self, rows: &Rows, bytes: &[u8], to: &mut Sink) -> Result<()> {
        let row = (bytes.len() / rows.rows.max(1)).max(1);
        let many = (COPIED / row).max(1);
        for (at, piece) in bytes.chunks(many * row).enumerate() {
            to.put(piece)?;
            rows.release(at * many, piece.len() / row);
        }
        Ok(())
    }

    fn quantize(&self, rows: &Rows, ty: BlockType, to: &mut Sink) -> Result<()> {
        let many = (STRIP / rows.cols.max(1)).clamp(1, rows.rows.max(1));
        for start in (0..rows.rows).step_by(many * self.strips.len()) {
            let left = (rows.rows - start).min(many * self.strips.len());
            let tasks = left.div_ceil(many);
            self.pool.run(tasks, &|task, _| {
                let first = start + task * many;
                let count = many.min(rows.rows - first);
                lock(&self.strips[task]).fill(self.isa, rows, (first, count), ty);
            });
            for task in 0..tasks {
                let strip = lock(&self.strips[task]);
                if let Some((at, found)) = strip.bad {
                    return Err(self.cannot_hold(rows, ty, (start + task * many) * rows.cols + at, found));
                }
                to.put(&strip.bytes)?;
            }
            rows.release(start, left);
        }
        Ok(())
    }

    fn cannot_hold(&self, rows: &Rows, ty: BlockType, at: usize, found: f32) -> Error {
        let at = rows.source_row(at / rows.cols) * rows.cols + at % rows.cols;
        let mut fault = format!("tensor {} holds {found} at element {at}", rows.name());
        if found.is_finite() {
            fault = format!("{fault}, and {} goes up to {}; bf16 and f32 hold it", ty.name(), largest(ty));
        }
        Error::Model { path: self.model.into(), fault }
    }
}

/// A strip whose thread panicked took the process along.
fn lock(strip: &Mutex<Strip>) -> std::sync::MutexGuard<'_, Strip> {
    strip.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Strip {
    fn fill(&mut self, isa: Isa, rows: &Rows, (first, count): (usize, usize), ty: BlockType) {
        self.x.resize(count * rows.cols, 0.0);
        rows.read(isa, first, &mut self.x);
        let most = largest(ty);
        self.bad = self.x.iter().position(|x| x.is_nan() || x.abs() > most).map(|at| (at, self.x[at]));
        let bytes = ty.row_bytes(self.x.len()).unwrap_or(0);
        self.bytes.resize(bytes, 0);
        if self.bad.is_none() {
            quantize(isa, ty, &self.x, &mut self.bytes);
        }
    }
}

/// Where bytes go.
pub(super) struct Sink<'a> {
    out: &'a mut dyn Write,
    path: &'a Path,
    /// Bytes so far.
    pub at: usize,
}

impl<'a> Sink<'a> {
    /// To `out`, which is called `path` in messages.
    pub fn new(out: &'a mut dyn Write, path: &'a Path) -> Self {
        Self { out, path, at: 0 }
    }

    /// Writes bytes.
    pub fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.at += bytes.len();
        self.out.write_all(bytes).map_err(|error| Error::io(self.path, error))
    }

    /// Writes zeros up to a multiple of `alignment`.
    pub fn pad(&mut self, alignment: usize) -> Result<()> {
        self.put(&vec![0; self.at.next_multiple_of(alignment) - self.at])
    }
}
