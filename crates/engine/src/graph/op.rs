//! The operations, and for each: which of its values its derivative reads, whether it may overwrite an input, and its cost.

use pocketune_kernels::activation::Act;
use pocketune_kernels::attention::{Heads, Window};
use pocketune_kernels::levels::Steps;
use pocketune_kernels::rope::Pairs;

use super::{Added, Classifier, Factors, Graph, Node, Norm, ParamId, RopeId, ValueId, VectorId, Vera, WeightId};

/// A coarse operation. The derivative of each lies beside its forward in the kernel of the same name.
#[derive(Clone, Debug)]
pub enum Op {
    /// Rows of a table, by token, times a scale, and rows of others by position: `-> x`.
    Embed {
        /// The table, `[vocab, hidden]`.
        weight: WeightId,
        /// What rows are multiplied with.
        scale: f32,
        /// What is added to them.
        added: Option<Added>,
        /// Its adapter: `scale B A` of the token's column of A is added too.
        lora: Option<Factors>,
    },
    /// A norm over groups of columns, as many as its weight has elements: `x -> y`.
    Norm(Norm),
    /// The first part of a norm whose derivative does not read its input: `x -> n, rstd`.
    Normalise(Norm),
    /// The second: `n -> y = n w + b`. Cheap, so that `y` is made again of `n` where it is read, and never kept. What reaches `n` is the
    /// gradient of `y`: the first part's derivative has the weight in it.
    Affine(Norm),
    /// An adapter's input with a share of it dropped, and the rest scaled so that its mean stays: `x -> d`. Only while training.
    Dropout {
        /// The share.
        share: f32,
        /// Tells its random numbers from those of others.
        stream: u64,
    },
    /// The first factor of an adapter, scaled: `x -> h = scale x Aᵀ`.
    LoraDown {
        /// The factor A.
        a: ParamId,
        /// alpha / rank.
        scale: f32,
    },
    /// A frozen linear with the second factor of its adapter: `x [, h] -> y = x Wᵀ + bias + h Bᵀ`.
    Linear {
        /// The frozen matrix.
        weight: WeightId,
        /// Added to every row.
        bias: Option<VectorId>,
        /// The factor B and the scale that its `h` carries.
        lora: Option<(ParamId, f32)>,
    },
    /// DoRA's magnitudes: `z -> y = z m / n + bias`, where `n` has the lengths of the rows of `W + scale Bᵀ A`. As in the paper and in PEFT
    /// the lengths count as constant where they are differentiated.
    Magnitude {
        /// Which of [`Graph::modules`].
        module: usize,
        /// The frozen matrix.
        weight: WeightId,
        /// Added to every row.
        bias: Option<VectorId>,
        /// What the product of the factors is multiplied with.
        scale: f32,
        /// The magnitudes.
        m: ParamId,
    },
    /// The product with the matrix that all of VeRA's modules share: `x -> h = x Aᵀ`.
    VeraDown(Vera),
    /// What VeRA adds to a linear, in its place: `y, h -> y + ((h ∘ d) Bᵀ) ∘ b`.
    VeraUp(Vera),
    /// Rotary positions, in place: `x -> y`.
    Rope {
        /// The angles.
        table: RopeId,
        /// Elements of a head.
        d: usize,
        /// How elements pair up.
        pairs: Pairs,
    },
    /// Attention: `q, k, v -> out, lse`.
    Attention {
        /// Its shape.
        heads: Heads,
    },
    /// `gate, up -> act(gate) up`.
    Gated {
        /// The activation.
        act: Act,
        /// What its slope is taken for.
        steps: Option<Steps>,
    },
    /// `x -> act(x)`; ReLU in place. With steps, `x -> act(x), levels`.
    Activation {
        /// The activation.
        act: Act,
        /// What its slope is taken for.
        steps: Option<Steps>,
    },
    /// The residual sum, in place of the branch: `x, branch -> y`.
    Add,
    /// The head and the loss in one: `x ->`; logits never exist whole.
    CrossEntropy {
        /// The head, `[vocab, hidden]`.
        weight: WeightId,
        /// Added to the logits.
        bias: Option<VectorId>,
        /// Its adapter.
        lora: Option<Factors>,
        /// Whether strips that hardly matter to a token are left out of its gradient.
        skip: bool,
    },
    /// A head of classes that is trained beside adapters, and the loss: `x ->`, of labelled rows alone.
    Classify(Classifier),
}

