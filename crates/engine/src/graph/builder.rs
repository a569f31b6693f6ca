//! The words that a family's file is written in: each makes a node and gives back its value.

use pocketune_kernels::activation::Act;
use pocketune_kernels::attention::Heads;
use pocketune_kernels::levels::{self, Steps};
use pocketune_kernels::rope::Pairs;

use super::{
    Added, Factors, Graph, LoraSpec, Module, Naming, Node, Norm, Of, Op, Param, ParamId, Role, RopeDecl, RopeId, Stage,
    Target, Value, ValueId, VectorDecl, VectorId, WeightDecl, WeightId,
};

/// A linear of a block.
#[derive(Clone, Copy, Debug)]
pub struct Projection {
    /// Which one it is.
    pub target: Target,
    /// Outputs.
    pub rows: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// What its output is.
    pub role: Role,
    /// Elements of a head, when the file holds its rows in llama.cpp's order.
    pub permuted: Option<usize>,
}

/// Builds a [`Graph`] node by node.
pub struct Builder<'a> {
    graph: Graph,
    lora: Option<&'a LoraSpec>,
    /// Where the blocks' tensors are, such as `model.`.
    prefix: &'a str,
    block: Option<usize>,
    stage: Stage,
    blocks: usize,
}

impl<'a> Builder<'a> {
    /// A graph of `blocks` blocks, whose tensors' names start with `prefix`, with adapters as `lora` says.
    pub fn new(prefix: &'a str, naming: Naming, blocks: usize, lora: Option<&'a LoraSpec>) -> Self {
        Self {
            graph: Graph { blocks, naming, ..Graph::default() },
            lora,
            prefix,
            block: None,
            stage: Stage::Before,
            blocks,
        }
    }

    /// The next nodes belong to block `block`.
    pub fn enter(&mut self, block: usize) {
        self.block = Some(block);
        self.stage = Stage::Before;
    }

    /// The next nodes belong to no block.
    pub fn leave(&mut self) {
        self.block = None;
    }

    /// The full name of what the block, or the model outside of blocks, calls `name`.
    pub fn name(&self, name: &str) -> String {
        match self.block {
            Some(block) => format!("{}{}.{block}.{name}", self.prefix, self.graph.naming.blocks()),
            None => format!("{}{name}", self.prefix),
        }
    }

    fn value(&mut self, name: &'static str, role: Role, cols: usize) -> ValueId {
        self.graph.values.push(Value { name, role, block: self.block, cols });
        ValueId(self.graph.values.len() - 1)
    }

