//! What adapters change in a model: for every linear `sum scale_i B_i A_i`, its factors read when its turn comes and let go after it, its rows
//! in the order of the model's file. Adapters of every kind, several at once; one with magnitudes (DoRA) alone and whole, since the lengths of
//! rows that it sets are of all that was added. It refuses what `convert` refuses: modules that the model hasn't got, in other shapes,
//! or of another architecture.

use std::path::{Path, PathBuf};

use pocketune_formats::lora::{Kind, LoraFile, transposed};

use crate::convert::{check_end, check_factors, fit, gguf_module, linears};
use crate::error::{Error, Result};
use crate::graph::{Target, hugging_face_row, llama_row};
use crate::model::Model;

/// Adapters with what each is multiplied with, checked against a model.
pub struct Changes {
    parts: Vec<Part>,
    files: Vec<LoraFile>,
    /// Whether the model's file has rows in llama.cpp's order where that differs.
    gguf: bool,
    /// The adapter with magnitudes, where it is one.
    alone: Option<PathBuf>,
}

/// One adapter's change of one linear.
struct Part {
    layer: Option<usize>,
    target: Target,
    /// The tensor in the model's file.
    tensor: String,
    /// Number of the adapter, and of the pair in it.
    pair: (usize, usize),
    /// What B is multiplied with.
    scale: f64,
    /// Elements of a head, where the two orders of rows differ.
    permuted: Option<usize>,
}

/// The change of one linear, `B A`.
pub(super) struct Change {
    rank: usize,
    /// `[rank, cols]`.
    pub a: Vec<f32>,
    /// `[rows, rank]`, scaled.
    pub b: Vec<f32>,
    /// The lengths that the rows get, with DoRA.
    magnitude: Option<Vec<f32>>,
}

impl Changes {
    /// Opens adapters, each with its scale beside its own; one of 0 changes nothing.
    ///
    /// # Errors
    /// When one is malformed or doesn't fit the model, or a scale is not finite.
    pub fn open(model: &Model, adapters: &[(PathBuf, f64)]) -> Result<Self> {
        let gguf = model.files.gguf().is_some();
        let (mut parts, mut files, mut alone) = (Vec::new(), Vec::new(), None);
        for (number, (path, factor)) in adapters.iter().enumerate() {
            if !factor.is_finite() {
                let fault = "a scale is a number".into();
                return Err(Error::Option { option: "scale", value: factor.to_string(), fault });
            }
            let mut file = LoraFile::open(path)?;
            check_factors(path, &file)?;
            fit(path, &mut file, Some(model))?;
            if file.pairs.iter().any(|pair| pair.has_magnitude()) && *factor != 0.0 {
                if *factor != 1.0 {
                    let fault = "an adapter with magnitudes (DoRA) is merged whole, with a scale of 1".into();
                    return Err(Error::Option { option: "scale", value: factor.to_string(), fault });
                }
                if adapters.len() > 1 {
                    let fault = "it has magnitudes (DoRA), and is merged alone".into();
                    return Err(Error::Adapter { path: path.clone(), fault });
                }
                alone = Some(path.clone());
            }
            for linear in linears(path, &file, Some(model))? {
                let at = file.pairs.iter().position(|pair| pair.module == linear.pair.module);
                let scale = linear.pair.scale * factor;
                let (Some(at), true) = (at, scale != 0.0) else { continue };
                if linear.layer.is_none() {
                    check_end(path, &linear.pair.module, Some(&model.config))?;
                }
                let tensor = match gguf {
                    true => format!("{}.weight", gguf_module(linear.layer, linear.target)),
                    false => format!("{}.weight", linear.path),
                };
                let (layer, target, permuted) = (linear.layer, linear.target, linear.permuted);
                parts.push(Part { layer, target, tensor, pair: (number, at), scale, permuted });
            }
            files.push(file);
        }
        Ok(Self { parts, files, gguf, alone })
    }

    /// Whether nothing changes: all scales are 0.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The one adapter, where it has magnitudes.
    pub(super) fn alone(&self) -> Option<&Path> {
        self.alone.as_deref()
    }

    /// Whether a tensor of the model's file changes.
    pub(super) fn has(&self, tensor: &str) -> bool {
        self.parts.iter().any(|part| part.tensor == tensor)
    }

