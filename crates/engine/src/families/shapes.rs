//! Real configurations by name, for questions about a model that isn't there yet and for benchmarks on random weights. Each is
//! what [`Config::read`] gives for a GGUF file of that model (of OPT and RoBERTa, for its folder). It holds no weights and no tokenizer, and
//! it refuses to guess: a name that isn't here is an error that says which are.

use pocketune_kernels::activation::Act;
use pocketune_kernels::rope::Pairs;

use super::{Config, Family, Learned, RopeSpec, Scaling, gemma3_text, opt};
use crate::error::{Error, Result};

/// The configuration of the model called `name`.
///
/// # Errors
/// When the name is unknown.
pub fn shape(name: &str) -> Result<Config> {
    let Some(shape) = SHAPES.iter().find(|shape| shape.name == name) else {
        let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        let fault = format!("unknown; known are {}", names.join(", "));
        return Err(Error::Option { option: "shape", value: name.into(), fault });
    };
    Ok(shape.config())
}

/// The numbers that tell one model of a family from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// What users call it.
    pub name: &'static str,
    /// Its family.
    pub family: Family,
    hidden: usize,
    layers: usize,
    ffn: usize,
    vocab: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    tied: bool,
    theta: f64,
    positions: usize,
    window: Option<usize>,
    stretch: Stretch,
}

/// How the rotation of a shape is stretched.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stretch {
    No,
    Linear(f64),
    Llama3(f64),
}

/// Every shape with a name, in the order of families and sizes.
#[rustfmt::skip]
pub const SHAPES: [Shape; 18] = [
    //  name              family             hidden, layers, ffn, vocab   heads, kv, dim    head   theta   positions
    row("smollm2-135m",   Family::Llama,     [ 576, 30,  1536,  49152], [ 9,  3,  64], TIED,   1e5,   8192),
    row("smollm2-360m",   Family::Llama,     [ 960, 32,  2560,  49152], [15,  5,  64], TIED,   1e5,   8192),
    row("smollm2-1.7b",   Family::Llama,     [2048, 24,  8192,  49152], [32, 32,  64], TIED,   1.3e5, 8192),
    row("tinyllama-1.1b", Family::Llama,     [2048, 22,  5632,  32000], [32,  4,  64], UNTIED, 1e4,   2048),
    row("llama-3.2-1b",   Family::Llama,     [2048, 16,  8192, 128256], [32,  8,  64], TIED,   5e5, 131072).llama3(32.0),
    row("llama-3.2-3b",   Family::Llama,     [3072, 28,  8192, 128256], [24,  8, 128], TIED,   5e5, 131072).llama3(32.0),
    row("qwen2.5-0.5b",   Family::Qwen2,     [ 896, 24,  4864, 151936], [14,  2,  64], TIED,   1e6,  32768),
    row("qwen2.5-1.5b",   Family::Qwen2,     [1536, 28,  8960, 151936], [12,  2, 128], TIED,   1e6,  32768),
    row("qwen2.5-3b",     Family::Qwen2,     [2048, 36, 11008, 151936], [16,  2, 128], TIED,   1e6,  32768),
    row("qwen2.5-7b",     Family::Qwen2,     [3584, 28, 18944, 152064], [28,  4, 128], UNTIED, 1e6,  32768),
    row("qwen3-0.6b",     Family::Qwen3,     [1024, 28,  3072, 151936], [16,  8, 128], TIED,   1e6,  40960),
    row("qwen3-1.7b",     Family::Qwen3,     [2048, 28,  6144, 151936], [16,  8, 128], TIED,   1e6,  40960),
    row("qwen3-4b",       Family::Qwen3,     [2560, 36,  9728, 151936], [32,  8, 128], TIED,   1e6,  40960),
    row("gemma3-270m",    Family::Gemma3Text,[ 640, 18,  2048, 262144], [ 4,  1, 256], TIED,   1e6,  32768).window(512),
    row("gemma3-1b",      Family::Gemma3Text,[1152, 26,  6912, 262144], [ 4,  1, 256], TIED,   1e6,  32768).window(512),
    row("gemma3-4b",      Family::Gemma3Text,[2560, 34, 10240, 262208], [ 8,  4, 256], TIED,   1e6, 131072).window(1024).linear(8.0),
    row("opt-1.3b",       Family::Opt,       [2048, 24,  8192,  50272], [32, 32,  64], TIED,   0.0,   2048),
    row("roberta-large",  Family::Roberta,   [1024, 24,  4096,  50265], [16, 16,  64], TIED,   0.0,    512),
];

