//! A model's forward pass as a static graph of fifteen coarse operations, one of which may come in two parts. Every value is a matrix of `[tokens, cols]` floats, so
//! the graph holds for any number of tokens. It runs nothing and knows no file.

pub mod adapter;
pub mod builder;
mod classifier;
mod derivatives;
mod op;
mod target;
mod turns;
mod vera;
mod whole;

pub use adapter::{Layers, LoraSpec, Module, hugging_face_row, llama_row};
pub use builder::{Builder, Projection};
pub use classifier::{CLASSIFIER, CLASSIFIER_MODULE, Classifier, Dense};
pub use derivatives::Derivatives;
pub use op::Op;
pub use pocketune_formats::peft::Patterns;
pub use target::{Naming, Target};
pub use turns::Turns;
pub use vera::Vera;

/// A value of the graph, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// A frozen matrix, by number in [`Graph::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightId(pub usize);

/// A frozen vector (norm weight or bias), by number in [`Graph::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub usize);

/// A trainable matrix, by number in [`Graph::params`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// A norm's numbers: layer norm where there is a bias, RMS norm where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// Its weight.
    pub weight: VectorId,
    /// Its bias.
    pub bias: Option<VectorId>,
    /// Added to the mean square or to the variance.
    pub eps: f32,
}

/// Tables whose rows are added to the embedding of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Added {
    /// A row for every position.
    pub positions: WeightId,
    /// The row of the first position.
    pub offset: usize,
    /// Rows of token types, of which every token has the first.
    pub types: Option<WeightId>,
}

/// The factors of an adapter on one of a model's ends, and what their product is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factors {
    /// The first, `[rank, in]`.
    pub a: ParamId,
    /// The second, `[rank, out]`.
    pub b: ParamId,
    /// The scale.
    pub scale: f32,
}

/// A table of rotations, by number in [`Graph::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeId(pub usize);

/// What a value is inside its block; policies choose by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// The residual stream before a block.
    BlockInput,
    /// The residual stream between attention and feed-forward.
    Middle,
    /// The output of a norm that feeds linears.
    Normed,
    /// Queries, keys or values before norm or rotation.
    Projected,
    /// Queries and keys as attention reads them, and values.
    Attended,
    /// The output of attention.
    AttentionOut,
    /// The log-sum-exp of attention's rows.
    LogSumExp,
    /// The gate or up projection, or what is kept in its place: what ReLU made of it, or the levels of its slope.
    Ffn,
    /// The activated projection or the gated product.
    Activated,
    /// The low-rank inside of an adapter.
    LowRank,
    /// A sub-layer's output on its way to the residual sum.
    Branch,
    /// What a linear with magnitudes makes before they are applied.
    Direction,
    /// An adapter's input of which a share was dropped.
    Dropped,
}

impl Role {
    /// All of them.
    pub const ALL: [Role; 13] = [
        Role::BlockInput,
        Role::Middle,
        Role::Normed,
        Role::Projected,
        Role::Attended,
        Role::AttentionOut,
        Role::LogSumExp,
        Role::Ffn,
        Role::Activated,
        Role::LowRank,
        Role::Branch,
        Role::Direction,
        Role::Dropped,
    ];

    /// A short word for reports.
    pub const fn word(self) -> &'static str {
        match self {
            Role::BlockInput => "input",
            Role::Middle => "middle",
            Role::Normed => "normed",
            Role::Projected => "projected",
            Role::Attended => "qkv",
            Role::AttentionOut => "attention",
            Role::LogSumExp => "lse",
            Role::Ffn => "gate/up",
            Role::Activated => "activated",
            Role::LowRank => "lora",
            Role::Branch => "branch",
            Role::Direction => "direction",
            Role::Dropped => "dropped",
        }
    }
}

/// A matrix of `[tokens, cols]` that the graph computes.
#[derive(Clone, Debug)]
pub struct Value {
    /// Its name inside the block, for reports.
    pub name: &'static str,
    /// What it is.
    pub role: Role,
    /// The block that computes it, where one does.
    pub block: Option<usize>,
    /// Elements a token.
    pub cols: usize,
}

/// One operation with the values it reads and makes.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Values it reads.
    pub inputs: Vec<ValueId>,
    /// Values it makes.
    pub outputs: Vec<ValueId>,
    /// The block it belongs to.
    pub block: Option<usize>,
    /// The part of the block it belongs to.
    pub stage: Stage,
}

/// The parts of a block. Before and after attention every row is on its own, so these parts can be worked through in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Up to the queries, keys and values.
    Before,
    /// Attention itself.
    Attention,
    /// From attention's output on.
    After,
}

