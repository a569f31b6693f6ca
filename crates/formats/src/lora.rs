//! A LoRA adapter of any kind as pairs of factors: PEFT's folders, MLX's folders, and GGUF files as llama.cpp loads them. Which is which
//! is decided by content. Modules keep the names of their file; whoever knows the model can tell GGUF's from Hugging Face's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pocketune_kernels::blocks;

use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::mapped::{self, Mapped};
use crate::peft::{self, Problem};
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

/// An adapter, mapped.
pub struct LoraFile {
    /// Its kind.
    pub kind: Kind,
    /// The model that it was trained on, where that is said.
    pub base_model: Option<String>,
    /// The architecture that a GGUF file names.
    pub architecture: Option<String>,
    /// Its modules, sorted by name.
    pub pairs: Vec<Pair>,
    path: PathBuf,
    file: [Mapped; 1],
    tensors: Vec<TensorInfo>,
}

/// The two factors of one module's change, `W + scale B A`.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The module: a path such as `model.layers.0.self_attn.q_proj`, or `blk.0.attn_q` in GGUF.
    pub module: String,
    /// Rows of A.
    pub rank: usize,
    /// Inputs.
    pub cols: usize,
    /// Outputs.
    pub rows: usize,
    /// What the change is multiplied with.
    pub scale: f64,
    factors: [usize; 2],
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
        let (config, scale) = (adapter.config().clone(), adapter.config().scale());
        let modules = adapter.modules().clone();
        let (file, tensors) = (adapter.file().clone(), adapter.tensors().to_vec());
        Self::new(Kind::Peft, path, (file, tensors), modules, config.base_model, |_| scale)
    }

    /// Takes an adapter of MLX that lies at `path`.
    ///
    /// # Errors
    /// When its tensors are no pairs of factors.
    pub fn from_mlx(path: &Path, adapter: mlx::Adapter) -> Result<Self> {
        let factors = adapter.tensors.iter().map(|info| mlx::module(&info.name));
        let modules = modules(&adapter.tensors, factors).map_err(|problem| fault(path, problem))?;
        let (base_model, scale) = (adapter.base_model, adapter.scale);
        Self::new(Kind::Mlx, path, (adapter.file, adapter.tensors), modules, base_model, |_| scale)
    }

    fn new(
        kind: Kind,
        path: &Path,
        (file, tensors): (Mapped, Vec<TensorInfo>),
        modules: BTreeMap<String, [usize; 2]>,
        base_model: Option<String>,
        scale: impl Fn(usize) -> f64,
    ) -> Result<Self> {
        let mut pairs = Vec::new();
        for (module, factors) in modules {
            let [a, b] = factors.map(|at| &tensors[at]);
            let shape = |info: &TensorInfo| match *info.shape {
                // MLX has both transposed.
                [first, second] if kind == Kind::Mlx => Ok([second, first]),
                [first, second] => Ok([first, second]),
                _ => Err(wrong_shape(path, info, 0)),
            };
            let ([rank, cols], [rows, other]) = (shape(a)?, shape(b)?);
            if rank != other || rank == 0 {
                return Err(wrong_shape(path, b, rank));
            }
            pairs.push(Pair { module, rank, cols, rows, scale: scale(rank), factors });
        }
        if pairs.is_empty() {
            return Err(fault(path, Problem::NoTensors));
        }
        let lora = Self { kind, base_model, architecture: None, pairs, path: path.into(), file: [file], tensors };
        for info in &lora.tensors {
            model::read(path, &lora.file, info)?;
        }
        Ok(lora)
    }

    /// A of a module, `[rank, cols]`.
    pub fn a(&self, pair: &Pair) -> Vec<f32> {
        self.factor(pair.factors[0], (pair.rank, pair.cols))
    }

    /// B of a module, `[rows, rank]`, in the order of its file's rows.
    pub fn b(&self, pair: &Pair) -> Vec<f32> {
        self.factor(pair.factors[1], (pair.rows, pair.rank))
    }

    fn factor(&self, at: usize, (rows, cols): (usize, usize)) -> Vec<f32> {
        let Tensor { ty, data, .. } =
            model::read(&self.path, &self.file, &self.tensors[at]).expect("element types were checked on opening");
        let mut values = vec![0.0; rows * cols];
        blocks::dequantize(ty, data, &mut values);
        if self.kind == Kind::Mlx { transposed(&values, rows) } else { values }
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
    let scale = |rank: usize| if alpha == 0.0 { 1.0 } else { alpha / rank as f64 };
    let lora = LoraFile::new(Kind::Gguf, path, (file, tensors), modules, None, scale)?;
    Ok(LoraFile { architecture, ..lora })
}

/// The names of both factors in a GGUF file.
pub fn gguf_names(module: &str) -> [String; 2] {
    GGUF_SUFFIXES.map(|suffix| format!("{module}{suffix}"))
}

/// Both factors of every module; `factors` says for each tensor whose and which it is.
pub(crate) fn modules<'a>(
    tensors: &'a [TensorInfo],
    factors: impl Iterator<Item = Option<(&'a str, usize)>>,
) -> std::result::Result<BTreeMap<String, [usize; 2]>, Problem> {
    let mut found: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
    for (at, (info, factor)) in tensors.iter().zip(factors).enumerate() {
        let (module, which) = factor.ok_or_else(|| Problem::UnexpectedTensor { tensor: info.name.to_string() })?;
        found.entry(module).or_default()[which] = Some(at);
    }
    let pairs = found.into_iter().map(|(module, factors)| match factors {
        [Some(a), Some(b)] => Ok((module.into(), [a, b])),
        [a, _] => {
            let (has, lacks) = if a.is_some() { ('A', 'B') } else { ('B', 'A') };
            Err(Problem::Unpaired { module: module.into(), has, lacks })
        }
    });
    pairs.collect()
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
    let (tensor, found) = (info.name.to_string(), info.shape.to_vec());
    fault(path, Problem::Shape { tensor, found, rank, wanted: "two matrices of that rank" })
}