const TIED: bool = true;
const UNTIED: bool = false;

const fn row(
    name: &'static str,
    family: Family,
    [hidden, layers, ffn, vocab]: [usize; 4],
    [heads, kv_heads, head_dim]: [usize; 3],
    tied: bool,
    theta: f64,
    positions: usize,
) -> Shape {
    let (window, stretch) = (None, Stretch::No);
    Shape {
        name,
        family,
        hidden,
        layers,
        ffn,
        vocab,
        heads,
        kv_heads,
        head_dim,
        tied,
        theta,
        positions,
        window,
        stretch,
    }
}

impl Shape {
    /// Its configuration.
    pub fn config(&self) -> Config {
        let Self { family, hidden, layers, heads, head_dim, positions, .. } = *self;
        match family {
            Family::Opt | Family::Roberta => self.plain(),
            _ => {
                let gemma = family == Family::Gemma3Text;
                let local_rope = RopeSpec { theta: gemma3_text::LOCAL_THETA, scaling: Scaling::None };
                Config {
                    family,
                    hidden,
                    layers,
                    heads,
                    kv_heads: self.kv_heads,
                    head_dim,
                    ffn: self.ffn,
                    vocab: self.vocab,
                    norm_eps: if family == Family::Llama { 1e-5 } else { 1e-6 },
                    norm_plus: 0.0,
                    tied: self.tied,
                    classes: None,
                    act: if gemma { Act::GeluTanh } else { Act::Silu },
                    learned: None,
                    rope: Some(self.rope()),
                    local_rope: gemma.then_some(local_rope),
                    window: self.window,
                    windowed: (1..=layers).map(|layer| gemma && layer % gemma3_text::PATTERN != 0).collect(),
                    attention_scale: 1.0 / (head_dim as f32).sqrt(),
                    qkv_bias: family == Family::Qwen2,
                    o_bias: false,
                    mlp_bias: false,
                    embed_scale: if gemma { (hidden as f32).sqrt() } else { 1.0 },
                    pairs: if family == Family::Llama { Pairs::Interleaved } else { Pairs::Halves },
                    prefix: "model.".into(),
                    max_positions: Some(positions),
                }
            }
        }
    }

    /// OPT and RoBERTa: both leave the first two rows of their position tables out.
    fn plain(&self) -> Config {
        let Self { family, hidden, layers, heads, head_dim, positions, .. } = *self;
        let opt = family == Family::Opt;
        let learned = Learned { rows: positions + opt::OFFSET, offset: opt::OFFSET, types: usize::from(!opt) };
        let prefix = if opt { "model.decoder." } else { "roberta." }.into();
        Config {
            ffn: self.ffn,
            vocab: self.vocab,
            norm_eps: opt::NORM_EPS,
            tied: self.tied,
            act: if opt { Act::Relu } else { Act::Gelu },
            learned: Some(learned),
            max_positions: Some(positions),
            ..Config::plain(family, hidden, layers, heads, head_dim, prefix)
        }
    }

