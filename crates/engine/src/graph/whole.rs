//! Training of a model itself: every matrix and every vector of its graph is trainable, and there is no adapter. A matrix that is two things at once,
//! embedding and head, is one trainable matrix.

use super::{Graph, Of, Op, Param, ParamId, VectorId, WeightId};

impl Graph {
    /// The same with all of the model's tensors trained.
    #[must_use]
    pub fn trained_whole(mut self) -> Self {
        let matrices =
            self.weights.iter().enumerate().map(|(id, weight)| (Of::Matrix(WeightId(id)), weight.rows, weight.cols));
        let vectors = self.vectors.iter().enumerate().map(|(id, vector)| (Of::Vector(VectorId(id)), 1, vector.len));
        let param = |(of, rank, cols)| Param { of, rank, cols, trained: true, remembered: true };
        self.params = matrices.chain(vectors).map(param).collect();
        self.whole = true;
        self
    }

    /// The trained matrix that a matrix of the model is, where the model itself is trained and that one is.
    pub fn trained_matrix(&self, id: WeightId) -> Option<ParamId> {
        let param = self.whole.then_some(ParamId(id.0));
        param.filter(|id| self.params[id.0].trained)
    }

    /// The same of a vector.
    pub fn trained_vector(&self, id: VectorId) -> Option<ParamId> {
        let param = self.whole.then(|| ParamId(self.weights.len() + id.0));
        param.filter(|id| self.params[id.0].trained)
    }

    /// The trained tensors of the model that an operation reads.
    pub(super) fn tensors_of(&self, op: &Op) -> Vec<ParamId> {
        let (matrices, vectors) = match op {
            Op::Linear { weight, bias, .. } | Op::CrossEntropy { weight, bias, .. } => {
                ([Some(*weight), None, None], [*bias, None])
            }
            Op::Embed { weight, added, .. } => {
                let (positions, types) = (added.map(|added| added.positions), added.and_then(|added| added.types));
                ([Some(*weight), positions, types], [None, None])
            }
            Op::Norm(norm) => ([None; 3], [Some(norm.weight), norm.bias]),
            _ => ([None; 3], [None, None]),
        };
        let matrices = matrices.into_iter().flatten().filter_map(|id| self.trained_matrix(id));
        matrices.chain(vectors.into_iter().flatten().filter_map(|id| self.trained_vector(id))).collect()
    }

    /// The name of the tensor or of the module that a trainable matrix is a part of.
    pub fn name_of(&self, id: ParamId) -> &str {
        match self.params[id.0].of {
            Of::Module(module) => &self.modules[module].path,
            Of::Shared => "the matrices that VeRA's modules share",
            Of::Saved(name) => name,
            Of::Matrix(WeightId(id)) => &self.weights[id].name,
            Of::Vector(VectorId(id)) => &self.vectors[id].name,
        }
    }
}
