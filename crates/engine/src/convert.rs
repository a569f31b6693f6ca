//! Adapters from one runtime's files to another's: PEFT, MLX and llama.cpp's GGUF, in every direction. Factors are copied, transposed or
//! put into the other order of rows; nothing is rounded but to f32. Ranks and scales that differ between modules are evened out where a
//! format knows only one: with zeros, and in the second factor. It refuses modules that the model, or the format, does not have, DoRA
//! where a format has no magnitudes, VeRA where no model says how wide its modules are (it is written as the LoRA that it is: `diag(d) A` and `diag(b) B`), and adapters at one end of a model whose ends are one matrix, which PEFT alone has.

use std::path::Path;

use pocketune_formats::gguf::{ALIGNMENT, Header};
use pocketune_formats::lora::{GGUF_EMBEDDING, Kind, LoraFile, Pair, gguf_names, transposed};
use pocketune_formats::peft::{AdapterConfig, Patterns, Targets, TensorSpec, write_tensors};
use pocketune_formats::{BlockType, mlx, peft};

use crate::beside::Beside;
use crate::error::{Error, Result};
use crate::families::Config;
use crate::graph::{LoraSpec, Target};
use crate::model::Model;
use crate::store::{self, FolderWriter};

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Converted {
    /// The kind that was found.
    pub from: Kind,
    /// Adapted linears.
    pub modules: usize,
    /// The largest rank.
    pub rank: usize,
}

/// Reads the adapter at `from` and writes it as `to` at `out`. The base model is needed where either side is GGUF, which names and orders
/// rows by architecture; where it is given, everything is checked against it.
///
/// # Errors
/// When the adapter is malformed, does not fit the model or the format, or can't be written; nothing is left half-written.
pub fn convert(from: &Path, model: Option<&Model>, to: Kind, out: &Path) -> Result<Converted> {
    let mut lora = LoraFile::open(from)?;
    check_factors(from, &lora)?;
    fit(from, &mut lora, model)?;
    if model.is_none() && (lora.kind == Kind::Gguf || to == Kind::Gguf) {
        let fault = "GGUF adapters are named and ordered as their base model: give it with --model";
        return Err(Error::Adapter { path: from.into(), fault: fault.into() });
    }
    let linears = linears(from, &lora, model)?;
    if let Some(end) = linears.iter().find(|linear| linear.layer.is_none()).filter(|_| to != Kind::Peft) {
        check_end(from, &end.pair.module, model.map(|model| &model.config))?;
    }
    let beside = Beside::of(from)?;
    let whole = Whole { lora: &lora, linears, model, beside };
    match to {
        Kind::Peft => whole.write_peft(out)?,
        Kind::Mlx => whole.write_mlx(out)?,
        Kind::Gguf => whole.write_gguf(out)?,
    }
    Ok(Converted { from: lora.kind, modules: lora.pairs.len(), rank: whole.rank() })
}

/// An adapted linear, or an end of the model.
pub(crate) struct Linear<'a> {
    pub pair: &'a Pair,
    /// Its block; `None` at the ends.
    pub layer: Option<usize>,
    pub target: Target,
    /// Its Hugging Face path.
    pub path: String,
    /// Elements of a head, where GGUF keeps rows in llama.cpp's order.
    pub permuted: Option<usize>,
}

struct Whole<'a> {
    lora: &'a LoraFile,
    linears: Vec<Linear<'a>>,
    model: Option<&'a Model>,
    beside: Beside,
}

/// The linears that an adapter changes, in order, checked against the model where there is one.
pub(crate) fn linears<'a>(from: &Path, lora: &'a LoraFile, model: Option<&Model>) -> Result<Vec<Linear<'a>>> {
    let fault = |fault: String| Error::Adapter { path: from.into(), fault };
    if let Some(model) = model {
        check_architecture(from, lora, &model.config)?;
    }
    let known = model.map(modules).transpose()?;
    let mut linears = Vec::new();
    for pair in &lora.pairs {
        let (layer, target) = place(from, lora, pair)?;
        if layer.is_none() && lora.kind != Kind::Peft {
            check_end(from, &pair.module, model.map(|model| &model.config))?;
        }
        let (mut path, mut permuted) = (pair.module.clone(), None);
        if let (Some(known), Some(model)) = (&known, model) {
            let found = known.iter().find(|module| Target::read(&module.path) == Some((layer, target)));
            let found = found.ok_or_else(|| fault(format!("module {} is not in the model", pair.module)))?;
            if (found.rows, found.cols) != (pair.rows, pair.cols) {
                return Err(fault(format!(
                    "module {} changes a matrix of {} x {}, and the model's has {} x {}",
                    pair.module, pair.rows, pair.cols, found.rows, found.cols
                )));
            }
            path.clone_from(&found.path);
            permuted = turned(&model.config, target);
        }
        linears.push(Linear { pair, layer, target, path, permuted });
    }
    linears.sort_by_key(|linear| (linear.layer, linear.target));
    Ok(linears)
}

