//! The floating-point operations of a program's matrix products: those with frozen matrices, with adapters, and inside attention, as many
//! times as the program runs them. Work that is done twice counts twice, because it is done; masked keys and rows without a label are
//! not worked on, and do not count; norms, activations, rotations and updates are no products. A multiply-add is two operations.

use pocketune_kernels::attention::Window;

use super::{Instr, LoraUp, Program};
use crate::graph::{Graph, ParamId, WeightId};

/// Operations of attention for each element of a query and each key it sees: two products forward and five backward. (Where threads
/// are many and key heads few, backward is two sweeps, and scores and their gradient are computed twice; that counts once.)
pub(crate) const ATTENTION: f64 = 4.0;
pub(crate) const ATTENTION_BACKWARD: f64 = 10.0;

/// What one instruction multiplies, by what it grows with.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Work {
    /// With a frozen matrix, a token.
    pub frozen: f64,
    /// With an adapter, on the way of a product with a frozen matrix, a token.
    pub added: f64,
    /// With an adapter alone, a token.
    pub thin: f64,
    /// In attention, for each query and key it sees.
    pub attention: f64,
    /// Keys that a query sees.
    pub window: Window,
    /// With the head, a target.
    pub head: f64,
}

/// What `instr` multiplies.
pub(super) fn work(instr: &Instr, graph: &Graph) -> Work {
    let matrix = |id: WeightId| 2.0 * graph.weights[id.0].rows as f64 * graph.weights[id.0].cols as f64;
    let param = |id: ParamId| 2.0 * graph.params[id.0].len() as f64;
    let none = Work::default();
    match *instr {
        Instr::Linear { weight, lora, .. } => {
            let added = lora.map_or(0.0, |lora| param(lora.b) + lora.down.map_or(0.0, |(a, _)| param(a)));
            Work { frozen: matrix(weight), added, ..none }
        }
        Instr::LinearBackward { weight, gx, lora, .. } => match gx {
            Some(_) => {
                let frozen = matrix(weight);
                match lora.map(|lora| (lora.a.map(param), param(lora.b))) {
                    None => Work { frozen, ..none },
                    Some((Some(a), b)) => Work { frozen, added: a + b, thin: b, ..none },
                    Some((None, b)) => Work { frozen, thin: 2.0 * b, ..none },
                }
            }
            None => {
                let products = |lora: LoraUp| if lora.gh.is_some() { 2.0 } else { 1.0 };
                Work { thin: lora.map_or(0.0, |lora| products(lora) * param(lora.b)), ..none }
            }
        },
        Instr::LoraDownBackward { a, gx, ga, .. } => {
            let products = f64::from(u8::from(gx.is_some()) + u8::from(ga.is_some()));
            Work { thin: products * param(a), ..none }
        }
        Instr::Learn { weight, how, .. } => Work { frozen: how.times as f64 * matrix(weight), ..none },
        Instr::LearnTable { weight, how, head: Some(_), .. } => {
            Work { head: 2.0 * how.times as f64 * matrix(weight), ..none }
        }
        Instr::LoraDown { a, .. } => Work { thin: param(a), ..none },
        Instr::VeraDown { vera, .. } | Instr::VeraDownBackward { vera, .. } => {
            Work { thin: 2.0 * (vera.rank * vera.cols) as f64, ..none }
        }
        Instr::VeraUp { vera, .. } => Work { thin: 2.0 * (vera.rank * vera.rows) as f64, ..none },
        Instr::VeraUpBackward { vera, .. } => Work { thin: 4.0 * (vera.rank * vera.rows) as f64, ..none },
        Instr::Attention { heads, .. } | Instr::CachedAttention { heads, .. } => {
            Work { attention: ATTENTION * (heads.queries * heads.d) as f64, window: heads.window, ..none }
        }
        Instr::AttentionBackward { heads, .. } => {
            Work { attention: ATTENTION_BACKWARD * (heads.queries * heads.d) as f64, window: heads.window, ..none }
        }
        Instr::CrossEntropy { weight, lora, grads, .. } => {
            let products = head_products(instr);
            let adapter = lora.map_or(0.0, |lora| param(lora.a) + param(lora.b));
            let head = products * matrix(weight) + (products + if grads.is_some() { 1.0 } else { 0.0 }) * adapter;
            Work { head, ..none }
        }
        Instr::Classify { head, gx, grads, .. } => {
            let products = 1.0 + f64::from(u8::from(gx.is_some())) + f64::from(u8::from(grads.is_some()));
            Work { head: products * (param(head.dense.weight) + param(head.out.weight)), ..none }
        }
        Instr::Embed { lora: Some(lora), .. } => Work { thin: param(lora.b), ..none },
        Instr::EmbedBackward { lora, .. } => Work { thin: 2.0 * param(lora.b), ..none },
        _ => none,
    }
}

/// Products with the head's weight: logits, the gradient of its input, and logits once more where its adapter learns.
pub(super) fn head_products(instr: &Instr) -> f64 {
    let Instr::CrossEntropy { gx, grads, .. } = instr else { return 0.0 };
    1.0 + f64::from(u8::from(gx.is_some())) + f64::from(u8::from(grads.is_some()))
}

