//! Keeping, recomputing, chunking and threads change where numbers live, never what they are: gradients are the same to the bit.

mod golden;

use golden::Golden;
use pocketune::backend::Rule;
use pocketune::plan::{Mode, Policy, PolicyName};
use pocketune_kernels::Isa;
use pocketune_kernels::matmul::Precision;
use pocketune_kernels::update::AdamW;
use proptest::prelude::*;

fn bits(named: Vec<(String, Vec<f32>)>) -> Vec<(String, Vec<u32>)> {
    named.into_iter().map(|(name, values)| (name, values.iter().map(|x| x.to_bits()).collect())).collect()
}

const CASES: [&str; 4] = ["llama.gguf", "mistral", "qwen3", "gemma3_text"];

fn policies() -> impl Strategy<Value = PolicyName> {
    prop_oneof![Just(PolicyName::None), Just(PolicyName::Block), Just(PolicyName::Selective)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn gradients_do_not_depend_on_policy_threads_or_chunks(
        case in 0..CASES.len(),
        policy in policies(),
        threads in prop_oneof![Just(1_usize), Just(2), Just(4)],
        loss_rows in 1_usize..40,
        first in 0_usize..30,
        second in 2_usize..30,
        bf16: bool,
    ) {
        let golden = Golden::open(CASES[case]);
        let precision = if bf16 { Precision::Bf16 } else { Precision::F32 };
        let isa = Isa::detect().unwrap();
        let run = |name, loss_rows, threads| {
            let policy = Policy { name, loss_rows };
            let mut case = golden.case_with(isa, precision, Some([first, second]), true, Mode::Accumulate, policy, threads);
            let loss = case.loss(None);
            (loss.to_bits(), bits(case.gradients()))
        };
        let plain = run(PolicyName::None, 64, 1);
        let other = run(policy, loss_rows, threads);
        prop_assert_eq!(plain.0, other.0, "loss");
        for (plain, other) in plain.1.iter().zip(&other.1) {
            prop_assert_eq!(plain, other);
        }
    }
}

#[test]
fn gradients_in_f32_do_not_depend_on_the_instruction_set() {
    for case in CASES {
        let golden = Golden::open(case);
        let policy = Policy { name: PolicyName::Block, loss_rows: 16 };
        let run = |isa| {
            let mut case = golden.case_on(isa, true, Mode::Accumulate, policy, 2);
            case.loss(None);
            bits(case.gradients())
        };
        let scalar = run(Isa::Scalar);
        for isa in [Isa::Avx2, Isa::Avx512, Isa::Amx].into_iter().filter(|isa| isa.available()) {
            assert_eq!(scalar, run(isa), "{case} on {}", isa.name());
        }
    }
}

#[test]
fn updating_as_gradients_complete_equals_updating_at_the_end() {
    let rule = |step| Rule::AdamW(AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step });
    for case in CASES {
        let golden = Golden::open(case);
        let run = |mode, policy| {
            let mut case = golden.case(true, mode, policy, 2);
            (1..=5).for_each(|step| {
                case.loss(Some(rule(step)));
            });
            bits(case.params())
        };
        let at_the_end = run(Mode::Accumulate, PolicyName::None);
        assert_eq!(at_the_end, run(Mode::TrainAndUpdate, PolicyName::Block), "{case}");
        assert_eq!(at_the_end, run(Mode::TrainAndUpdate, PolicyName::Selective), "{case}");
    }
}

#[test]
fn kept_policies_hold_what_they_say() {
    let golden = Golden::open("llama");
    let len = |name| golden.case(true, Mode::Accumulate, name, 1).program.len;
    let (none, selective, block) = (len(PolicyName::None), len(PolicyName::Selective), len(PolicyName::Block));
    assert!(block < selective && selective < none, "{block} {selective} {none}");
}

#[test]
fn the_arena_is_hardly_larger_than_what_is_alive_at_the_peak() {
    for case in CASES {
        for policy in [PolicyName::None, PolicyName::Block, PolicyName::Selective] {
            let program = Golden::open(case).case(true, Mode::TrainAndUpdate, policy, 1).program;
            let alive = (0..program.instrs.len()).map(|at| program.live(at)).max().unwrap();
            assert!(
                program.len as f64 <= alive as f64 * 1.1 + 1024.0,
                "{case} {policy:?}: {} for {alive}",
                program.len
            );
        }
    }
}
