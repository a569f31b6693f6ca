//! Which values and gradients are bf16 in memory: those that products alone read, which would round them anyway, and gate and up on their way to their product.
//!
//! It follows from the graph, the processor and how weights are stored, never from a policy or from what a program is trained for: so all policies have the same
//! bits, and a loss is the same whether or not it is differentiated.

use pocketune_kernels::matmul::{longest_in_bf16, takes_bf16};

use crate::graph::{Node, Op, ValueId, WeightId};
use crate::plan::{Mode, Request};

/// For each value of a graph, whether it is bf16, and whether its gradient is.
pub(super) struct Halves {
    pub values: Vec<bool>,
    pub gradients: Vec<bool>,
}

impl Halves {
    pub fn new(request: Request) -> Self {
        let graph = request.graph;
        let none = || vec![false; graph.values.len()];
        let mut halves = Self { values: none(), gradients: none() };
        // One row, what is moved by groups of rows, and what gradients of the model's own tensors are made of is read as floats.
        let floats = graph.whole || matches!(request.mode, Mode::Generate { .. } | Mode::Perturb);
        if floats || !takes_bf16(request.machine.isa, request.machine.precision) {
            return halves;
        }
        let mut readers = vec![Vec::new(); graph.values.len()];
        for node in &graph.nodes {
            node.inputs.iter().for_each(|input| readers[input.0].push(node));
        }
        for node in graph.nodes.iter().filter(|node| node.block.is_some()) {
            let Some(&out) = node.outputs.first() else { continue };
            let by_products = readers[out.0].iter().all(|reader| multiplies(reader, out));
            let made = matches!(node.op, Op::Gated { .. }) || matches!(node.op, Op::Norm(norm) if norm.bias.is_none());
            if !(made && by_products) {
                continue;
            }
            halves.values[out.0] = true;
            if matches!(node.op, Op::Gated { .. }) && halves.gate_and_up(request, node, &readers) {
                node.inputs.iter().for_each(|input| halves.values[input.0] = true);
                node.inputs.iter().chain([&out]).for_each(|value| halves.gradients[value.0] = true);
            }
        }
        halves
    }

    /// Whether both inputs of a gated product can be bf16, and the gradients of all three: each is written by one product whose sum is not cut, and nothing is added.
    fn gate_and_up(&self, request: Request, gated: &Node, readers: &[Vec<&Node>]) -> bool {
        let graph = request.graph;
        let linear = |node: &Node| match node.op {
            Op::Linear { weight, .. } => Some(weight),
            _ => None,
        };
        let whole = |weight: WeightId, backward: bool| {
            let (decl, ty) = (&graph.weights[weight.0], request.stored[weight.0].ty);
            (if backward { decl.rows } else { decl.cols }) <= longest_in_bf16(ty, backward)
        };
        let producers = graph.producers();
        let written = gated.inputs.iter().all(|input| {
            let weight = linear(&graph.nodes[producers[input.0]]);
            readers[input.0].len() == 1 && weight.is_some_and(|weight| whole(weight, false))
        });
        let linears: Vec<WeightId> = readers[gated.outputs[0].0].iter().filter_map(|reader| linear(reader)).collect();
        written && matches!(linears[..], [weight] if whole(weight, true))
    }
}

/// Whether `node` does nothing with `value` but multiply it with a frozen matrix or an adapter's factor.
fn multiplies(node: &Node, value: ValueId) -> bool {
    match node.op {
        Op::LoraDown { .. } => true,
        Op::Linear { .. } => node.inputs[0] == value,
        _ => false,
    }
}