/// Operations of a program's products, for records of any length.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Flops {
    token: f64,
    target: f64,
    /// For each query and key it sees, by window.
    attention: Vec<(Window, f64)>,
}

impl Flops {
    /// Those of `program`.
    pub fn of(program: &Program, graph: &Graph) -> Self {
        let mut sum = Self::default();
        for instr in &program.instrs {
            let work = work(instr, graph);
            sum.token += work.frozen + work.added + work.thin;
            sum.target += work.head;
            if work.attention > 0.0 {
                match sum.attention.iter_mut().find(|(window, _)| *window == work.window) {
                    Some((_, flops)) => *flops += work.attention,
                    None => sum.attention.push((work.window, work.attention)),
                }
            }
        }
        sum
    }

    /// Of one run over records of these lengths, in which `targets` tokens are predicted.
    pub fn run(&self, lengths: impl Iterator<Item = usize>, targets: usize) -> f64 {
        let mut flops = self.target * targets as f64;
        for length in lengths {
            flops += self.token * length as f64;
            flops += self.attention.iter().map(|&(window, flops)| flops * pairs(window, length)).sum::<f64>();
        }
        flops
    }
}

/// Queries and keys that see each other in a record.
fn pairs(window: Window, length: usize) -> f64 {
    let triangle = |n: usize| n as f64 * (n as f64 + 1.0) / 2.0;
    match window {
        Window::Past => triangle(length),
        Window::Last(last) => {
            let last = last.min(length);
            triangle(last) + (length - last) as f64 * last as f64
        }
        Window::Whole => length as f64 * length as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::shape;
    use crate::graph::LoraSpec;
    use crate::plan::{Machine, Mode, Policy, PolicyName, Request, compile};
    use pocketune_kernels::attention::Segment;
    use pocketune_kernels::matmul::Precision;
    use pocketune_kernels::{BlockType, Isa};

    fn program(name: &str, mode: Mode, policy: PolicyName, rank: usize) -> (Graph, Program) {
        let config = shape(name).unwrap();
        let lora = LoraSpec { rank, ..LoraSpec::default() };
        let graph = config.graph((rank > 0).then_some(&lora)).unwrap();
        let stored = vec![BlockType::Q4_0.into(); graph.weights.len()];
        let machine = Machine { threads: 1, isa: Isa::Scalar, precision: Precision::F32 };
        let policy = Policy::named(policy);
        let request = Request {
            graph: &graph,
            stored: &stored,
            tokens: 128,
            machine,
            policy,
            mode,
            states: crate::plan::States::F32,
        };
        let program = compile(request);
        (graph, program)
    }

    #[test]
    fn pairs_are_counted_as_attention_sees_them() {
        let windows = [1, 3, 7, 9].map(Window::Last).into_iter().chain([Window::Past, Window::Whole]);
        for (length, window) in windows.flat_map(|window| [1, 5, 7].map(|length| (length, window))) {
            let segment = Segment { q_start: 0, q_len: length, k_start: 0, k_len: length };
            let seen: usize = (0..length).map(|query| segment.seen(query, window).len()).sum();
            assert_eq!(pairs(window, length), seen as f64, "{length} {window:?}");
        }
    }

    #[test]
    fn a_forward_pass_is_what_its_graph_says() {
        let (graph, program) = program("smollm2-135m", Mode::Evaluate, PolicyName::Block, 8);
        let (length, seen) = (128, 129.0 / 2.0);
        let wanted: f64 = graph.nodes.iter().map(|node| node.flops(&graph, seen) * length as f64).sum();
        let got = Flops::of(&program, &graph).run([length].into_iter(), length);
        assert!((got / wanted - 1.0).abs() < 1e-12, "{got} {wanted}");
    }

    #[test]
    fn computing_again_counts_and_keeping_everything_is_cheapest() {
        let flops = |policy| {
            let (graph, program) = program("qwen2.5-0.5b", Mode::TrainAndUpdate, policy, 8);
            Flops::of(&program, &graph).run([128].into_iter(), 127)
        };
        let (none, selective, block) =
            (flops(PolicyName::None), flops(PolicyName::Selective), flops(PolicyName::Block));
        assert!(none < selective && selective < block, "{none} {selective} {block}");
        // Backward has one product for each forward one but the first block's first three, recomputing at most one more.
        assert!(block < 1.55 * none, "{none} {block}");
    }

    #[test]
    fn records_add_up_and_shorter_ones_cost_less() {
        let (graph, program) = program("gemma3-270m", Mode::TrainAndUpdate, PolicyName::None, 4);
        let flops = Flops::of(&program, &graph);
        let run = |lengths: &[usize], targets| flops.run(lengths.iter().copied(), targets);
        assert!((run(&[30, 40], 68) - run(&[30], 29) - run(&[40], 39)).abs() < 1.0);
        assert!(run(&[30, 40], 68) < run(&[70], 68), "attention stays inside a record");
        assert!(run(&[70], 10) < run(&[70], 69), "only targets meet the head");
    }
}
