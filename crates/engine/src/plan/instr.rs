//! The instructions of a program, each a call of a kernel, and the buffers that each reads and writes.

mod buffers;

use pocketune_kernels::activation::Act;
use pocketune_kernels::attention::Heads;
use pocketune_kernels::levels::Steps;
use pocketune_kernels::rope::Pairs;

use super::{Buf, Learning};
use crate::graph::{Added, Classifier, Factors, Norm, ParamId, RopeId, VectorId, Vera, WeightId};

/// How an instruction uses a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it, whatever was there.
    Write,
    /// Reads and writes it.
    Update,
}

/// Where the gradient of a trainable matrix goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grad {
    /// Into a buffer that lives until the update.
    Once(Buf),
    /// Added to what the step has summed so far.
    Sum(ParamId),
}

/// One call of a kernel. `gx` pairs a buffer with whether the result is added to what it holds.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Instr {
    Embed {
        weight: WeightId,
        scale: f32,
        added: Option<Added>,
        lora: Option<Factors>,
        out: Buf,
        scratch: Option<Buf>,
    },
    EmbedBackward {
        lora: Factors,
        g: Buf,
        grads: [Grad; 2],
        scratch: Buf,
    },
    /// With room for its moved weight and bias, where a model itself is moved.
    Norm {
        norm: Norm,
        x: Buf,
        out: Buf,
        moved: Option<Buf>,
    },
    NormBackward {
        norm: Norm,
        x: Buf,
        g: Buf,
        gx: (Buf, bool),
    },
    /// The first part of a norm.
    Normalise {
        norm: Norm,
        x: Buf,
        out: Buf,
        rstd: Buf,
    },
    /// The second.
    Affine {
        norm: Norm,
        n: Buf,
        out: Buf,
    },
    /// The derivative of both.
    SharedNormBackward {
        norm: Norm,
        n: Buf,
        rstd: Buf,
        g: Buf,
        gx: (Buf, bool),
    },
    Dropout {
        share: f32,
        stream: u64,
        x: Buf,
        out: Buf,
    },
    DropoutBackward {
        share: f32,
        stream: u64,
        g: Buf,
        gx: (Buf, bool),
    },
    LoraDown {
        a: ParamId,
        scale: f32,
        x: Buf,
        h: Buf,
        scratch: Buf,
    },
    /// With `gx` where the linear reads another input than its adapter; with the input and A's gradient where A is trained.
    LoraDownBackward {
        a: ParamId,
        gh: Buf,
        gx: Option<(Buf, bool)>,
        ga: Option<(Buf, Grad)>,
        scratch: Buf,
    },
    /// Where it is one `more` of the same input as the linear before it, what that one made of the input waits in the scratch memory.
    Linear {
        weight: WeightId,
        bias: Option<VectorId>,
        lora: Option<LoraAdd>,
        x: Buf,
        out: Buf,
        scratch: Buf,
        more: bool,
    },
    LinearBackward {
        weight: WeightId,
        g: Buf,
        gx: Option<(Buf, bool)>,
        lora: Option<LoraUp>,
        scratch: Buf,
    },
    /// The lengths of an adapted matrix's rows, unless they are known: nothing changed them since.
    Lengths {
        module: usize,
        weight: WeightId,
        a: ParamId,
        b: ParamId,
        scale: f32,
        scratch: Buf,
    },
    Magnitude {
        module: usize,
        m: ParamId,
        bias: Option<VectorId>,
        z: Buf,
        out: Buf,
    },
    MagnitudeBackward {
        module: usize,
        m: ParamId,
        z: Buf,
        g: Buf,
        gz: (Buf, bool),
        gm: Grad,
    },
    VeraDown {
        vera: Vera,
        x: Buf,
        h: Buf,
        scratch: Buf,
    },
    VeraDownBackward {
        vera: Vera,
        gh: Buf,
        gx: (Buf, bool),
        scratch: Buf,
    },
    /// Adds to `y`.
    VeraUp {
        vera: Vera,
        h: Buf,
        y: Buf,
        scratch: Buf,
    },
    /// Gradients of both vectors, and of `h` where something is differentiated before it.
    VeraUpBackward {
        vera: Vera,
        h: Buf,
        g: Buf,
        gh: Option<Buf>,
        grads: [Grad; 2],
        scratch: Buf,
    },
    Rope {
        table: RopeId,
        d: usize,
        pairs: Pairs,
        x: Buf,
        inverse: bool,
    },
    Attention {
        heads: Heads,
        q: Buf,
        k: Buf,
        v: Buf,
        out: Buf,
        lse: Buf,
        scratch: Buf,
    },
    /// Attention over the block's cache, to which k and v are appended first.
    CachedAttention {
        block: usize,
        heads: Heads,
        q: Buf,
        k: Buf,
        v: Buf,
        out: Buf,
        lse: Buf,
        scratch: Buf,
    },
    AttentionBackward {
        heads: Heads,
        read: [Buf; 6],
        write: [Buf; 3],
        scratch: Buf,
    },
    Gated {
        act: Act,
        gate: Buf,
        up: Buf,
        out: Buf,
    },
    /// The gradients take the place of gate and up.
    GatedBackward {
        act: Act,
        steps: Option<Steps>,
        gate: Buf,
        up: Buf,
        g: Buf,
    },
    /// In place where there is no `out`; with the levels of its slope where something waits for them.
    Activation {
        act: Act,
        x: Buf,
        out: Option<Buf>,
        levels: Option<(Steps, Buf)>,
    },
    /// The gradient takes the place of `x`.
    ActivationBackward {
        act: Act,
        x: Buf,
        g: Buf,
    },
    /// The same from levels; the gradient takes the place of `g`.
    LevelsBackward {
        steps: Steps,
        levels: Buf,
        g: Buf,
    },
    /// `to += from`.
    Add {
        from: Buf,
        to: Buf,
    },
    Copy {
        from: Buf,
        to: Buf,
    },
    CrossEntropy {
        weight: WeightId,
        bias: Option<VectorId>,
        lora: Option<Factors>,
        /// Whether strips that hardly matter to a row are left out of its gradient.
        skip: bool,
        rows: usize,
        x: Buf,
        gx: Option<Buf>,
        /// Where each row's log-sum-exp is kept.
        lse: Option<Buf>,
        grads: Option<[Grad; 2]>,
        work: Buf,
    },
    /// A head of classes that is trained beside adapters, and the loss.
    Classify {
        head: Classifier,
        rows: usize,
        x: Buf,
        gx: Option<Buf>,
        grads: Option<[Grad; 4]>,
        work: Buf,
    },
    /// Logits of the last token.
    Logits {
        weight: WeightId,
        bias: Option<VectorId>,
        lora: Option<Factors>,
        x: Buf,
        out: Buf,
        scratch: Buf,
    },
    /// Applies a gradient; `state` is room for an optimizer state that waits on disk.
    Update {
        param: ParamId,
        grad: Buf,
        state: Option<Buf>,
    },
    /// Makes the gradient of a norm's weight; layer norms are centred.
    NormGradient {
        centred: bool,
        eps: f32,
        x: Buf,
        g: Buf,
        grad: Buf,
    },
    /// Makes the gradient of a bias.
    BiasGradient {
        g: Buf,
        grad: Buf,
    },
    /// Makes the gradient of one of the model's matrices, `gᵀ x`, in strips of its rows, and applies them.
    Learn {
        weight: WeightId,
        param: ParamId,
        x: Buf,
        g: Buf,
        how: Learning,
        work: Buf,
    },
    /// The same for a table whose rows are looked up, and for the head: from the gradient of what was made of its rows, and from the head's input, where it is both
    /// or either.
    LearnTable {
        weight: WeightId,
        param: ParamId,
        embedded: Option<Embedded<Buf>>,
        head: Option<HeadBehind>,
        how: Learning,
        work: Buf,
    },
    /// Begins to write a value to the spill file, at a float offset.
    Spill {
        from: Buf,
        at: usize,
    },
    /// Waits until the value is written; its buffer ends here.
    Spilled {
        from: Buf,
    },
    /// Begins to read a value back.
    Fetch {
        to: Buf,
        at: usize,
    },
    /// Waits until the value is there.
    Fetched {
        to: Buf,
    },
}

