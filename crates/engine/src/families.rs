//! One file per `model_type`: how its configuration is read and what its blocks compute. No kernels, no derivatives.

mod config;
mod decoder;
mod gemma3_text;
mod llama;
mod mistral;
mod names;
mod opt;
mod plain;
mod qwen2;
mod qwen3;
mod roberta;
mod rope;
mod shapes;
mod source;

pub use config::{Config, Family, Learned, RopeSpec, Scaling};
pub use names::gguf_name;
pub use shapes::{SHAPES, Shape, shape};

use pocketune_formats::ModelFiles;

use crate::error::{Error, Result};
use crate::graph::{Builder, Graph, LoraSpec, ValueId};

impl Config {
    /// Reads the configuration of a model.
    ///
    /// # Errors
    /// When the architecture is unknown, a number is missing or out of bounds, or a tensor has another shape than it says.
    pub fn read(files: &ModelFiles) -> Result<Self> {
        let source = source::Source::new(files)?;
        let config = match source.family()? {
            Family::Llama => llama::config(&source),
            Family::Mistral => mistral::config(&source),
            Family::Qwen2 => qwen2::config(&source),
            Family::Qwen3 => qwen3::config(&source),
            Family::Gemma3Text => gemma3_text::config(&source),
            Family::Opt => opt::config(&source),
            Family::Roberta => roberta::config(&source),
        }?;
        config.check().map_err(|fault| source.fault(fault))?;
        Ok(config)
    }

    /// The graph of the model, with adapters where `lora` says.
    ///
    /// # Errors
    /// When there are fewer layers than are to be trained, or a linear is too small for the rank.
    pub fn graph(&self, lora: Option<&LoraSpec>) -> Result<Graph> {
        if let Some(lora) = lora.filter(|lora| lora.whole) {
            let graph = self.graph(None)?.trained_whole();
            return Ok(match lora.turns {
                Some(turns) => graph.in_turns(turns),
                None => graph,
            });
        }
        if let Some(lora) = lora {
            lora.check()?;
            lora.layers.check(self.layers)?;
            lora.check_targets(self.family.naming())?;
            if lora.classes.is_some() && self.family != Family::Roberta {
                let fault = format!(
                    "a model of the family {} has no head of classes here; roberta has",
                    self.family.model_type()
                );
                return Err(Error::Option { option: "classification-head", value: String::new(), fault });
            }
        }
        let graph = match (self.family, self.learned) {
            (Family::Opt, Some(learned)) => opt::graph(self, learned, lora),
            (Family::Roberta, Some(learned)) => roberta::graph(self, learned, lora),
            _ => self.decoder(lora),
        };
        lora.map_or(Ok(()), |lora| lora.check_patterns(&graph.modules))?;
        Ok(graph)
    }

    /// The families with rotations.
    fn decoder(&self, lora: Option<&LoraSpec>) -> Graph {
        let mut b = Builder::new(&self.prefix, self.family.naming(), self.layers, lora);
        let tables = decoder::RopeTables::new(&mut b, self);
        let table = b.name("embed_tokens.weight");
        let table = b.table(&table, self.vocab, self.hidden);
        let mut x: ValueId = b.embed(table, self.embed_scale, None);
        for block in 0..self.layers {
            b.enter(block);
            x = match self.family {
                Family::Llama => llama::block(&mut b, self, &tables, x),
                Family::Mistral => mistral::block(&mut b, self, &tables, x),
                Family::Qwen2 => qwen2::block(&mut b, self, &tables, x),
                Family::Qwen3 => qwen3::block(&mut b, self, &tables, x),
                Family::Gemma3Text => gemma3_text::block(&mut b, self, &tables, x, block),
                Family::Opt | Family::Roberta => unreachable!("they have no rotations"),
            };
        }
        b.leave();
        let x = b.norm(x, "norm", crate::graph::Role::Normed, self.hidden, self.norm_eps, self.norm_plus);
        let head = if self.tied { format!("{}embed_tokens.weight", self.prefix) } else { "lm_head.weight".into() };
        b.cross_entropy(x, &head, None)
    }
}
