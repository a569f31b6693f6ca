//! A LoRA adapter of any kind as pairs of factors: PEFT's folders, MLX's folders, and GGUF files as llama.cpp loads them. Which is which
//! is decided by content. Modules keep the names of their file; whoever knows the model can tell GGUF's from Hugging Face's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pocketune_kernels::blocks;

use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::mapped::{self, Mapped};
use crate::peft::{self, AdapterConfig, Problem};
use crate::tensor::{Tensor, TensorInfo};
use crate::{mlx, model};

/// A kind of adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder that PEFT loads.
    Peft,
    /// A folder that mlx-lm loads.
    Mlx,
    /// A file that llama.cpp loads.
    Gguf,
}

/// The suffixes of factors in a GGUF file.
const GGUF_SUFFIXES: [&str; 2] = [".weight.lora_a", ".weight.lora_b"];

/// The module of a GGUF file whose first factor lies transposed, so that a token picks a row of it: the embedding.
pub const GGUF_EMBEDDING: &str = "token_embd";

/// Elements of the longest block.
const LONGEST_BLOCK: usize = 256;

/// An adapter, mapped.
pub struct LoraFile {
    /// Its kind.
    pub kind: Kind,
    /// The model that it was trained on, where that is said.
    pub base_model: Option<String>,
    /// The architecture that a GGUF file names.
    pub architecture: Option<String>,
    /// What PEFT says of it, where it is PEFT's.
    pub config: Option<AdapterConfig>,
    /// Its modules, sorted by name.
    pub pairs: Vec<Pair>,
    path: PathBuf,
    file: [Mapped; 1],
    tensors: Vec<TensorInfo>,
    /// Of modules that were trained whole.
    saved: Vec<TensorInfo>,
}

/// The two factors of one module's change, `W + scale B A`.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The module: a path such as `model.layers.0.self_attn.q_proj`, or `blk.0.attn_q` in GGUF.
    pub module: String,
    /// Rows of A.
    pub rank: usize,
    /// Inputs; with VeRA those of the widest module until [`LoraFile::fit`] is told better.
    pub cols: usize,
    /// Outputs.
    pub rows: usize,
    /// What the change is multiplied with.
    pub scale: f64,
    parts: Parts,
}

/// A part of a module's change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The first factor, `[rank, cols]`.
    A,
    /// The second, `[rows, rank]`.
    B,
    /// DoRA's magnitudes, `[rows, 1]`.
    Magnitude,
    /// VeRA's vector on the rank, `[rank, 1]`.
    LambdaD,
    /// VeRA's vector on the outputs, `[rows, 1]`.
    LambdaB,
}

/// Where the parts of a module's change stand among a file's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts {
    /// A.
    pub a: usize,
    /// B.
    pub b: usize,
    /// DoRA's magnitudes.
    pub magnitude: Option<usize>,
    /// VeRA's vectors; A and B are all modules' then, which take the first columns of one and the first rows of the other.
    pub vectors: Option<[usize; 2]>,
}

impl Pair {
    /// Whether DoRA's magnitudes belong to it.
    pub const fn has_magnitude(&self) -> bool {
        self.parts.magnitude.is_some()
    }

    /// Whether its factors are VeRA's, which other modules share.
    pub const fn is_shared(&self) -> bool {
        self.parts.vectors.is_some()
    }
}

impl LoraFile {
    /// Opens an adapter.
    ///
    /// # Errors
    /// When it is missing, malformed, something else, or not plain LoRA.
    pub fn open(path: &Path) -> Result<Self> {
        if !mapped::metadata(path)?.is_dir() {
            return gguf(path);
        }
        if path.join(mlx::TENSORS_FILE).exists() && !path.join(peft::TENSORS_FILE).exists() {
            return Self::from_mlx(path, mlx::Adapter::open(path)?);
        }
        let adapter = peft::Adapter::open(path)?;
        let config = adapter.config().clone();
        let modules = adapter.modules().clone();
        let (file, tensors) = (adapter.file().clone(), adapter.tensors().to_vec());
        let base_model = config.base_model.clone();
        let lora =
            Self::new(Kind::Peft, path, (file, tensors), modules, base_model, |module, _| config.scale_of(module))?;
        Ok(Self { config: Some(config), saved: adapter.saved().to_vec(), ..lora })
    }

    /// Takes an adapter of MLX that lies at `path`.
    ///
    /// # Errors
    /// When its tensors are no pairs of factors.
    pub fn from_mlx(path: &Path, adapter: mlx::Adapter) -> Result<Self> {
        let factors = adapter.tensors.iter().map(|info| mlx::module(&info.name));
        let modules = modules(&adapter.tensors, factors).map_err(|problem| fault(path, problem))?;
        let (base_model, scale) = (adapter.base_model, adapter.scale);
        Self::new(Kind::Mlx, path, (adapter.file, adapter.tensors), modules, base_model, |_, _| scale)
    }

