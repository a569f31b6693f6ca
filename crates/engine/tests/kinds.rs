//! What adapters can be beside plain LoRA and what no golden number shows: dropout, LoRA+, and first factors that stay as they are. (DoRA, rsLoRA, patterns of ranks and alphas,
//! and adapters at the ends of a model are in `oracle.rs`, against PEFT.)

mod golden;

use golden::{Case, Golden};
use pocketune::backend::{Batch, Noise, Rule};
use pocketune::graph::ParamId;
use pocketune::plan::{Kind, Mode, PolicyName};
use pocketune_kernels::update::Sgd;

fn dropping(share: f32, mode: Mode) -> Case {
    let mut golden = Golden::open("llama");
    golden.dropout = share;
    golden.case(true, mode, PolicyName::Block, 2)
}

/// The summed loss of the case's batch with the masks of pass `pass`.
fn loss(case: &mut Case, pass: u64) -> f64 {
    let rows = case.batch();
    let batch = Batch { noise: Noise { seed: 5, pass }, ..rows.batch() };
    case.cpu.clear_grads();
    case.cpu.run(&case.program, batch, 0, None).unwrap().loss
}

#[test]
fn gradients_with_dropout_are_those_of_the_loss_with_the_same_masks() {
    let mut case = dropping(0.25, Mode::Accumulate);
    loss(&mut case, 9);
    let targets = case.batch().batch().targets as f64;
    let mut checked = 0;
    for module in [0, 3, 6, 9, 13] {
        let (a, b) = (case.graph.modules[module].a, case.graph.modules[module].b);
        for ParamId(id) in [a, b] {
            let gradient = case.cpu.grad(ParamId(id)).to_vec();
            // The largest elements, so that the differences are not all rounding.
            let mut order: Vec<usize> = (0..gradient.len()).collect();
            order.sort_by(|&i, &j| gradient[j].abs().total_cmp(&gradient[i].abs()));
            for &at in &order[..3] {
                let step = 1e-2;
                let moved = |by: f32| {
                    let mut case = dropping(0.25, Mode::Accumulate);
                    case.cpu.param_mut(ParamId(id))[at] += by;
                    loss(&mut case, 9)
                };
                let difference = (moved(step) - moved(-step)) / (2.0 * f64::from(step)) / targets;
                let off = (difference - f64::from(gradient[at])).abs() / f64::from(gradient[at]).abs();
                assert!(off < 1e-2, "module {module}, matrix {id}, element {at}: {} and {difference}", gradient[at]);
                checked += 1;
            }
        }
    }
    assert_eq!(checked, 30);
}

#[test]
fn masks_are_a_function_of_the_pass_and_evaluation_has_none() {
    let mut case = dropping(0.25, Mode::Accumulate);
    let first = loss(&mut case, 1);
    assert_eq!(first.to_bits(), loss(&mut case, 1).to_bits());
    assert_ne!(first.to_bits(), loss(&mut case, 2).to_bits());
    let plain = loss(&mut dropping(0.0, Mode::Evaluate), 1);
    assert_eq!(plain.to_bits(), loss(&mut dropping(0.25, Mode::Evaluate), 1).to_bits());
    assert_ne!(plain.to_bits(), first.to_bits());
}

#[test]
fn frozen_first_factors_have_no_gradient_and_the_others_have_the_same_bits() {
    for (name, dropout) in [("llama", 0.0), ("opt", 0.25), ("qwen2_dora", 0.0)] {
        let gradients = |frozen_a: bool| {
            let mut golden = Golden::open(name);
            (golden.frozen_a, golden.dropout) = (frozen_a, dropout);
            let mut case = golden.case(true, Mode::Accumulate, PolicyName::None, 2);
            loss(&mut case, 3);
            case
        };
        let (plain, frozen) = (gradients(false), gradients(true));
        let bits = |case: &Case, id| case.cpu.grad(id).iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        for module in &frozen.graph.modules {
            assert!(frozen.cpu.grad(module.a).is_empty());
            assert_eq!(bits(&plain, module.b), bits(&frozen, module.b), "{name} {}", module.path);
        }
        let floats = |case: &Case| {
            let kept = case.program.buffers.iter().filter(|buffer| buffer.kind == Kind::Checkpoint);
            kept.map(|buffer| buffer.len).sum::<usize>()
        };
        assert!(floats(&frozen) < floats(&plain), "{name}: inputs of first factors are kept");
        assert!(frozen.graph.trainable() < plain.graph.trainable());
    }
}

#[test]
fn lora_plus_moves_second_factors_and_magnitudes_so_many_times_as_far() {
    let golden = Golden::open("qwen2_dora");
    let moved = |times: f32| {
        let mut case = golden.case(true, Mode::Accumulate, PolicyName::None, 1);
        let ids: Vec<ParamId> = (0..case.graph.params.len()).map(ParamId).collect();
        let before: Vec<Vec<f32>> = ids.iter().map(|&id| case.cpu.param(id).to_vec()).collect();
        case.cpu.quicken(&case.graph, times);
        case.loss(Some(Rule::Sgd(Sgd { lr: 0.5, weight_decay: 0.0 })));
        let far = |(id, before): (&ParamId, &Vec<f32>)| {
            let steps = case.cpu.param(*id).iter().zip(before).map(|(after, before)| f64::from(after - before).powi(2));
            steps.sum::<f64>().sqrt()
        };
        let far: Vec<f64> = ids.iter().zip(&before).map(far).collect();
        (far, case.graph)
    };
    let ((once, graph), (more, _)) = (moved(1.0), moved(16.0));
    for module in &graph.modules {
        for (id, name) in module.params() {
            let ratio = more[id.0] / once[id.0];
            let want = if name == "lora_A" { 1.0 } else { 16.0 };
            assert!((ratio / want - 1.0).abs() < 1e-3, "{} {name}: {ratio}", module.path);
        }
    }
}