/// Checks that an adapter is all factors: a head beside them is a change that no other format has, and none of a matrix that every model has.
///
/// # Errors
/// When it has a head.
pub(crate) fn check_factors(from: &Path, lora: &LoraFile) -> Result<()> {
    match lora.saved().first() {
        None => Ok(()),
        Some(info) => {
            let fault = format!("it has a classification head ({}), which stays in PEFT's form", info.name);
            Err(Error::Adapter { path: from.into(), fault })
        }
    }
}

/// Tells the modules of a VeRA adapter how many inputs they have.
///
/// # Errors
/// When nobody knows: its file does not say it.
pub(crate) fn fit(from: &Path, lora: &mut LoraFile, model: Option<&Model>) -> Result<()> {
    if !lora.pairs.iter().any(Pair::is_shared) {
        return Ok(());
    }
    let Some(model) = model else {
        let fault = "a VeRA adapter does not say how many inputs its modules have: give the base model with --model";
        return Err(Error::Adapter { path: from.into(), fault: fault.into() });
    };
    let known = modules(model)?;
    let inputs = |pair: &Pair| known.iter().find(|module| module.path == pair.module).map(|module| module.cols);
    lora.fit(inputs);
    Ok(())
}

/// Checks that an adapter that names an architecture is for this model.
///
/// # Errors
/// When it is for another.
pub(crate) fn check_architecture(from: &Path, lora: &LoraFile, config: &Config) -> Result<()> {
    match &lora.architecture {
        Some(found) if config.family.architecture() != Some(found) => {
            let family = config.family.model_type();
            let fault = format!("it is for the architecture {found:?}, and the model is of the family {family}");
            Err(Error::Adapter { path: from.into(), fault })
        }
        _ => Ok(()),
    }
}

/// Checks that an adapter of the end `module` means the same to all runtimes: where embedding and head are one matrix, PEFT changes one of them,
/// mlx-lm both, and llama.cpp neither.
///
/// # Errors
/// Where they are, or nobody says.
pub(crate) fn check_end(from: &Path, module: &str, config: Option<&Config>) -> Result<()> {
    let fault = match config {
        Some(config) if !config.tied => return Ok(()),
        Some(_) => "an end of the model, and the model's ends are one matrix: only PEFT's adapters change one of them",
        None => "an end of the model: give that with --model, which says whether its ends are one matrix",
    };
    Err(Error::Adapter { path: from.into(), fault: format!("module {module} is {fault}") })
}

/// Elements of a head, where GGUF keeps the rows of `target` in llama.cpp's order.
pub(crate) fn turned(config: &Config, target: Target) -> Option<usize> {
    let turned = config.family.architecture() == Some("llama") && matches!(target, Target::Q | Target::K);
    turned.then_some(config.head_dim)
}

/// All linears of a model's blocks, and its ends.
pub(crate) fn modules(model: &Model) -> Result<Vec<crate::graph::Module>> {
    let naming = model.config.family.naming();
    let all = Target::ALL.into_iter().chain(Target::ENDS).filter(|target| target.path(naming).is_some());
    Ok(model.config.graph(Some(&LoraSpec { rank: 1, targets: all.collect(), ..LoraSpec::default() }))?.modules)
}

/// The block and the linear that a module of an adapter means; no block at the ends.
///
/// # Errors
/// When it is neither.
pub(crate) fn place(from: &Path, lora: &LoraFile, pair: &Pair) -> Result<(Option<usize>, Target)> {
    let place = match lora.kind {
        Kind::Gguf => gguf_place(&pair.module),
        Kind::Peft | Kind::Mlx => Target::read(&pair.module),
    };
    place.ok_or_else(|| {
        let fault = format!("module {} is no linear of a block, no embed_tokens and no lm_head", pair.module);
        Error::Adapter { path: from.into(), fault }
    })
}

/// What a name such as `blk.0.attn_q` means.
fn gguf_place(module: &str) -> Option<(Option<usize>, Target)> {
    let called = |name: &str, of: &[Target]| of.iter().copied().find(|target| target.gguf_name() == name);
    match module.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
        Some((layer, name)) => Some((Some(layer.parse().ok()?), called(name, &Target::ALL)?)),
        None => Some((None, called(module, &Target::ENDS)?)),
    }
}