    fn new(
        kind: Kind,
        path: &Path,
        (file, tensors): (Mapped, Vec<TensorInfo>),
        modules: BTreeMap<String, Parts>,
        base_model: Option<String>,
        scale: impl Fn(&str, usize) -> f64,
    ) -> Result<Self> {
        let mut pairs = Vec::new();
        for (module, parts) in modules {
            let (a, b) = (&tensors[parts.a], &tensors[parts.b]);
            let shape = |info: &TensorInfo, part| match *info.shape {
                [first, second] if turned(kind, &module, part) => Ok([second, first]),
                [first, second] => Ok([first, second]),
                _ => Err(wrong_shape(path, info, 0)),
            };
            let ([rank, cols], [rows, other]) = (shape(a, Part::A)?, shape(b, Part::B)?);
            let rows = parts.vectors.map_or(rows, |[_, of_b]| tensors[of_b].shape[0]);
            if rank != other || rank == 0 {
                return Err(wrong_shape(path, b, rank));
            }
            let scale = scale(&module, rank);
            pairs.push(Pair { module, rank, cols, rows, scale, parts });
        }
        if pairs.is_empty() {
            return Err(fault(path, Problem::NoTensors));
        }
        let (architecture, config) = (None, None);
        let (path_of, saved) = (path.into(), Vec::new());
        let lora = Self { kind, base_model, architecture, config, pairs, path: path_of, file: [file], tensors, saved };
        for info in &lora.tensors {
            model::read(path, &lora.file, info)?;
        }
        Ok(lora)
    }

    /// Tells VeRA's modules how many inputs they have, which their file does not say; `None` for one that is not known.
    pub fn fit(&mut self, inputs: impl Fn(&Pair) -> Option<usize>) {
        for pair in self.pairs.iter_mut().filter(|pair| pair.is_shared()) {
            // A number beyond the matrix that there is stays to be refused.
            pair.cols = inputs(pair).filter(|&cols| cols <= pair.cols).unwrap_or(pair.cols);
        }
    }

    /// A of a module, `[rank, cols]`; of VeRA's `diag(d) A`.
    pub fn a(&self, pair: &Pair) -> Vec<f32> {
        let mut a = self.values(pair, Part::A, (pair.rank, pair.cols));
        scale_rows(&mut a, pair.cols, &self.vector(pair, Part::LambdaD));
        a
    }

    /// B of a module, `[rows, rank]`, in the order of its file's rows; of VeRA's `diag(b) B`.
    pub fn b(&self, pair: &Pair) -> Vec<f32> {
        let mut b = self.values(pair, Part::B, (pair.rows, pair.rank));
        scale_rows(&mut b, pair.rank, &self.vector(pair, Part::LambdaB));
        b
    }

    /// A part that is a vector; empty where there is none.
    fn vector(&self, pair: &Pair, part: Part) -> Vec<f32> {
        let mut values = Vec::new();
        self.each(pair, part, |_, _, x| values.push(x));
        values
    }

    /// DoRA's magnitudes of a module, one for every output, in the order of its file's rows.
    pub fn magnitude(&self, pair: &Pair) -> Option<Vec<f32>> {
        pair.has_magnitude().then(|| self.values(pair, Part::Magnitude, (pair.rows, 1)))
    }

    fn values(&self, pair: &Pair, part: Part, (rows, cols): (usize, usize)) -> Vec<f32> {
        let mut values = vec![0.0; rows * cols];
        self.each(pair, part, |row, col, x| values[row * cols + col] = x);
        values
    }

    /// The tensor of a part, where there is one, as the file has it.
    pub fn tensor(&self, pair: &Pair, part: Part) -> Option<&TensorInfo> {
        let at = match part {
            Part::A => Some(pair.parts.a),
            Part::B => Some(pair.parts.b),
            Part::Magnitude => pair.parts.magnitude,
            Part::LambdaD => pair.parts.vectors.map(|[d, _]| d),
            Part::LambdaB => pair.parts.vectors.map(|[_, b]| b),
        };
        at.map(|at| &self.tensors[at])
    }

    /// The tensors of modules that were trained whole, by their names in the model.
    pub fn saved(&self) -> &[TensorInfo] {
        &self.saved
    }

    /// The values of one of them.
    pub fn read_saved(&self, info: &TensorInfo, to: &mut [f32]) {
        let Tensor { ty, data, .. } =
            model::read(&self.path, &self.file, info).expect("element types were checked on opening");
        blocks::dequantize(ty, data, to);
    }

