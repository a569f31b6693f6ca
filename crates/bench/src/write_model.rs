//! A GGUF file of a configuration, streamed: the header from what the graph of the model names, then tensor after tensor of random
//! blocks. The same configuration gives the same file. It knows no family by name: what a graph reads is what is written.

use std::io::{self, Write};
use std::path::Path;

use pocketune::families::{Config, Scaling, gguf_name};
use pocketune_kernels::BlockType;
use pocketune_kernels::philox::Philox;

use crate::failure::{Failure, Result};
use crate::weights::WeightType;
use crate::{metadata, tokenizer, weights, write_whole};
use pocketune_formats::gguf::{ALIGNMENT, Header};

const SEED: u64 = 0;

/// Writes the model called `name`, with matrices of type `ty`.
///
/// # Errors
/// The system's; no half-written file is left.
pub fn write(config: &Config, name: &str, ty: WeightType, path: &Path) -> Result<()> {
    let Some(architecture) = config.family.architecture() else {
        return Err(Failure::new(format!("{name}: GGUF has no models of the family {}", config.family.model_type())));
    };
    let tensors = tensors(config, ty)?;
    let mut header = Header::default();
    metadata::write(&mut header, config, architecture, name, ty);
    tokenizer::write(&mut header, config.vocab);
    for tensor in &tensors {
        header.tensor(&tensor.name, &tensor.dims, tensor.content.layout(), tensor.bytes());
    }
    write_whole(path, |out| {
        out.write_all(&header.finish())?;
        tensors.iter().zip(0..).try_for_each(|(tensor, stream)| tensor.write(out, Philox::new(SEED, stream)))
    })
}

struct Tensor {
    name: String,
    /// Outermost first.
    dims: Vec<usize>,
    content: Content,
}

enum Content {
    Blocks(BlockType),
    /// The weight of a norm.
    Ones,
    /// A bias.
    Small,
    Floats(Vec<f32>),
}

impl Content {
    fn layout(&self) -> BlockType {
        match self {
            Content::Blocks(ty) => *ty,
            Content::Ones | Content::Small | Content::Floats(_) => BlockType::F32,
        }
    }
}

impl Tensor {
    fn bytes(&self) -> usize {
        let layout = self.content.layout();
        self.dims.iter().product::<usize>() / layout.block_len() * layout.block_bytes()
    }

    fn write(&self, out: &mut dyn Write, random: Philox) -> io::Result<()> {
        let floats = 0..self.bytes() as u64 / 4;
        match &self.content {
            Content::Blocks(ty) => weights::write(out, *ty, self.bytes(), random)?,
            Content::Ones => floats.map(|_| 1.0_f32).try_for_each(|x| out.write_all(&x.to_le_bytes()))?,
            Content::Small => {
                floats.map(|at| (random.uniform(at) - 0.5) * 0.02).try_for_each(|x| out.write_all(&x.to_le_bytes()))?;
            }
            Content::Floats(floats) => floats.iter().try_for_each(|x| out.write_all(&x.to_le_bytes()))?,
        }
        let padding = self.bytes().next_multiple_of(ALIGNMENT) - self.bytes();
        out.write_all(&[0; ALIGNMENT][..padding])
    }
}

/// What the file holds, in the order of converters: embedding, blocks, norm and head.
fn tensors(config: &Config, ty: WeightType) -> Result<Vec<Tensor>> {
    let graph = config.graph(None)?;
    let name = |hf: &str| gguf_name(config.family, hf).expect("every tensor of a graph has a name in GGUF");
    let mut tensors = Vec::new();
    if let Some(Scaling::Divisors(divisors)) = config.rope.as_ref().map(|rope| &rope.scaling) {
        let content = Content::Floats(divisors.clone());
        tensors.push(Tensor { name: "rope_freqs.weight".into(), dims: vec![divisors.len()], content });
    }
    for weight in &graph.weights {
        let content = Content::Blocks(ty.layout(weight.cols));
        tensors.push(Tensor { name: name(&weight.name), dims: vec![weight.rows, weight.cols], content });
    }
    for vector in &graph.vectors {
        let content = if vector.name.ends_with(".bias") { Content::Small } else { Content::Ones };
        tensors.push(Tensor { name: name(&vector.name), dims: vec![vector.len], content });
    }
    tensors.sort_by_key(|tensor| place(&tensor.name));
    Ok(tensors)
}

