//! Which values and gradients are bf16 in memory: those that products alone read, which would round them anyway, and gate and up on their way to their product.
//!
//! It follows from the graph, the processor and how weights are stored, never from a policy, nor from whether a loss is differentiated: so all policies have the
//! same bits, and so have losses with and without gradients. Programs that generate or perturb have floats throughout.

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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::families::shape;
    use crate::graph::LoraSpec;
    use crate::plan::{Machine, Policy, PolicyName, States};
    use pocketune_kernels::matmul::Precision;
    use pocketune_kernels::{BlockType, Isa};

    /// Names of the values that are bf16, and of those whose gradients are.
    fn names(
        of: &str,
        lora: LoraSpec,
        (isa, precision): (Isa, Precision),
        mode: Mode,
        ty: BlockType,
    ) -> [BTreeSet<&'static str>; 2] {
        let graph = shape(of).unwrap().graph(Some(&lora)).unwrap();
        let stored = vec![ty.into(); graph.weights.len()];
        let (machine, policy) = (Machine { threads: 1, isa, precision }, Policy::named(PolicyName::Block));
        let (tokens, states) = (128, States::F32);
        let halves = Halves::new(Request { graph: &graph, stored: &stored, tokens, machine, policy, mode, states });
        [halves.values, halves.gradients]
            .map(|all| all.iter().zip(&graph.values).filter(|(half, _)| **half).map(|(_, value)| value.name).collect())
    }

    #[test]
    fn products_alone_read_what_is_bf16() {
        let (amx, trains) = ((Isa::Amx, Precision::Bf16), Mode::TrainAndUpdate);
        let lora = LoraSpec::default;
        let plain = |of, mode, ty| names(of, lora(), amx, mode, ty).map(|names| Vec::from_iter(names).join(" "));
        let [values, gradients] = plain("smollm2-135m", trains, BlockType::Q4_0);
        assert!(["gate", "up"].iter().all(|name| gradients.contains(name) && values.contains(name)), "{values}");
        assert_eq!((values.split(' ').count(), gradients.split(' ').count()), (5, 3), "{values}; {gradients}");
        // A loss has the same bits whether or not it is differentiated.
        assert_eq!(plain("smollm2-135m", Mode::Evaluate, BlockType::Q4_0)[0], values);
        // Sums of 1,536 are cut in two where blocks are of 256: gate and up are floats then, and their product and norms are not.
        assert_eq!(plain("qwen2.5-1.5b", trains, BlockType::Q4_0), [values.clone(), gradients]);
        let cut = plain("qwen2.5-1.5b", trains, BlockType::Q4_K);
        assert_eq!((cut[0].split(' ').count(), &*cut[1]), (3, ""), "{}", cut[0]);
        // Magnitudes are applied to floats, dropout and VeRA read floats.
        let dora = names("smollm2-135m", LoraSpec { dora: true, ..lora() }, amx, trains, BlockType::Q4_0);
        assert_eq!((dora[0].len(), dora[1].len()), (3, 0), "{dora:?}");
        for lora in [LoraSpec { dropout: 0.1, ..lora() }, LoraSpec { vera: true, ..lora() }] {
            let [values, _] = names("smollm2-135m", lora, amx, trains, BlockType::Q4_0);
            assert!(!values.iter().any(|name| name.contains("norm")), "{values:?}");
        }
    }

    #[test]
    fn everything_is_floats_where_something_else_reads_it() {
        let (amx, trains) = ((Isa::Amx, Precision::Bf16), Mode::TrainAndUpdate);
        let whole = LoraSpec { whole: true, ..LoraSpec::default() };
        for (lora, machine, mode) in [
            (LoraSpec::default(), (Isa::Amx, Precision::F32), trains),
            (LoraSpec::default(), (Isa::Avx512, Precision::Bf16), trains),
            (LoraSpec::default(), amx, Mode::Perturb),
            (LoraSpec::default(), amx, Mode::Generate { context: 64 }),
            (whole, amx, trains),
        ] {
            let [values, gradients] = names("smollm2-135m", lora, machine, mode, BlockType::Q4_0);
            assert!(values.is_empty() && gradients.is_empty(), "{machine:?} {mode:?}: {values:?}");
        }
    }
}