    /// Calls `see` with every element of a part as the file has it, at its row and column; none where there is no such part. Of matrices that modules
    /// share it is those that the module takes. Nothing is copied.
    pub fn each(&self, pair: &Pair, part: Part, mut see: impl FnMut(usize, usize, f32)) {
        let Some(info) = self.tensor(pair, part) else { return };
        let (rows, cols) = match part {
            Part::A => (pair.rank, pair.cols),
            Part::B => (pair.rows, pair.rank),
            Part::Magnitude | Part::LambdaB => (pair.rows, 1),
            Part::LambdaD => (pair.rank, 1),
        };
        // Rows of a matrix that modules share may be longer than the module's.
        let whole = if part == Part::A && pair.is_shared() { info.shape[1] } else { cols };
        let Tensor { ty, data, .. } =
            model::read(&self.path, &self.file, info).expect("element types were checked on opening");
        let turned = turned(self.kind, &pair.module, part);
        let (elements, bytes) = (ty.block_len(), ty.block_bytes());
        let mut block = [0.0; LONGEST_BLOCK];
        for (first, data) in (0..).step_by(elements).zip(data.chunks_exact(bytes)) {
            blocks::dequantize(ty, data, &mut block[..elements]);
            for (at, &x) in (first..rows * whole).zip(&block[..elements]).filter(|(at, _)| at % whole < cols) {
                if turned { see(at % rows, at / rows, x) } else { see(at / whole, at % whole, x) }
            }
        }
    }
}

fn gguf(path: &Path) -> Result<LoraFile> {
    let file = Mapped::open(path)?;
    let (gguf, tensors) = Gguf::read(&file, 0)?;
    let meta = gguf.meta();
    for (field, wanted) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        match meta.get_str(field)? {
            Some(found) if found == wanted => {}
            found => {
                let found = found.map_or("missing".into(), |found| format!("{found:?}"));
                return Err(fault(path, Problem::Unsupported { field: field.into(), found }));
            }
        }
    }
    let alpha = meta.get_f32("adapter.lora.alpha")?.map_or(0.0, f64::from);
    let architecture = meta.get_str("general.architecture")?.map(String::from);
    let tensors = tensors.as_slice().to_vec();
    let factors = tensors.iter().map(|info| {
        let mut suffixes = GGUF_SUFFIXES.iter().enumerate();
        suffixes.find_map(|(which, suffix)| Some((info.name.strip_suffix(suffix)?, which)))
    });
    let modules = modules(&tensors, factors).map_err(|problem| fault(path, problem))?;
    // As llama.cpp does: no alpha means no scale.
    let scale = |_: &str, rank: usize| if alpha == 0.0 { 1.0 } else { alpha / rank as f64 };
    let lora = LoraFile::new(Kind::Gguf, path, (file, tensors), modules, None, scale)?;
    Ok(LoraFile { architecture, ..lora })
}

/// The names of both factors in a GGUF file.
pub fn gguf_names(module: &str) -> [String; 2] {
    GGUF_SUFFIXES.map(|suffix| format!("{module}{suffix}"))
}

/// The parts of every module; `parts` says for each tensor whose it is, and whether A, B or the magnitudes.
pub(crate) fn modules<'a>(
    tensors: &'a [TensorInfo],
    parts: impl Iterator<Item = Option<(&'a str, usize)>>,
) -> std::result::Result<BTreeMap<String, Parts>, Problem> {
    let mut found: BTreeMap<&str, [Option<usize>; 3]> = BTreeMap::new();
    for (at, (info, part)) in tensors.iter().zip(parts).enumerate() {
        let (module, which) = part.ok_or_else(|| Problem::UnexpectedTensor { tensor: info.name.to_string() })?;
        found.entry(module).or_default()[which] = Some(at);
    }
    let pairs = found.into_iter().map(|(module, parts)| match parts {
        [Some(a), Some(b), magnitude] => Ok((module.into(), Parts { a, b, magnitude, vectors: None })),
        [a, ..] => {
            let (has, lacks) = if a.is_some() { ('A', 'B') } else { ('B', 'A') };
            Err(Problem::Unpaired { module: module.into(), has, lacks })
        }
    });
    pairs.collect()
}

/// Whether a file has a part transposed: MLX both factors, and llama.cpp the first of the embedding.
fn turned(kind: Kind, module: &str, part: Part) -> bool {
    match kind {
        Kind::Peft => false,
        Kind::Mlx => matches!(part, Part::A | Part::B),
        Kind::Gguf => part == Part::A && module == GGUF_EMBEDDING,
    }
}

/// Multiplies every row with its number, where there are numbers.
fn scale_rows(values: &mut [f32], cols: usize, by: &[f32]) {
    for (row, by) in values.chunks_exact_mut(cols).zip(by) {
        row.iter_mut().for_each(|x| *x *= by);
    }
}

/// The transpose of a matrix with rows of `cols`.
pub fn transposed(values: &[f32], cols: usize) -> Vec<f32> {
    let rows = values.len() / cols.max(1);
    (0..values.len()).map(|i| values[i % rows * cols + i / rows]).collect()
}

fn fault(path: &Path, problem: Problem) -> Error {
    Error::Peft { path: path.into(), problem }
}

fn wrong_shape(path: &Path, info: &TensorInfo, rank: usize) -> Error {
    let (tensor, found) = (info.name.to_string(), info.shape.as_ref().into());
    fault(path, Problem::Shape { tensor, found, rank, wanted: "two matrices of that rank" })
}
