//! The numbers of a model, in one form for every family and file format.

use pocketune_kernels::activation::Act;
use pocketune_kernels::rope::Pairs;

use crate::graph::Naming;

/// A family of models, named after its `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Gemma3Text,
    Opt,
    Roberta,
}

impl Family {
    /// All of them.
    pub const ALL: [Family; 7] = [
        Family::Llama,
        Family::Mistral,
        Family::Qwen2,
        Family::Qwen3,
        Family::Gemma3Text,
        Family::Opt,
        Family::Roberta,
    ];

    /// The `model_type` of Hugging Face configurations.
    pub const fn model_type(self) -> &'static str {
        match self {
            Family::Llama => "llama",
            Family::Mistral => "mistral",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Gemma3Text => "gemma3_text",
            Family::Opt => "opt",
            Family::Roberta => "roberta",
        }
    }

    /// The `general.architecture` of GGUF files, where there are any. Mistral models are `llama` there.
    pub const fn architecture(self) -> Option<&'static str> {
        match self {
            Family::Llama | Family::Mistral => Some("llama"),
            Family::Qwen2 => Some("qwen2"),
            Family::Qwen3 => Some("qwen3"),
            Family::Gemma3Text => Some("gemma3"),
            Family::Opt | Family::Roberta => None,
        }
    }

    /// How its blocks call their linears.
    pub const fn naming(self) -> Naming {
        match self {
            Family::Llama | Family::Mistral | Family::Qwen2 | Family::Qwen3 | Family::Gemma3Text => Naming::Llama,
            Family::Opt => Naming::Opt,
            Family::Roberta => Naming::Roberta,
        }
    }

    /// Whether a token sees those after it, so that there is no next token to predict.
    pub const fn is_encoder(self) -> bool {
        matches!(self, Family::Roberta)
    }
}

/// A table of learned positions, and of token types where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Rows of the table.
    pub rows: usize,
    /// The row of the first position.
    pub offset: usize,
    /// Token types, of which every token has the first.
    pub types: usize,
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

/// Most layers of a model; the deepest of the families have 126.
pub(super) const MAX_LAYERS: usize = 1_024;

/// Most classes of a head; ImageNet has as many.
pub(super) const MOST_CLASSES: usize = 1_000;

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
    /// Added to the mean square or the variance in norms.
    pub norm_eps: f32,
    /// Added to norm weights.
    pub norm_plus: f32,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// Classes that its own head tells apart, where that is what it has in the place of one for tokens.
    pub classes: Option<usize>,
    /// The activation of the feed-forward.
    pub act: Act,
    /// Learned positions, where there are any.
    pub learned: Option<Learned>,
    /// Rotation of layers that see everything, where positions are rotations.
    pub rope: Option<RopeSpec>,
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
    /// Layer norms, biases everywhere, a tied head, ReLU, and no numbers that a family has to say.
    pub(super) fn plain(
        family: Family,
        hidden: usize,
        layers: usize,
        heads: usize,
        head_dim: usize,
        prefix: String,
    ) -> Self {
        Self {
            family,
            hidden,
            layers,
            heads,
            kv_heads: heads,
            head_dim,
            ffn: 0,
            vocab: 0,
            norm_eps: 1e-5,
            norm_plus: 0.0,
            tied: true,
            classes: None,
            act: Act::Relu,
            learned: None,
            rope: None,
            local_rope: None,
            window: None,
            windowed: vec![false; layers],
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            qkv_bias: true,
            o_bias: true,
            mlp_bias: true,
            embed_scale: 1.0,
            pairs: Pairs::Halves,
            prefix,
            max_positions: None,
        }
    }

    /// The most tokens of `wanted` that a record may have: a table of learned positions ends somewhere.
    pub fn longest(&self, wanted: usize) -> usize {
        self.learned.map_or(wanted, |learned| wanted.min(learned.rows - learned.offset))
    }

    /// Bounds every number: they size allocations, and a file can say anything.
    pub(super) fn check(&self) -> Result<(), String> {
        let bounds = [
            ("hidden size", self.hidden, 65_536),
            ("number of layers", self.layers, MAX_LAYERS),
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
        if self.learned.is_some() && self.heads * self.head_dim != self.hidden {
            return Err(format!("{} heads can't share a hidden size of {} evenly", self.heads, self.hidden));
        }
        let beyond = |learned: &Learned| learned.rows <= learned.offset || learned.rows.max(learned.types) > 1 << 22;
        if let Some(Learned { rows, offset, types }) = self.learned.filter(beyond) {
            return Err(format!("{rows} learned positions from {offset} on and {types} token types can't be"));
        }
        if self.rope.is_some() && !self.head_dim.is_multiple_of(2) {
            return Err(format!("head dimension {}: rotary positions need an even one", self.head_dim));
        }
        if self.window == Some(0) {
            return Err("sliding window 0: no query would see anything".into());
        }
        let finite = [self.norm_eps, self.attention_scale, self.embed_scale].iter().all(|x| x.is_finite());
        if !finite || self.rope.as_ref().is_some_and(|rope| !rope.theta.is_finite() || rope.theta <= 0.0) {
            return Err("a configuration number is not finite".into());
        }
        Ok(())
    }
}
