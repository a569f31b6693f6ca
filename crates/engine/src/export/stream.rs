//! Tensors on their way into a file, strip by strip: the threads of a pool read, quantise and check one strip each, and their bytes go out in
//! order. What is held is a strip for every thread, whatever the size of the model; which thread made a strip changes nothing.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pocketune_formats::BlockType;
use pocketune_kernels::blocks::{largest, quantize};
use pocketune_kernels::dequant::dequantize_row;
use pocketune_kernels::{Isa, Pool};

use super::change::Change;
use super::rows::Rows;
use crate::error::{Error, Result};

/// Elements of a strip, where a row has no more.
pub(super) const STRIP: usize = 1 << 17;

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
    /// What is added, and what a reader saw before and sees after: where there is a change.
    change: [Vec<f32>; 3],
    kept: Kept,
    /// The first element that the type can't hold, counted from the strip's first.
    bad: Option<(usize, f32)>,
}

/// How much of a change `d` is in what a reader sees: `<d, after - before> / <d, d>`, 1 where nothing was rounded away.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    along: f64,
    whole: f64,
}

impl Kept {
    /// The share; 1 where there is no change.
    pub fn share(&self) -> f64 {
        if self.whole == 0.0 { 1.0 } else { self.along / self.whole }
    }

    /// Whether a reader sees nearly all of it, and not much more: rounding that answers to every small change exaggerates it.
    pub fn is_whole(&self) -> bool {
        (0.9..=1.1).contains(&self.share())
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        Self { along: self.along + other.along, whole: self.whole + other.whole }
    }
}

impl<'a> Stream<'a> {
    /// With so many threads, of [`super::room`].
    pub fn new(model: &'a Path, threads: usize) -> Result<Self> {
        let io = |error: std::io::Error| Error::System(format!("a thread can't be started: {error}"));
        let pool = Pool::new(threads).map_err(io)?;
        let strips = (0..pool.threads()).map(|_| Mutex::default()).collect();
        Ok(Self { pool, isa: Isa::detect().map_err(Error::System)?, strips, model })
    }

    /// Writes a tensor as `ty`, whose blocks divide its rows, with a change added to it.
    pub fn write(&self, rows: &Rows, change: Option<&Change>, ty: BlockType, to: &mut Sink) -> Result<Kept> {
        if let Some([wanted, cols]) = change.map(Change::shape)
            && (wanted, cols) != (rows.rows, rows.cols)
        {
            let fault = format!(
                "tensor {} has shape {:?} where the configuration says [{wanted}, {cols}]",
                rows.name(),
                rows.shape()
            );
            return Err(Error::Model { path: self.model.into(), fault });
        }
        match rows.unchanged(ty).filter(|_| change.is_none()) {
            Some(bytes) => self.copy(rows, bytes, to).map(|()| Kept::default()),
            None => self.quantize(rows, change, ty, to),
        }
    }

    /// What of a change would be kept of a tensor's first strip in `ty`.
    pub fn sample(&self, rows: &Rows, change: &Change, ty: BlockType) -> Kept {
        let mut strip = lock(&self.strips[0]);
        strip.fill(self.isa, rows, (0, strip_rows(rows)), Some(change), ty);
        rows.release(0, strip_rows(rows));
        strip.kept
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

    fn quantize(&self, rows: &Rows, change: Option<&Change>, ty: BlockType, to: &mut Sink) -> Result<Kept> {
        let many = strip_rows(rows);
        let mut kept = Kept::default();
        for start in (0..rows.rows).step_by(many * self.strips.len()) {
            let left = (rows.rows - start).min(many * self.strips.len());
            let tasks = left.div_ceil(many);
            let (isa, strips) = (self.isa, &self.strips);
            self.pool.run(tasks, &|task, _| {
                let first = start + task * many;
                let count = many.min(rows.rows - first);
                lock(&strips[task]).fill(isa, rows, (first, count), change, ty);
            });
            for task in 0..tasks {
                let strip = lock(&self.strips[task]);
                if let Some((at, found)) = strip.bad {
                    return Err(self.cannot_hold(rows, ty, (start + task * many) * rows.cols + at, found));
                }
                to.put(&strip.bytes)?;
                kept = kept.plus(strip.kept);
            }
            rows.release(start, left);
        }
        Ok(kept)
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

/// Rows of a strip.
fn strip_rows(rows: &Rows) -> usize {
    (STRIP / rows.cols.max(1)).clamp(1, rows.rows.max(1))
}

impl Strip {
    fn fill(&mut self, isa: Isa, rows: &Rows, (first, count): (usize, usize), change: Option<&Change>, ty: BlockType) {
        self.x.resize(count * rows.cols, 0.0);
        self.bytes.resize(ty.row_bytes(self.x.len()).unwrap_or(0), 0);
        rows.read(isa, first, &mut self.x);
        self.kept = Kept::default();
        if let Some(change) = change {
            let [delta, before, _] = &mut self.change;
            delta.resize(self.x.len(), 0.0);
            let all = delta.chunks_exact_mut(rows.cols).zip(self.x.chunks_exact(rows.cols)).enumerate();
            all.for_each(|(at, (delta, base))| change.row(rows.source_row(first + at), base, delta));
            before.clone_from(&self.x);
            if rows.ty() != Some(ty) && self.x.iter().all(|x| x.is_finite()) {
                quantize(isa, ty, &self.x, &mut self.bytes);
                dequantize_row(isa, ty, &self.bytes, before);
            }
            self.x.iter_mut().zip(delta).for_each(|(x, delta)| *x += *delta);
        }
        let most = largest(ty);
        self.bad = self.x.iter().position(|x| x.is_nan() || x.abs() > most).map(|at| (at, self.x[at]));
        if self.bad.is_some() {
            return;
        }
        quantize(isa, ty, &self.x, &mut self.bytes);
        if change.is_some() {
            self.compare(isa, ty);
        }
    }

    /// Sets what was written beside what was there.
    fn compare(&mut self, isa: Isa, ty: BlockType) {
        let [delta, before, after] = &mut self.change;
        after.resize(self.x.len(), 0.0);
        dequantize_row(isa, ty, &self.bytes, after);
        for ((delta, before), after) in delta.iter().zip(before).zip(after) {
            let delta = f64::from(*delta);
            self.kept.along += delta * (f64::from(*after) - f64::from(*before));
            self.kept.whole += delta * delta;
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
