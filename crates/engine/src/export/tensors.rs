//! The tensors of a GGUF file to be: from a Hugging Face folder those that its family's graph reads, under GGUF's names where it has some, in llama.cpp's order of
//! rows and with its norms; from a GGUF file all that there are. Each with the type that it gets.

use pocketune_formats::BlockType;

use super::rows::Rows;
use super::types::{Fallback, dividing, wanted};
use crate::error::{Error, Result};
use crate::families::{Family, gguf_name};
use crate::model::Model;

/// Gemma 3 27B has so many layers, by which llama.cpp knows its scale of scores, and would apply it a second time.
const LAYERS_OF_GEMMA3_27B: usize = 62;

/// A tensor of the file.
pub(super) struct Planned<'a> {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub ty: BlockType,
    /// Where its rows don't fit the type that was meant.
    pub fallback: Option<Fallback>,
    pub rows: Rows<'a>,
}

impl Planned<'_> {
    /// Bytes in the file.
    pub fn bytes(&self) -> usize {
        self.ty.row_bytes(self.rows.cols).unwrap_or(0) * self.rows.rows
    }
}

/// All tensors of `model`'s file in `ty`; where that is `None`, each in its own type.
pub(super) fn planned(model: &Model, ty: Option<BlockType>) -> Result<Vec<Planned<'_>>> {
    if model.files.gguf().is_some() { of_gguf(model, ty) } else { of_folder(model, ty) }
}

fn of_gguf(model: &Model, ty: Option<BlockType>) -> Result<Vec<Planned<'_>>> {
    let mut all = Vec::new();
    let tied = model.files.info("output.weight").is_none();
    let head = if tied { "token_embd.weight" } else { "output.weight" };
    for info in model.files.tensors() {
        let Some(rows) = Rows::find(&model.files, &info.name)? else { continue };
        // Vectors, and the divisors of rotations, stay as they are.
        let ty = ty.filter(|_| info.shape.len() > 1).or(rows.ty()).unwrap_or(BlockType::F32);
        all.push(plan(info.name.to_string(), info.shape.to_vec(), ty, &*info.name == head, rows));
    }
    Ok(all)
}

fn of_folder(model: &Model, ty: Option<BlockType>) -> Result<Vec<Planned<'_>>> {
    let config = &model.config;
    let graph = config.graph(None)?;
    let head = if config.tied { "token_embd.weight" } else { "output.weight" };
    let names = graph.weights.iter().map(|weight| (&weight.name, vec![weight.rows, weight.cols], 0.0));
    let vectors = graph.vectors.iter().map(|vector| (&vector.name, vec![vector.len], vector.plus));
    let mut all = Vec::new();
    for (name, shape, plus) in names.chain(vectors) {
        let fault = |fault: String| Error::Model { path: model.files.path().into(), fault };
        let rows = Rows::find(&model.files, name)?;
        let mut rows = rows.ok_or_else(|| fault(format!("tensor {name} is missing")))?;
        let found = rows.shape();
        if found != shape {
            return Err(fault(format!("tensor {name} has shape {found:?} where the configuration says {shape:?}")));
        }
        let known = config.family.architecture().is_some();
        let inside = name.strip_prefix(&config.prefix).filter(|_| known).unwrap_or(name);
        let renamed = gguf_name(config.family, inside).ok_or_else(|| fault(format!("GGUF has no name for {name}")))?;
        rows.plus = plus;
        if config.family == Family::Gemma3Text && inside.contains(".q_norm.") && config.layers != LAYERS_OF_GEMMA3_27B {
            // llama.cpp scales scores by 1 / sqrt(head_dim): what else the model wants goes into the norm of queries.
            rows.times = config.attention_scale * (config.head_dim as f32).sqrt();
        }
        let turns = [".q_proj.", ".k_proj."].iter().any(|name| inside.contains(name));
        if turns && config.family.architecture() == Some("llama") {
            rows = rows.turned(config.head_dim);
        }
        let own = rows.ty().unwrap_or(BlockType::BF16);
        let ty = if shape.len() < 2 { BlockType::F32 } else { ty.unwrap_or(own) };
        let is_head = renamed == head;
        all.push(plan(renamed, shape, ty, is_head, rows));
    }
    Ok(all)
}

fn plan(name: String, shape: Vec<usize>, ty: BlockType, head: bool, rows: Rows<'_>) -> Planned<'_> {
    let cols = shape.last().copied().unwrap_or(1);
    // A tensor that keeps its type, the head among them, is copied.
    let meant = if Some(ty) == rows.ty() { ty } else { wanted(ty, head) };
    let got = dividing(meant, cols);
    let fallback = (got != meant).then_some(Fallback { cols, wanted: meant, got });
    Planned { name, shape, ty: got, fallback, rows }
}