/// What GGUF calls it, `.weight` not included.
pub(crate) fn gguf_module(layer: Option<usize>, target: Target) -> String {
    let name = target.gguf_name();
    layer.map_or_else(|| name.into(), |layer| format!("blk.{layer}.{name}"))
}

impl Whole<'_> {
    fn rank(&self) -> usize {
        self.linears.iter().map(|linear| linear.pair.rank).max().unwrap_or(0)
    }

    /// The scale that is written where a format has one for all.
    fn scale(&self) -> f64 {
        self.linears.first().map_or(1.0, |linear| linear.pair.scale)
    }

    fn base_model(&self) -> Option<String> {
        self.model.map(|model| model.files.path().display().to_string()).or_else(|| self.lora.base_model.clone())
    }

    /// A with zero rows up to `rank`.
    fn a(&self, linear: &Linear, rank: usize) -> Vec<f32> {
        let mut a = self.lora.a(linear.pair);
        a.resize(rank * linear.pair.cols, 0.0);
        a
    }

    /// B with zero columns up to `rank`, multiplied with `factor`; its rows in the order of GGUF or of Hugging Face.
    fn b(&self, linear: &Linear, rank: usize, factor: f64, gguf: bool) -> Vec<f32> {
        let (b, old, rows) = (self.lora.b(linear.pair), linear.pair.rank, linear.pair.rows);
        let mut to = vec![0.0; rows * rank];
        for row in 0..rows {
            // Hugging Face's row `row` lies at `turned` in GGUF.
            let turned = linear.permuted.map_or(row, |d| crate::graph::llama_row(row, d));
            let from = if self.lora.kind == Kind::Gguf { turned } else { row };
            let at = if gguf { turned } else { row };
            for (to, from) in to[at * rank..].iter_mut().zip(&b[from * old..(from + 1) * old]) {
                *to = if factor == 1.0 { *from } else { (f64::from(*from) * factor) as f32 };
            }
        }
        to
    }

    /// The names of the linears' kinds, in order.
    fn targets<T: Ord>(&self, name: impl Fn(&Linear) -> T) -> Vec<T> {
        let mut names: Vec<T> = self.linears.iter().map(name).collect();
        names.sort();
        names.dedup();
        names
    }

    fn layers(&self) -> Option<Vec<usize>> {
        let mut layers: Vec<usize> = self.linears.iter().filter_map(|linear| linear.layer).collect();
        layers.dedup();
        let all = self.model.is_some_and(|model| model.config.layers == layers.len());
        (!all && !layers.is_empty()).then_some(layers)
    }

    fn dora(&self) -> bool {
        self.linears.iter().any(|linear| linear.pair.has_magnitude())
    }

    fn write_peft(&self, out: &Path) -> Result<()> {
        let (rank, scale) = (self.rank(), self.scale());
        let alpha = |linear: &Linear| linear.pair.scale * linear.pair.rank as f64;
        let (layers, ends) = (self.layers(), self.linears.iter().any(|linear| linear.layer.is_none()));
        // Those that differ, by their whole paths.
        let ranks = self.linears.iter().filter(|linear| linear.pair.rank != rank);
        let alphas = self.linears.iter().filter(|linear| alpha(linear) != scale * rank as f64);
        let config = AdapterConfig {
            rank,
            alpha: scale * rank as f64,
            ranks: Patterns(ranks.map(|linear| (linear.path.clone(), linear.pair.rank)).collect()),
            alphas: Patterns(alphas.map(|linear| (linear.path.clone(), alpha(linear))).collect()),
            dora: self.dora(),
            // PEFT leaves out what is in no layer where it is told layers; then modules are named by their whole paths.
            targets: Targets::Modules(self.targets(|linear| match &layers {
                Some(_) if ends => linear.path.clone(),
                _ => last_word(&linear.path),
            })),
            layers: layers.clone().filter(|_| !ends),
            base_model: self.base_model(),
            task: Some("CAUSAL_LM".into()),
            ..AdapterConfig::default()
        };
        let own = |linear: &Linear| (linear.pair.rank, 1.0);
        let mut writer = FolderWriter::open(out)?;
        let names = |linear: &Linear| peft::tensor_names(&linear.path, linear.target == Target::Embedding);
        self.write_folder(&mut writer, peft::TENSORS_FILE, names, own, false)?;
        writer.file(peft::CONFIG_FILE, |out| out.write_all(config.to_json().as_bytes()))?;
        self.beside.write(&mut writer)?;
        writer.commit()
    }

    fn write_mlx(&self, out: &Path) -> Result<()> {
        let (rank, scale) = (self.rank(), self.scale());
        let keys = self.targets(|linear| inside_layer(&linear.path, linear.layer));
        let config = mlx::config_json(self.dora(), rank, scale, &keys, self.base_model().as_deref());
        let evened = |linear: &Linear| (rank, linear.pair.scale / scale);
        let mut writer = FolderWriter::open(out)?;
        let names = |linear: &Linear| mlx::tensor_names(&linear.path);
        self.write_folder(&mut writer, mlx::TENSORS_FILE, names, evened, true)?;
        writer.file(mlx::CONFIG_FILE, |out| out.write_all(config.as_bytes()))?;
        self.beside.write(&mut writer)?;
        writer.commit()
    }

    /// A safetensors file of all parts, `turned` or not; `form` says with what rank a module is written, and what its B is multiplied with.
    fn write_folder(
        &self,
        writer: &mut FolderWriter,
        name: &str,
        names: impl Fn(&Linear) -> [String; 3],
        form: impl Fn(&Linear) -> (usize, f64),
        turned: bool,
    ) -> Result<()> {
        let mut parts: Vec<(&Linear, usize)> = Vec::new();
        let mut specs = Vec::new();
        for linear in &self.linears {
            let (pair, rank) = (linear.pair, form(linear).0);
            let shapes = [vec![rank, pair.cols], vec![pair.rows, rank], vec![pair.rows]];
            for (part, (name, mut shape)) in names(linear).into_iter().zip(shapes).enumerate() {
                if part == 2 && !pair.has_magnitude() {
                    continue;
                }
                if turned {
                    shape.reverse();
                }
                parts.push((linear, part));
                specs.push(TensorSpec { name, shape });
            }
        }
        writer.file(name, |out| {
            write_tensors(out, &specs, &mut |at, out| {
                let (linear, part) = parts[at];
                let (rank, factor) = form(linear);
                let (values, cols) = match part {
                    0 => (self.a(linear, rank), linear.pair.cols),
                    1 => (self.b(linear, rank, factor, false), rank),
                    _ => (self.lora.magnitude(linear.pair).unwrap_or_default(), linear.pair.rows),
                };
                let values = if turned { transposed(&values, cols) } else { values };
                out.write_all(bytemuck::cast_slice(&values))
            })
        })
    }

    fn write_gguf(&self, out: &Path) -> Result<()> {
        let architecture = self.model.and_then(|model| model.config.family.architecture());
        let Some(architecture) = architecture else {
            let fault = "llama.cpp has no models of its base model's family".into();
            return Err(Error::Adapter { path: out.into(), fault });
        };
        if self.dora() {
            let fault = "llama.cpp's adapters have no magnitudes, and this one does (DoRA)".into();
            return Err(Error::Adapter { path: out.into(), fault });
        }
        // One alpha for all, divided by each module's own rank.
        let alpha = self.scale() * self.rank() as f64;
        let mut header = Header::default();
        header.text("general.architecture", architecture);
        header.text("general.type", "adapter");
        header.text("adapter.type", "lora");
        header.float("adapter.lora.alpha", alpha as f32);
        let gguf = self.model.and_then(|model| model.files.gguf());
        let models = || gguf.and_then(|gguf| gguf.meta().get_str("tokenizer.chat_template").ok()?);
        if let Some(template) = self.beside.template.as_deref().or_else(models) {
            header.text("tokenizer.chat_template", template);
        }
        let mut data = Vec::new();
        for linear in &self.linears {
            let Pair { rank, cols, rows, scale, .. } = *linear.pair;
            let module = gguf_module(linear.layer, linear.target);
            let factor = scale * rank as f64 / alpha;
            let a = match module == GGUF_EMBEDDING {
                true => (transposed(&self.a(linear, rank), cols), [cols, rank]),
                false => (self.a(linear, rank), [rank, cols]),
            };
            let factors = [a, (self.b(linear, rank, factor, true), [rows, rank])];
            for (name, (values, shape)) in gguf_names(&module).into_iter().zip(factors) {
                header.tensor(&name, &shape, BlockType::F32, 4 * values.len());
                data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
                data.extend_from_slice(bytemuck::cast_slice(&values));
            }
        }
        let mut bytes = header.finish();
        bytes.append(&mut data);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        store::write_file(out, &bytes)
    }
}

fn last_word(path: &str) -> String {
    path.rsplit('.').next().unwrap_or_default().into()
}

/// What comes after the layer's number; all of it at the ends.
fn inside_layer(path: &str, layer: Option<usize>) -> String {
    let inside = layer.and_then(|layer| path.split_once(&format!(".{layer}.")));
    inside.map_or(path, |(_, inside)| inside).into()
}