    /// The tensors that change.
    pub(super) fn tensors(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.parts.iter().map(|part| &*part.tensor).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The linears that change, by kind.
    pub(super) fn targets(&self) -> Vec<Target> {
        let mut targets: Vec<Target> = self.parts.iter().map(|part| part.target).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// The largest sum of ranks that a linear gets.
    pub(super) fn rank(&self) -> usize {
        let rank = |tensor: &str| self.of(tensor).map(|part| self.files[part.pair.0].pairs[part.pair.1].rank).sum();
        self.tensors().into_iter().map(rank).max().unwrap_or(0)
    }

    /// Bytes that the largest change takes while it is loaded: its factors, as they lie in the adapter and as they are used.
    pub(super) fn held(&self) -> usize {
        let of = |part: &Part| {
            let pair = &self.files[part.pair.0].pairs[part.pair.1];
            12 * pair.rank * (pair.rows + pair.cols)
        };
        self.tensors().into_iter().map(|tensor| self.of(tensor).map(of).sum()).max().unwrap_or(0)
    }

    /// The change of a tensor, its rows in the order of the model's file.
    pub(super) fn load(&self, tensor: &str) -> Option<Change> {
        let change = self.joined(self.of(tensor), self.gguf)?;
        let embedding = self.of(tensor).any(|part| part.target == Target::Embedding);
        Some(if embedding { change.transposed() } else { change })
    }

    /// The change of a linear, its rows in Hugging Face's order.
    pub(super) fn load_linear(&self, layer: Option<usize>, target: Target) -> Option<Change> {
        self.joined(self.parts.iter().filter(move |part| (part.layer, part.target) == (layer, target)), false)
    }

    fn of<'a>(&'a self, tensor: &'a str) -> impl Iterator<Item = &'a Part> + Clone + 'a {
        self.parts.iter().filter(move |part| part.tensor == tensor)
    }

    /// Factors one beside the other: `[B_1 B_2] [A_1; A_2]`.
    fn joined<'a>(&'a self, parts: impl Iterator<Item = &'a Part> + Clone, gguf: bool) -> Option<Change> {
        let pair = |part: &Part| &self.files[part.pair.0].pairs[part.pair.1];
        let rank: usize = parts.clone().map(|part| pair(part).rank).sum();
        let rows = pair(parts.clone().next()?).rows;
        let (mut a, mut b, mut done, mut magnitude) = (Vec::new(), vec![0.0; rows * rank], 0, None);
        for part in parts {
            let (file, pair) = (&self.files[part.pair.0], pair(part));
            a.extend(file.a(pair));
            let from = file.b(pair);
            let other = |row: usize| match (part.permuted, gguf, file.kind == Kind::Gguf) {
                (Some(d), true, false) => hugging_face_row(row, d),
                (Some(d), false, true) => llama_row(row, d),
                _ => row,
            };
            let lengths = file.magnitude(pair);
            magnitude = lengths.map(|lengths| (0..rows).map(|row| lengths[other(row)]).collect()).or(magnitude);
            for row in 0..rows {
                let other = other(row);
                let to = &mut b[row * rank + done..][..pair.rank];
                for (to, from) in to.iter_mut().zip(&from[other * pair.rank..]) {
                    *to = (f64::from(*from) * part.scale) as f32;
                }
            }
            done += pair.rank;
        }
        Some(Change { rank, a, b, magnitude })
    }
}

impl Change {
    /// Rows and columns of what it changes.
    pub fn shape(&self) -> [usize; 2] {
        [self.b.len() / self.rank.max(1), self.a.len() / self.rank.max(1)]
    }

    /// Writes what is added to row `row`, which is `base`.
    pub fn row(&self, row: usize, base: &[f32], to: &mut [f32]) {
        to.fill(0.0);
        let cols = to.len();
        for (b, a) in self.b[row * self.rank..][..self.rank].iter().zip(self.a.chunks_exact(cols)) {
            for (to, a) in to.iter_mut().zip(a) {
                *to += b * a;
            }
        }
        if let Some(magnitude) = &self.magnitude {
            let square = |(base, to): (&f32, &f32)| f64::from(base + to).powi(2);
            let length = base.iter().zip(&*to).map(square).sum::<f64>().sqrt();
            let times = f64::from(magnitude[row]) / length;
            to.iter_mut().zip(base).for_each(|(to, base)| *to = (times * f64::from(base + *to)) as f32 - base);
        }
    }

    /// `(B A)ᵀ`: factors of an embedding take tokens to values, and rows of its table are the tokens'.
    fn transposed(self) -> Self {
        let [rows, cols] = self.shape();
        let [a, b] = [transposed(&self.b, self.rank), transposed(&self.a, cols)];
        debug_assert_eq!((a.len(), b.len()), (self.rank * rows, cols * self.rank));
        Self { a, b, ..self }
    }

    /// Its factors with zeros up to `rank`.
    pub fn padded(mut self, rank: usize) -> [Vec<f32>; 2] {
        let [rows, cols] = self.shape();
        self.a.resize(rank * cols, 0.0);
        let mut b = Vec::with_capacity(rows * rank);
        for row in self.b.chunks_exact(self.rank) {
            b.extend_from_slice(row);
            b.resize(b.len() + rank - self.rank, 0.0);
        }
        [self.a, b]
    }
}