/// A frozen matrix that the graph multiplies with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightDecl {
    /// Its Hugging Face name.
    pub name: String,
    /// Output dimension.
    pub rows: usize,
    /// Input dimension.
    pub cols: usize,
}

/// A frozen vector.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorDecl {
    /// Its Hugging Face name.
    pub name: String,
    /// Its length.
    pub len: usize,
    /// What is added to every element as it is read (Gemma stores norm weights less one).
    pub plus: f32,
}

/// The frequencies of a rotation: one for each pair of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeDecl {
    /// Radians a position, for each pair.
    pub frequencies: Vec<f64>,
}

/// What a trainable matrix is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// One of [`Graph::modules`].
    Module(usize),
    /// All modules: one of VeRA's two random matrices.
    Shared,
    /// A head that is trained beside adapters: the tensor of this name.
    Saved(&'static str),
    /// The model itself: one of its matrices, which stays on disk.
    Matrix(WeightId),
    /// The model itself: one of its vectors.
    Vector(VectorId),
}

impl Of {
    /// Whether weight decay is for it: of a model, or a head that is saved whole, for matrices alone.
    pub fn decays(self) -> bool {
        match self {
            Of::Module(_) | Of::Shared | Of::Matrix(_) => true,
            Of::Saved(name) => !name.ends_with(".bias"),
            Of::Vector(_) => false,
        }
    }
}

/// A matrix of an adapter, or a tensor of the model where that is trained itself. Both factors of an adapter have `rank` rows: A is `[rank, in]`, B
/// is held transposed, `[rank, out]`. Magnitudes and vectors are one row; of a head, weights have a row for each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// What it is a part of.
    pub of: Of,
    /// Rows: the adapter's rank, one, or those of the model's matrix.
    pub rank: usize,
    /// Columns: input dimension for A and the model's matrices, output dimension for the others.
    pub cols: usize,
    /// Whether it is trained: it has a gradient and a state then, and none otherwise.
    pub trained: bool,
    /// Whether the optimizer's state has room of its own. Blocks that learn in turns share that of the first ones.
    pub remembered: bool,
}

impl Param {
    /// Number of elements.
    pub const fn len(&self) -> usize {
        self.rank * self.cols
    }

    /// Number of elements that are trained.
    pub const fn trained_len(&self) -> usize {
        if self.trained { self.len() } else { 0 }
    }

    /// Whether it has no elements.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The forward pass of a model with its adapters.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Values, in the order they are made.
    pub values: Vec<Value>,
    /// Operations, in an order that computes everything before it is read.
    pub nodes: Vec<Node>,
    /// Frozen matrices.
    pub weights: Vec<WeightDecl>,
    /// Frozen vectors.
    pub vectors: Vec<VectorDecl>,
    /// Rotations.
    pub ropes: Vec<RopeDecl>,
    /// Adapted linears; each names its params.
    pub modules: Vec<Module>,
    /// How its linears are called.
    pub naming: Naming,
    /// The adapters' matrices (with VeRA the two that are shared come first), or the model's own tensors where those are trained.
    pub params: Vec<Param>,
    /// Whether the model's own tensors are trained: its matrices, then its vectors, in their order.
    pub whole: bool,
    /// How blocks take turns, where they do.
    pub turns: Option<Turns>,
    /// Number of blocks.
    pub blocks: usize,
    /// Most tokens a record may have, where the model says.
    pub vocab: usize,
}

impl Graph {
    /// The node that makes each value.
    pub fn producers(&self) -> Vec<usize> {
        let mut producers = vec![usize::MAX; self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for output in &node.outputs {
                producers[output.0] = at;
            }
        }
        producers
    }

    /// Which values depend on a trainable matrix, so that a gradient must flow through them. Nothing else gets one.
    pub fn needs_gradient(&self) -> Vec<bool> {
        let mut needs = vec![false; self.values.len()];
        for node in &self.nodes {
            let params = node.op.params().into_iter().chain(self.tensors_of(&node.op));
            let trained = params.into_iter().any(|id| self.params[id.0].trained);
            let trainable = trained || node.inputs.iter().any(|input| needs[input.0]);
            for output in &node.outputs {
                needs[output.0] = trainable;
            }
        }
        needs
    }

    /// The block that each trainable matrix is multiplied in.
    pub fn blocks_of_params(&self) -> Vec<Option<usize>> {
        let mut blocks = vec![None; self.params.len()];
        for node in &self.nodes {
            let tensors = self.tensors_of(&node.op);
            node.op.params().into_iter().chain(tensors).for_each(|id| blocks[id.0] = node.block);
        }
        blocks
    }

    /// Trainable numbers.
    pub fn trainable(&self) -> usize {
        self.params.iter().map(Param::trained_len).sum()
    }
}