impl Op {
    /// The adapter's matrices it multiplies with.
    pub fn params(&self) -> Vec<ParamId> {
        match self {
            Op::LoraDown { a, .. } => vec![*a],
            Op::Linear { lora: Some((b, _)), .. } => vec![*b],
            Op::Magnitude { m, .. } => vec![*m],
            Op::VeraUp(vera) => vec![vera.lambda_d, vera.lambda_b],
            Op::Classify(head) => head.params().into(),
            Op::Embed { lora: Some(lora), .. } | Op::CrossEntropy { lora: Some(lora), .. } => vec![lora.a, lora.b],
            _ => Vec::new(),
        }
    }

    /// The input that its output takes the place of.
    pub const fn in_place(&self) -> Option<usize> {
        match self {
            Op::Rope { .. } | Op::VeraUp(_) | Op::Activation { act: Act::Relu, .. } => Some(0),
            Op::Add => Some(1),
            _ => None,
        }
    }
}

impl Node {
    /// The values that this node's derivative reads, given which inputs need a gradient.
    pub fn derivative_reads(&self, graph: &Graph, needs: &[bool]) -> Vec<ValueId> {
        let any = self.inputs.iter().any(|input| needs[input.0]);
        match &self.op {
            // gA = ghᵀ x.
            Op::LoraDown { a, .. } if graph.params[a.0].trained => vec![self.inputs[0]],
            // gB = hᵀ g; the frozen part reads no value at all.
            Op::Linear { lora: Some(_), .. } => vec![self.inputs[1]],
            // gW = gᵀ x.
            Op::Linear { .. } if graph.whole => vec![self.inputs[0]],
            // gd = Σ gh ∘ h, and gb = Σ g ∘ u with u made of h again.
            Op::VeraUp(_) => vec![self.inputs[1]],
            // gm = sum of g z / n.
            Op::Magnitude { .. } => vec![self.inputs[0]],
            Op::Norm(norm) if any || graph.trained_vector(norm.weight).is_some() => vec![self.inputs[0]],
            Op::Normalise(_) if any => self.outputs.clone(),
            Op::Attention { .. } if any => self.inputs.iter().chain(&self.outputs).copied().collect(),
            // The gradient of `up` reads `act(gate)`: so the gate stays, and has the slope with it, exact or not.
            Op::Gated { .. } if any => self.inputs.clone(),
            Op::Activation { steps: Some(_), .. } if any => vec![self.outputs[1]],
            // The sign of ReLU's value is that of its slope.
            Op::Activation { act: Act::Relu, .. } if any => self.outputs.clone(),
            Op::Activation { .. } if any => self.inputs.clone(),
            _ => Vec::new(),
        }
    }

    /// Multiply-adds a token of the forward pass, with `seen` keys a query on average, counted twice as flops.
    pub fn flops(&self, graph: &Graph, seen: f64) -> f64 {
        let matrix = |weight: WeightId| {
            let weight = &graph.weights[weight.0];
            2.0 * weight.rows as f64 * weight.cols as f64
        };
        match &self.op {
            Op::Linear { weight, lora, .. } => {
                matrix(*weight) + lora.map_or(0.0, |(b, _)| 2.0 * graph.params[b.0].len() as f64)
            }
            Op::LoraDown { a, .. } => 2.0 * graph.params[a.0].len() as f64,
            Op::VeraDown(vera) => 2.0 * (vera.rank * vera.cols) as f64,
            Op::VeraUp(vera) => 2.0 * (vera.rank * vera.rows) as f64,
            Op::CrossEntropy { weight, lora, .. } => {
                let adapter =
                    |lora: Factors| 2.0 * (graph.params[lora.a.0].len() + graph.params[lora.b.0].len()) as f64;
                matrix(*weight) + lora.map_or(0.0, adapter)
            }
            Op::Attention { heads } => {
                let keys = if let Window::Last(last) = heads.window { seen.min(last as f64) } else { seen };
                4.0 * (heads.queries * heads.d) as f64 * keys
            }
            Op::Classify(head) => {
                2.0 * (graph.params[head.dense.weight.0].len() + graph.params[head.out.weight.0].len()) as f64
            }
            // The lengths of rows, once a step and not a token.
            Op::Magnitude { .. } => 0.0,
            Op::Dropout { .. } | Op::Embed { .. } | Op::Rope { .. } => 0.0,
            Op::Norm(_) | Op::Normalise(_) | Op::Affine(_) => 0.0,
            Op::Gated { .. } | Op::Activation { .. } | Op::Add => 0.0,
        }
    }
}
