//! What keeps a bad or unwanted step from changing anything: a stop that comes before the first gradient is applied, a loss that is no
//! number, a gradient that is not finite.

mod golden;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use golden::{Case, Golden};
use pocketune::Error;
use pocketune::backend::{Batch, Rule};
use pocketune::graph::ParamId;
use pocketune::plan::{Instr, Mode, PolicyName, States};
use pocketune_kernels::update::AdamW;

fn rule() -> Rule {
    Rule::AdamW(AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 })
}

fn case(mode: Mode) -> Case {
    let mut golden = Golden::open("llama");
    golden.states = States::F32;
    golden.case(true, mode, PolicyName::Block, 2)
}

#[test]
fn a_step_that_is_stopped_changes_nothing_or_is_finished() {
    let expected = |mode| {
        let mut case = case(mode);
        case.loss(Some(rule()));
        case.params()
    };
    for mode in [Mode::TrainAndUpdate, Mode::Accumulate] {
        let mut case = case(mode);
        let before = case.params();
        let stop = Arc::new(AtomicU8::new(0));
        case.cpu.heed(Arc::clone(&stop));
        let rows = case.batch();
        let (mut abandoned, mut finished) = (0, 0);
        for at in 0..case.program.instrs.len() {
            let (mut seen, mut updated) = (0, false);
            stop.store(0, Ordering::Relaxed);
            case.cpu.clear_grads();
            let result = case.cpu.run_watched(&case.program, rows.batch(), 0, Some(rule()), &mut |instr| {
                updated |= matches!(instr, Instr::Update { .. });
                seen += 1;
                if seen == at + 1 {
                    stop.store(1, Ordering::Relaxed);
                }
            });
            match result {
                Err(Error::Stopped) => {
                    assert!(!updated, "{mode:?}: stopped after an update at instruction {at}");
                    assert!(case.params() == before, "{mode:?}: instruction {at}");
                    abandoned += 1;
                }
                other => {
                    other.unwrap();
                    finished += 1;
                    if mode == Mode::TrainAndUpdate {
                        assert!(case.params() == expected(mode), "{mode:?}: half an update at instruction {at}");
                        break;
                    }
                }
            }
        }
        assert!(abandoned > 5 && finished > 0, "{mode:?}: {abandoned} abandoned, {finished} finished");
    }
}

#[test]
fn a_loss_at_its_limit_ends_the_pass_before_anything_is_applied() {
    let mut case = case(Mode::TrainAndUpdate);
    let before = case.params();
    let loss = case.loss(Some(rule()));
    assert!(case.params() != before);
    let before = case.params();
    case.cpu.limit_loss(f64::from(loss) / 2.0);
    assert!(case.loss(Some(rule())).is_finite());
    assert!(case.params() == before);
    // A loss that is no number is not below any limit.
    case.cpu.limit_loss(f64::INFINITY);
    case.cpu.param_mut(ParamId(1)).fill(f32::NAN);
    let before: Vec<Vec<u32>> = bits(&case);
    assert!(case.loss(Some(rule())).is_nan());
    assert!(bits(&case) == before);
}

fn bits(case: &Case) -> Vec<Vec<u32>> {
    (0..case.graph.params.len()).map(|id| case.cpu.param(ParamId(id)).iter().map(|x| x.to_bits()).collect()).collect()
}

#[test]
fn a_gradient_that_is_not_finite_is_not_applied_and_the_others_are() {
    // A first factor so large that the value below it is still finite while the gradient of the second, which is zero, is not.
    let mut found = 0;
    for module in 0..case(Mode::Accumulate).graph.modules.len() {
        for exponent in 0..40 {
            let mut case = case(Mode::TrainAndUpdate);
            case.cpu.param_mut(ParamId(2 * module)).iter_mut().for_each(|x| *x *= 1e36 * 1.3_f32.powi(exponent));
            case.cpu.param_mut(ParamId(2 * module + 1)).fill(0.0);
            let before = bits(&case);
            let rows = case.batch();
            // Gradients of the sum, not of the mean: larger.
            let batch = Batch { targets: 1, ..rows.batch() };
            let outcome = case.cpu.run(&case.program, batch, 0, Some(rule())).unwrap();
            let refused = case.cpu.refused();
            if !outcome.loss.is_finite() || refused == 0 {
                continue;
            }
            let after = bits(&case);
            let same = before.iter().zip(&after).filter(|(before, after)| before == after).count();
            assert!(same >= refused, "{refused} refused, {same} unchanged");
            assert!(same < before.len(), "nothing was applied at all");
            let finite = |bits: &Vec<u32>| bits.iter().all(|&bits| f32::from_bits(bits).is_finite());
            assert!(after.iter().zip(&before).all(|(after, before)| finite(after) || !finite(before)));
            found += 1;
            break;
        }
    }
    assert!(found > 0, "no such gradient was found");
}
