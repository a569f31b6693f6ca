//! Which values and gradients are bf16 in memory: those that products alone read, which would round them anyway, those of attention among them, and gate and
//! up on their way to their product. Gradients of queries and keys are sums that go on, in floats.
//!
//! It follows from the graph and the processor, never from a policy, nor from whether a loss is differentiated: so all policies have the
//! same bits, and so have losses with and without gradients. Programs that generate or perturb have floats throughout.

use pocketune_kernels::matmul::takes_bf16;

use crate::graph::{Node, Op, ValueId};
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
        let producers = graph.producers();
        // Written by one product, and read by one operation.
        let written = |value: &ValueId| readers[value.0].len() == 1 && linear(&graph.nodes[producers[value.0]]);
        for node in graph.nodes.iter().filter(|node| node.block.is_some()) {
            let Some(&out) = node.outputs.first() else { continue };
            if !readers[out.0].iter().all(|reader| multiplies(reader, out)) {
                continue;
            }
            // Whether its gradient is what one product writes, and nothing is added.
            let once = readers[out.0].iter().filter(|reader| linear(reader)).count() == 1;
            match node.op {
                Op::Norm(norm) => halves.values[out.0] = norm.bias.is_none(),
                Op::Gated { .. } => {
                    halves.values[out.0] = true;
                    if once && node.inputs.iter().all(written) {
                        node.inputs.iter().for_each(|input| halves.values[input.0] = true);
                        node.inputs.iter().chain([&out]).for_each(|value| halves.gradients[value.0] = true);
                    }
                }
                Op::Attention { .. } => {
                    (halves.values[out.0], halves.gradients[out.0]) = (once, once);
                    for &input in &node.inputs {
                        let made = &graph.nodes[producers[input.0]];
                        let turned = matches!(made.op, Op::Rope { .. }) && readers[input.0].len() == 1;
                        let first = if turned { made.inputs[0] } else { input };
                        if written(&first) {
                            (halves.values[first.0], halves.values[input.0]) = (true, true);
                        }
                    }
                }
                _ => {}
            }
        }
        halves
    }
}

fn linear(node: &Node) -> bool {
    matches!(node.op, Op::Linear { .. })
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
        assert_eq!((values.split(' ').count(), gradients.split(' ').count()), (9, 4), "{values}; {gradients}");
        // Norms of queries and keys read floats.
        let [normed, _] = plain("qwen3-0.6b", trains, BlockType::Q4_0);
        let has = |name: &str| normed.split(' ').any(|value| value == name);
        assert!(has("v_proj") && has("attention") && !has("q_proj") && !has("k_proj"), "{normed}");
        // A loss has the same bits whether or not it is differentiated.
        assert_eq!(plain("smollm2-135m", Mode::Evaluate, BlockType::Q4_0)[0], values);
        // However long sums are and however weights are stored.
        assert_eq!(plain("qwen2.5-1.5b", trains, BlockType::Q4_K), [values, gradients]);
        // Magnitudes are applied to floats, dropout and VeRA read floats.
        let dora = names("smollm2-135m", LoraSpec { dora: true, ..lora() }, amx, trains, BlockType::Q4_0);
        assert_eq!((dora[0].len(), dora[1].len()), (4, 1), "{dora:?}");
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