    fn rope(&self) -> RopeSpec {
        let spec = |scaling| RopeSpec { theta: self.theta, scaling };
        match self.stretch {
            Stretch::No => spec(Scaling::None),
            Stretch::Linear(factor) => spec(Scaling::Linear(factor)),
            Stretch::Llama3(factor) => {
                // A GGUF file has what the scaling comes to, for each frequency.
                let scaling = Scaling::Llama3 { factor, low: 1.0, high: 4.0, original: 8192.0 };
                let stretched = spec(scaling).frequencies(self.head_dim);
                let plain = spec(Scaling::None).frequencies(self.head_dim);
                spec(Scaling::Divisors(plain.iter().zip(stretched).map(|(plain, s)| (plain / s) as f32).collect()))
            }
        }
    }

    const fn window(self, window: usize) -> Self {
        Self { window: Some(window), ..self }
    }

    const fn linear(self, factor: f64) -> Self {
        Self { stretch: Stretch::Linear(factor), ..self }
    }

    const fn llama3(self, factor: f64) -> Self {
        Self { stretch: Stretch::Llama3(factor), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::LoraSpec;

    /// Published counts: adapter parameters with rank 8 on all linears, and parameters of the model (a tied head counted once;
    /// of Gemma 3 4B's 4,300,079,472, those that aren't its vision tower's or projector's).
    const COUNTS: [(&str, usize, usize); 18] = [
        ("smollm2-135m", 2_442_240, 134_515_008),
        ("smollm2-360m", 4_341_760, 361_821_120),
        ("smollm2-1.7b", 9_043_968, 1_711_376_384),
        ("tinyllama-1.1b", 6_307_840, 1_100_048_384),
        ("llama-3.2-1b", 5_636_096, 1_235_814_400),
        ("llama-3.2-3b", 12_156_928, 3_212_749_824),
        ("qwen2.5-0.5b", 4_399_104, 494_032_768),
        ("qwen2.5-1.5b", 9_232_384, 1_543_714_304),
        ("qwen2.5-3b", 14_966_784, 3_085_938_688),
        ("qwen2.5-7b", 20_185_088, 7_615_616_512),
        ("qwen3-0.6b", 5_046_272, 596_049_920),
        ("qwen3-1.7b", 8_716_288, 1_720_574_976),
        ("qwen3-4b", 16_515_072, 4_022_468_096),
        ("gemma3-270m", 1_898_496, 268_098_176),
        ("gemma3-1b", 6_522_880, 999_885_952),
        ("gemma3-4b", 14_901_248, 3_880_263_168),
        ("opt-1.3b", 7_077_888, 1_315_758_080),
        ("roberta-large", 3_538_944, 355_412_057),
    ];

    #[test]
    fn every_shape_has_the_published_number_of_parameters() {
        let lora = LoraSpec::default();
        for (name, adapter, all) in COUNTS {
            let config = shape(name).unwrap();
            config.check().unwrap();
            let graph = config.graph(Some(&lora)).unwrap();
            assert_eq!(graph.trainable(), adapter, "adapter of {name}");
            let weights: usize = graph.weights.iter().map(|weight| weight.rows * weight.cols).sum();
            let vectors: usize = graph.vectors.iter().map(|vector| vector.len).sum();
            assert_eq!(weights + vectors, all, "{name}");
        }
        assert!(SHAPES.iter().map(|shape| shape.name).eq(COUNTS.map(|(name, ..)| name)));
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let refusal = shape("gpt-9").unwrap_err().to_string();
        assert!(refusal.starts_with("--shape gpt-9: unknown; known are smollm2-135m, smollm2-360m,"), "{refusal}");
        assert!(refusal.ends_with("gemma3-4b, opt-1.3b, roberta-large"), "{refusal}");
    }

    #[test]
    fn the_divisors_of_llama_3_leave_short_waves_and_divide_long_ones_by_the_factor() {
        let Scaling::Divisors(divisors) = shape("llama-3.2-1b").unwrap().rope.unwrap().scaling else {
            panic!("no divisors")
        };
        assert_eq!((divisors.len(), divisors[0], divisors[31]), (32, 1.0, 32.0));
        assert!(divisors.is_sorted(), "{divisors:?}");
    }
}
