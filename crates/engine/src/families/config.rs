//! The numbers of a model, in one form for every family and file format.

use pocketune_kernels::gated::Act;
use pocketune_kernels::rope::Pairs;

/// A family of models, named after its `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma3Text,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 5] = [Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Gemma3Text];

    /// The `model_type` of Hugging Face configurations.
    pub const fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3Text => "gemma3_text",
        }
    }

    /// The `general.architecture` of GGUF files. Mistral models are `llama` there.
    pub const fn architecture(self) -> &'static str {
        match self {
            Family::Llama | Family::Mistral => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3Text => "gemma3",
        }
    }
}

/// How rotation frequencies are stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum Scaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f64),
    /// Llama 3: long wavelengths divided by a factor, short ones kept, a ramp between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low` are long.
        low: f64,
        /// Wavelengths below `original / high` are short.
        high: f64,
        /// Positions the model was first trained with.
        original: f64,
    },
    /// Each divided by a number of its own (GGUF's `rope_freqs.weight`).
    Divisors(Vec<f32>),
}

/// One kind of rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// The base.
    pub theta: f64,
    /// How it is stretched.
    pub scaling: Scaling,
}

/// The configuration of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which family.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the feed-forward.
    pub ffn: usize,
    /// Size of the vocabulary.
    pub vocab: usize,
    /// Added to the mean square in norms.
    pub norm_eps: f32,
    /// Added to norm weights.
    pub norm_plus: f32,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// The activation of the gate.
    pub act: Act,
    /// Rotation of layers that see everything.
    pub rope: RopeSpec,
    /// Rotation of layers with a window, where it differs.
    pub local_rope: Option<RopeSpec>,
    /// Keys a windowed layer sees.
    pub window: Option<usize>,
    /// Which layers are windowed.
    pub windowed: Vec<bool>,
    /// What scores are multiplied with.
    pub attention_scale: f32,
    /// Biases on q, k and v.
    pub qkv_bias: bool,
    /// A bias on the attention's output.
    pub o_bias: bool,
    /// Biases in the feed-forward.
    pub mlp_bias: bool,
    /// What embeddings are multiplied with.
    pub embed_scale: f32,
    /// How the rows of q and k lie in the file.
    pub pairs: Pairs,
    /// What tensor names start with.
    pub prefix: String,
    /// Most positions the model was made for, where it says.
    pub max_positions: Option<usize>,
}

impl Config {
    /// Bounds every number: they size allocations, and a file can say anything.
    pub(super) fn check(&self) -> Result<(), String> {
        let bounds = [
            ("hidden size", self.hidden, 65_536),
            ("number of layers", self.layers, 1_024),
            ("number of heads", self.heads, 1_024),
            ("number of key/value heads", self.kv_heads, 1_024),
            ("head dimension", self.head_dim, 1_024),
            ("feed-forward size", self.ffn, 1 << 20),
            ("vocabulary size", self.vocab, 1 << 22),
        ];
        for (what, number, limit) in bounds {
            if number == 0 || number > limit {
                return Err(format!("{what} {number}: it lies between 1 and {limit}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!("{} heads can't share {} key/value heads evenly", self.heads, self.kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head dimension {}: rotary positions need an even one", self.head_dim));
        }
        if self.window == Some(0) {
            return Err("sliding window 0: no query would see anything".into());
        }
        let finite = [self.norm_eps, self.attention_scale, self.embed_scale].iter().all(|x| x.is_finite());
        if !finite || !self.rope.theta.is_finite() || self.rope.theta <= 0.0 {
            return Err("a configuration number is not finite".into());
        }
        Ok(())
    }
}