    fn node(&mut self, op: Op, inputs: &[ValueId], outputs: &[ValueId]) {
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.into(),
            outputs: outputs.into(),
            block: self.block,
            stage: self.stage,
        });
    }

    fn cols(&self, value: ValueId) -> usize {
        self.graph.values[value.0].cols
    }

    fn weight(&mut self, decl: WeightDecl) -> WeightId {
        let known = self.graph.weights.iter().position(|weight| *weight == decl);
        WeightId(known.unwrap_or_else(|| {
            self.graph.weights.push(decl);
            self.graph.weights.len() - 1
        }))
    }

    fn vector(&mut self, name: String, len: usize, plus: f32) -> VectorId {
        self.graph.vectors.push(VectorDecl { name, len, plus });
        VectorId(self.graph.vectors.len() - 1)
    }

    /// A table of rotations.
    pub fn rope_table(&mut self, frequencies: Vec<f64>) -> RopeId {
        self.graph.ropes.push(RopeDecl { frequencies });
        RopeId(self.graph.ropes.len() - 1)
    }

    /// A table of `rows` rows, whose full name is `name`.
    pub fn table(&mut self, name: &str, rows: usize, cols: usize) -> WeightId {
        self.weight(WeightDecl { name: name.into(), rows, cols })
    }

    /// The embedding of every token, times `scale`, plus the rows that are `added`.
    pub fn embed(&mut self, table: WeightId, scale: f32, added: Option<Added>) -> ValueId {
        let WeightDecl { rows, cols, .. } = self.graph.weights[table.0];
        self.graph.vocab = rows;
        let path = self.graph.weights[table.0].name.trim_end_matches(".weight").to_string();
        let lora = self.end(&path, Target::Embedding, rows, cols);
        let lora = lora.map(|lora| Factors { scale: lora.scale * scale, ..lora });
        let out = self.value("x", Role::BlockInput, cols);
        self.node(Op::Embed { weight: table, scale, added, lora }, &[], &[out]);
        out
    }

    /// RMS norm over groups of `width` columns with the weight `name` (plus `plus`).
    pub fn norm(&mut self, x: ValueId, name: &'static str, role: Role, width: usize, eps: f32, plus: f32) -> ValueId {
        let weight = self.name(&format!("{name}.weight"));
        let weight = self.vector(weight, width, plus);
        let cols = self.cols(x);
        self.normed(x, Norm { weight, bias: None, eps }, name, role, cols / width)
    }

    /// What a norm makes of `x`, of which each row has so many groups. Where it feeds linears of a block it may come in two parts; then what is
    /// kept takes the place of its input, and with it, in the middle of a block, the role.
    fn normed(&mut self, x: ValueId, norm: Norm, name: &'static str, role: Role, groups: usize) -> ValueId {
        let (cols, before) = (self.cols(x), self.graph.values[x.0].role);
        let shares = self.lora.is_some_and(|lora| lora.derivatives.ms_norm);
        if !(shares && role == Role::Normed && self.block.is_some()) {
            let out = self.value(name, role, cols);
            self.node(Op::Norm(norm), &[x], &[out]);
            return out;
        }
        let kept = if before == Role::Middle { Role::Middle } else { Role::Normed };
        let (n, rstd) = (self.value("normalised", kept, cols), self.value("rstd", kept, groups));
        self.node(Op::Normalise(norm), &[x], &[n, rstd]);
        let out = self.value(name, role, cols);
        self.node(Op::Affine(norm), &[n], &[out]);
        out
    }

    /// Layer norm over all columns, with the weight and the bias of the module whose full name is `module`.
    pub fn layer_norm(&mut self, x: ValueId, module: &str, role: Role, eps: f32) -> ValueId {
        let cols = self.cols(x);
        let weight = self.vector(format!("{module}.weight"), cols, 0.0);
        let bias = Some(self.vector(format!("{module}.bias"), cols, 0.0));
        self.normed(x, Norm { weight, bias, eps }, "norm", role, 1)
    }

    /// A square linear without an adapter, with a bias; its full name is `module`.
    pub fn dense(&mut self, x: ValueId, module: &str, role: Role) -> ValueId {
        let cols = self.cols(x);
        let weight = self.table(&format!("{module}.weight"), cols, cols);
        let bias = Some(self.vector(format!("{module}.bias"), cols, 0.0));
        let out = self.value("dense", role, cols);
        self.node(Op::Linear { weight, bias, lora: None }, &[x], &[out]);
        out
    }

    /// A linear, with an adapter where the specification has one.
    pub fn linear(&mut self, x: ValueId, linear: Projection) -> ValueId {
        let Projection { target, rows, bias, role, permuted } = linear;
        let name = target.path(self.graph.naming).expect("families ask for linears that they have");
        let (path, cols) = (self.name(name), self.cols(x));
        if self.lora.is_some_and(|lora| lora.vera) {
            return self.linear_with_vera(x, &path, linear);
        }
        let adapter = self.adapter(x, &path, target, rows, permuted);
        let weight = self.weight(WeightDecl { name: format!("{path}.weight"), rows, cols });
        let bias = bias.then(|| self.vector(format!("{path}.bias"), rows, 0.0));
        let Some((h, module, scale)) = adapter else {
            let out = self.value(last_word(name), role, rows);
            self.node(Op::Linear { weight, bias, lora: None }, &[x], &[out]);
            return out;
        };
        let (b, magnitude) = (self.graph.modules[module].b, self.graph.modules[module].magnitude);
        let Some(m) = magnitude else {
            let out = self.value(last_word(name), role, rows);
            self.node(Op::Linear { weight, bias, lora: Some((b, scale)) }, &[x, h], &[out]);
            return out;
        };
        let direction = self.value("direction", Role::Direction, rows);
        self.node(Op::Linear { weight, bias: None, lora: Some((b, scale)) }, &[x, h], &[direction]);
        let out = self.value(last_word(name), role, rows);
        self.node(Op::Magnitude { module, weight, bias, scale, m }, &[direction], &[out]);
        out
    }

    /// A linear with what VeRA adds to it, where the specification has it there.
    fn linear_with_vera(&mut self, x: ValueId, path: &str, linear: Projection) -> ValueId {
        let Projection { target, rows, bias, role, permuted } = linear;
        let (cols, name) = (self.cols(x), last_word(target.path(self.graph.naming).unwrap_or_default()));
        let adapted =
            |lora: &&LoraSpec, block: usize| lora.layers.contains(block, self.blocks) && lora.targets.contains(&target);
        let rank = self.lora.zip(self.block).filter(|(lora, block)| adapted(lora, *block)).map(|(lora, _)| lora.rank);
        let vera = rank.map(|rank| self.graph.add_vera(path, target, [cols, rows], permuted, rank));
        let h = vera.map(|vera| {
            let h = self.value("lora", Role::LowRank, vera.rank);
            self.node(Op::VeraDown(vera), &[x], &[h]);
            h
        });
        let weight = self.weight(WeightDecl { name: format!("{path}.weight"), rows, cols });
        let bias = bias.then(|| self.vector(format!("{path}.bias"), rows, 0.0));
        let out = self.value(name, role, rows);
        self.node(Op::Linear { weight, bias, lora: None }, &[x], &[out]);
        let Some((vera, h)) = vera.zip(h) else { return out };
        let sum = self.value(name, role, rows);
        self.node(Op::VeraUp(vera), &[out, h], &[sum]);
        sum
    }

    /// A module with its params.
    fn module(
        &mut self,
        lora: &LoraSpec,
        path: &str,
        target: Target,
        [cols, rows]: [usize; 2],
        permuted: Option<usize>,
    ) -> usize {
        let (rank, module) = (lora.rank_of(path), self.graph.modules.len());
        let mut param = |rank: usize, cols: usize, trained: bool| {
            self.graph.params.push(Param { of: Of::Module(module), rank, cols, trained, remembered: true });
            ParamId(self.graph.params.len() - 1)
        };
        let (a, b) = (param(rank, cols, !lora.frozen_a), param(rank, rows, true));
        let magnitude = lora.dora.then(|| param(1, rows, true));
        let path = path.into();
        self.graph.modules.push(Module { path, target, cols, rows, permuted, a, b, magnitude, lambdas: None });
        module
    }

    /// The factors on one of the model's ends, where it has some.
    fn end(&mut self, path: &str, target: Target, cols: usize, rows: usize) -> Option<Factors> {
        let lora = self.lora.filter(|lora| lora.targets.contains(&target))?;
        let module = self.module(lora, path, target, [cols, rows], None);
        let Module { a, b, .. } = self.graph.modules[module];
        Some(Factors { a, b, scale: lora.scale_of(path) })
    }

    /// The low-rank value of the adapter on `path`, where it has one, the module's number, and its scale.
    fn adapter(
        &mut self,
        x: ValueId,
        path: &str,
        target: Target,
        rows: usize,
        permuted: Option<usize>,
    ) -> Option<(ValueId, usize, f32)> {
        let (lora, block) = (self.lora?, self.block?);
        if !lora.layers.contains(block, self.blocks) || !lora.targets.contains(&target) {
            return None;
        }
        let (cols, rank, scale) = (self.cols(x), lora.rank_of(path), lora.scale_of(path));
        let module = self.module(lora, path, target, [cols, rows], permuted);
        let a = self.graph.modules[module].a;
        let x = if lora.dropout > 0.0 {
            let dropped = self.value("dropped", Role::Dropped, cols);
            self.node(Op::Dropout { share: lora.dropout, stream: module as u64 }, &[x], &[dropped]);
            dropped
        } else {
            x
        };
        let h = self.value("lora", Role::LowRank, rank);
        self.node(Op::LoraDown { a, scale }, &[x], &[h]);
        Some((h, module, scale))
    }

    /// Rotary positions on heads of `d` elements.
    pub fn rope(&mut self, x: ValueId, table: RopeId, d: usize, pairs: Pairs) -> ValueId {
        let (name, cols) = (self.graph.values[x.0].name, self.cols(x));
        let out = self.value(name, Role::Attended, cols);
        self.node(Op::Rope { table, d, pairs }, &[x], &[out]);
        out
    }

    /// Attention.
    pub fn attention(&mut self, q: ValueId, k: ValueId, v: ValueId, heads: Heads) -> ValueId {
        let out = self.value("attention", Role::AttentionOut, heads.queries * heads.d);
        let lse = self.value("logsumexp", Role::LogSumExp, heads.queries);
        self.stage = Stage::Attention;
        self.node(Op::Attention { heads }, &[q, k, v], &[out, lse]);
        self.stage = Stage::After;
        out
    }

    /// The gated activation.
    pub fn gated(&mut self, gate: ValueId, up: ValueId, act: Act) -> ValueId {
        let cols = self.cols(gate);
        let out = self.value("activated", Role::Activated, cols);
        self.node(Op::Gated { act, steps: self.steps(act) }, &[gate, up], &[out]);
        out
    }

    /// The activation alone. ReLU takes the place of its input, and with it the role that policies keep; so do the levels of a slope, beside
    /// which the input is not needed.
    pub fn activation(&mut self, x: ValueId, act: Act) -> ValueId {
        let (cols, steps) = (self.cols(x), self.steps(act));
        let role = if act == Act::Relu || steps.is_some() { Role::Ffn } else { Role::Activated };
        let out = self.value("activated", role, cols);
        let levels = steps.map(|_| self.value("levels", Role::Ffn, levels::words(cols)));
        let outputs: Vec<ValueId> = [out].into_iter().chain(levels).collect();
        self.node(Op::Activation { act, steps }, &[x], &outputs);
        out
    }

    /// The step function that is the slope of `act`, where one was asked for.
    fn steps(&self, act: Act) -> Option<Steps> {
        self.lora.filter(|lora| lora.derivatives.approx_act).and_then(|_| Steps::of(act))
    }

    /// The residual sum of `x` and a sub-layer's output.
    pub fn add(&mut self, x: ValueId, branch: ValueId, name: &'static str, role: Role) -> ValueId {
        let cols = self.cols(x);
        let out = self.value(name, role, cols);
        self.node(Op::Add, &[x, branch], &[out]);
        out
    }

    /// A head of classes with the loss, trained beside the adapters; ends the graph.
    pub fn classify(mut self, x: ValueId, classes: usize) -> Graph {
        let head = self.graph.add_classifier(self.cols(x), classes);
        self.node(Op::Classify(head), &[x], &[]);
        self.graph
    }

    /// The head `name` of the vocabulary with the loss, and a bias on its logits where one is named; ends the graph.
    pub fn cross_entropy(self, x: ValueId, name: &str, bias: Option<&str>) -> Graph {
        let rows = self.graph.vocab;
        self.cross_entropy_of(x, rows, name, bias)
    }

    /// The same of a head of `rows` rows.
    pub fn cross_entropy_of(mut self, x: ValueId, rows: usize, name: &str, bias: Option<&str>) -> Graph {
        let cols = self.cols(x);
        let weight = self.table(name, rows, cols);
        let bias = bias.map(|bias| self.vector(bias.into(), rows, 0.0));
        let lora = self.end("lm_head", Target::Head, cols, rows);
        let skip = self.lora.is_some_and(|lora| lora.derivatives.ce_skip);
        self.node(Op::CrossEntropy { weight, bias, lora, skip }, &[x], &[]);
        self.graph
    }
}

/// What a module is called in its parent.
fn last_word(path: &'static str) -> &'static str {
    path.rsplit('.').next().unwrap_or(path)
}