/// What the rows of a table were looked up by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The token.
    Token,
    /// Its position, from this row on.
    Position(usize),
    /// Nothing: the first row.
    Nothing,
}

/// The gradient of what was made of a table's rows, and what they were multiplied with.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Embedded<T> {
    pub g: T,
    pub scale: f32,
    pub by: By,
}

/// The head as its gradient is made: its input, the log-sum-exp of each row, and its bias, where it has one, with the place of that one's gradient, which is made
/// on the way.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct HeadBehind {
    pub x: Buf,
    pub lse: Buf,
    pub bias: Option<(VectorId, Buf)>,
}

/// What an adapter adds to a linear: `h B`. Where `down` names A and a scale, `h` is made on the way: `scale x Aᵀ`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LoraAdd {
    pub b: ParamId,
    pub h: Buf,
    pub down: Option<(ParamId, f32)>,
}

/// The adapter's part of a linear's backward pass: `gB = hᵀ g`, `gh = scale g B` where something is differentiated before it, and, where both
/// read the same input, `gh A` is added to its gradient.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LoraUp {
    pub a: Option<ParamId>,
    pub b: ParamId,
    pub scale: f32,
    pub h: Buf,
    pub gh: Option<Buf>,
    pub gb: Grad,
}

impl Instr {
    /// The frozen matrix it reads.
    pub const fn weight(&self) -> Option<WeightId> {
        match self {
            Instr::Embed { weight, .. }
            | Instr::Linear { weight, .. }
            | Instr::LinearBackward { weight, gx: Some(_), .. }
            | Instr::Lengths { weight, .. }
            | Instr::CrossEntropy { weight, .. }
            | Instr::Learn { weight, .. }
            | Instr::LearnTable { weight, .. }
            | Instr::Logits { weight, .. } => Some(*weight),
            _ => None,
        }
    }

    /// The frozen matrix that it reads from end to end before it is released.
    pub const fn whole_weight(&self) -> Option<WeightId> {
        match self {
            Instr::Embed { .. } | Instr::CrossEntropy { .. } | Instr::LearnTable { .. } | Instr::Logits { .. } => None,
            other => other.weight(),
        }
    }

    /// The work of the loss, where that is what it finds.
    pub const fn loss(&self) -> Option<Buf> {
        match self {
            Instr::CrossEntropy { work, .. } | Instr::Classify { work, .. } => Some(*work),
            _ => None,
        }
    }

    /// Whether it changes what is trained.
    pub const fn updates(&self) -> bool {
        matches!(self, Instr::Update { .. } | Instr::Learn { .. } | Instr::LearnTable { .. })
    }

    /// Whether it makes or applies a gradient of one of the model's tensors, so that it is left out where that tensor rests.
    pub const fn teaches(&self) -> bool {
        self.updates() || matches!(self, Instr::NormGradient { .. } | Instr::BiasGradient { .. })
    }
}