/// Where a tensor comes: before the blocks, in one, or after them.
fn place(name: &str) -> usize {
    match name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse::<usize>().ok()) {
        Some(block) => 1 + block,
        None if name.starts_with("output") => usize::MAX,
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pocketune::backend::{Stored, Weights};
    use pocketune::families::shape;
    use pocketune_formats::ModelFiles;
    use pocketune_text::{ExampleMaker, Form, Mask, Reading, Records, Tokenizer};

    /// A model with all that is special about a real one, in few numbers.
    fn small(name: &str) -> Config {
        let config = shape(name).unwrap();
        let windowed = config.windowed[..7].to_vec();
        // Gemma scales embeddings by the root of the width.
        let embed_scale = if config.embed_scale == 1.0 { 1.0 } else { 16.0 };
        let small = Config { hidden: 256, ffn: 96, vocab: 1000, heads: 4, kv_heads: 2, layers: 7, ..config };
        Config { windowed, embed_scale, ..small }
    }

    fn written(config: &Config, ty: WeightType) -> (tempfile::TempDir, ModelFiles) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        write(config, "small", ty, &path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the model is left");
        let files = ModelFiles::open(&path).unwrap();
        (folder, files)
    }

    #[test]
    fn a_written_model_reads_back_as_the_configuration_it_was_written_from() {
        let shapes = ["smollm2-135m", "tinyllama-1.1b", "llama-3.2-1b", "qwen2.5-0.5b", "qwen3-0.6b", "gemma3-4b"];
        for name in shapes {
            let config = small(name);
            let (_folder, files) = written(&config, WeightType::Q4_0);
            assert_eq!(Config::read(&files).unwrap(), config, "{name}");
        }
    }

    #[test]
    fn every_tensor_of_the_graph_is_there_and_finite_whatever_the_type() {
        for ty in [WeightType::Q4_0, WeightType::Q4_1, WeightType::Q4_K, WeightType::Q8_0] {
            for name in ["tinyllama-1.1b", "qwen2.5-0.5b", "gemma3-1b"] {
                let config = small(name);
                let graph = config.graph(None).unwrap();
                let (_folder, files) = written(&config, ty);
                let weights = Weights::bind(files, &config, &graph).unwrap();
                assert!(weights.find_not_finite().is_none(), "{name} {ty:?}");
                let layouts: Vec<Stored> = graph.weights.iter().map(|weight| ty.layout(weight.cols).into()).collect();
                assert_eq!(weights.stored(), layouts, "{name} {ty:?}");
            }
        }
    }

    #[test]
    fn the_tokenizer_has_all_tokens_and_takes_lower_case_text_byte_by_byte() {
        let config = small("qwen2.5-0.5b");
        let (_folder, files) = written(&config, WeightType::Q4_0);
        let tokenizer = Tokenizer::from_gguf(files.gguf().unwrap()).unwrap();
        let ids = |text| {
            let mut ids = Vec::new();
            tokenizer.encode(text, true, &mut ids);
            ids
        };
        assert_eq!(ids("a cat\n"), b"a cat\n".map(u32::from));
        assert_eq!(ids("AB").len(), 1, "merges work");
        assert_eq!(tokenizer.eos(), Some(999));
    }

    #[test]
    fn records_have_exactly_as_many_tokens_as_were_asked_for() {
        let (folder, files) = written(&small("qwen2.5-0.5b"), WeightType::Q4_0);
        let tokenizer = Tokenizer::from_gguf(files.gguf().unwrap()).unwrap();
        let path = folder.path().join("data.jsonl");
        crate::write_data::write(100, 3, &path).unwrap();
        let text = std::fs::read(&path).unwrap();
        let maker = ExampleMaker::new(&tokenizer, None, 1000, Mask::None);
        let mut lengths = Vec::new();
        for record in Records::new(&text[..], Form::Lines, Reading::default()) {
            maker.examples(&record.unwrap().1, &mut |example| lengths.push(example.ids.len())).unwrap();
        }
        assert_eq!(lengths, [101; 3], "100 and the end");
    }
}
