//! A head that tells classes apart: `out(tanh(dense(x)))` of a record's first token. Where a model's own head is used or trained in its file, it is made of operations
//! like any others; where adapters are trained, it is trained beside them, whole, and is one operation with the loss, since it sees one row of a record.

use super::{Graph, Of, Op, Param, ParamId};

/// What Hugging Face calls the tensors of such a head: a weight and a bias of either linear.
pub const CLASSIFIER: [&str; 4] =
    ["classifier.dense.weight", "classifier.dense.bias", "classifier.out_proj.weight", "classifier.out_proj.bias"];

/// The module that all of them are part of.
pub const CLASSIFIER_MODULE: &str = "classifier";

/// A linear that is trained whole: its weight, `[out, in]`, and its bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Dense {
    pub weight: ParamId,
    pub bias: ParamId,
}

/// The two linears of a head that is trained beside adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Classifier {
    pub dense: Dense,
    pub out: Dense,
}

impl Classifier {
    /// Its tensors, in the order of [`CLASSIFIER`].
    pub const fn params(self) -> [ParamId; 4] {
        [self.dense.weight, self.dense.bias, self.out.weight, self.out.bias]
    }
}

impl Graph {
    /// A head of `classes` classes on values of `cols` elements.
    pub(super) fn add_classifier(&mut self, cols: usize, classes: usize) -> Classifier {
        let shapes = [(cols, cols), (1, cols), (classes, cols), (1, classes)];
        let mut ids = CLASSIFIER.into_iter().zip(shapes).map(|(name, (rank, cols))| {
            self.params.push(Param { of: Of::Saved(name), rank, cols, trained: true, remembered: true });
            ParamId(self.params.len() - 1)
        });
        let mut dense = || {
            let mut id = || ids.next().expect("four shapes");
            Dense { weight: id(), bias: id() }
        };
        Classifier { dense: dense(), out: dense() }
    }

    /// The head that is trained beside adapters, where there is one.
    pub fn classifier(&self) -> Option<Classifier> {
        self.nodes.iter().find_map(|node| match node.op {
            Op::Classify(head) => Some(head),
            _ => None,
        })
    }
}
