//! Keeping, recomputing, chunking and threads change where numbers live, never what they are: gradients are the same to the bit.

mod golden;

use golden::{Golden, policy_of};
use pocketune::backend::Rule;
use pocketune::graph::Role;
use pocketune::plan::{Keep, Mode, Policy, PolicyName, Roles, Spill};
use pocketune_kernels::Isa;
use pocketune_kernels::matmul::Precision;
use pocketune_kernels::update::AdamW;
use proptest::prelude::*;

fn bits(named: Vec<(String, Vec<f32>)>) -> Vec<(String, Vec<u32>)> {
    named.into_iter().map(|(name, values)| (name, values.iter().map(|x| x.to_bits()).collect())).collect()
}

const CASES: [&str; 11] = [
    "llama.gguf",
    "mistral",
    "qwen3",
    "gemma3_text",
    "opt",
    "roberta",
    "qwen2_dora",
    "llama_ends",
    "gemma3_text_ends",
    "llama_vera.gguf",
    "roberta_classes",
];

/// The case; every second plain one drops a share of its adapters' inputs, two leave first factors as they are, and some have other
/// derivatives.
fn open(case: usize) -> Golden {
    let mut golden = Golden::open(CASES[case]);
    golden.dropout = if case < 6 && case.is_multiple_of(2) { 0.25 } else { 0.0 };
    golden.frozen_a = matches!(CASES[case], "gemma3_text" | "opt");
    golden.derivatives.ms_norm =
        matches!(CASES[case], "llama.gguf" | "gemma3_text" | "roberta" | "llama_ends" | "llama_vera.gguf");
    golden.derivatives.approx_act = matches!(CASES[case], "mistral" | "roberta" | "gemma3_text");
    golden
}

/// Any policy that a planner could choose.
fn policies() -> impl Strategy<Value = Policy> {
    let roles = || {
        prop::sample::subsequence(Role::ALL.to_vec(), 0..=Role::ALL.len()).prop_map(|mut roles| {
            roles.push(Role::BlockInput);
            Roles::of(&roles)
        })
    };
    let spill = prop_oneof![Just(Spill::No), Just(Spill::Ahead), Just(Spill::Tight)];
    let every =
        prop_oneof![3 => Just([1, 1]), 1 => Just([2, 1]), 1 => Just([3, 1]), 1 => Just([4, 2]), 1 => Just([6, 2])];
    let rows = prop_oneof![Just(usize::MAX), 1_usize..40];
    (roles(), roles(), 0_usize..7, spill, every, rows, 1_usize..40, any::<bool>(), any::<bool>()).prop_map(
        |(first, rest, split, spill, every, rows, loss_rows, stream, page_optimizer)| Policy {
            keep: Keep { first, rest, split },
            spill,
            every,
            at_once: usize::MAX,
            rows,
            loss_rows,
            stream,
            page_optimizer,
        },
    )
}

/// 64 cases of each property, or `PROPTEST_CASES`: an emulated processor takes minutes for so many.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { 64 };
    ProptestConfig { cases, ..default }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn gradients_do_not_depend_on_policy_threads_or_pieces(
        case in 0..CASES.len(),
        policy in policies(),
        threads in prop_oneof![Just(1_usize), Just(2), Just(4)],
        first in 0_usize..30,
        second in 2_usize..30,
        precision in proptest::sample::select(Precision::ALL.to_vec()),
    ) {
        let golden = open(case);
        // In bf16 on tiles the sum over tokens in an adapter's gradient goes by 32 of them: pieces are multiples of that.
        let tiles = precision == Precision::Bf16;
        let rows = if tiles { policy.rows.checked_next_multiple_of(32).unwrap_or(usize::MAX) } else { policy.rows };
        let policy = Policy { rows, ..policy };
        let isa = Isa::detect().unwrap();
        let run = |policy, threads| {
            let mut case = golden.case_with(isa, precision, Some([first, second]), true, Mode::Accumulate, policy, threads);
            let loss = case.loss(None);
            (loss.to_bits(), bits(case.gradients()))
        };
        let plain = run(policy_of(PolicyName::None, 64), 1);
        let other = run(policy, threads);
        prop_assert_eq!(plain.0, other.0, "loss");
        for (plain, other) in plain.1.iter().zip(&other.1) {
            prop_assert_eq!(plain, other);
        }
    }

    #[test]
    fn updates_do_not_depend_on_policy_or_where_the_state_waits(
        case in 0..CASES.len(),
        policy in policies(),
        in_8_bits: bool,
    ) {
        let rule = |step| {
            let rule = AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step };
            if in_8_bits { Rule::AdamW8bit(rule) } else { Rule::AdamW(rule) }
        };
        let mut golden = open(case);
        golden.states = rule(1).states();
        let run = |mode, policy| {
            let mut case = golden.case_on(Isa::detect().unwrap(), true, mode, policy, 2);
            (1..=3).for_each(|step| {
                case.loss(Some(rule(step)));
            });
            bits(case.params())
        };
        let plain = run(Mode::Accumulate, policy_of(PolicyName::None, 64));
        prop_assert_eq!(&plain, &run(Mode::TrainAndUpdate, policy));
        prop_assert_eq!(&plain, &run(Mode::Accumulate, policy));
    }
}

#[test]
fn gradients_in_f32_and_in_integers_do_not_depend_on_the_instruction_set() {
    let precisions = Precision::ALL.into_iter().filter(|precision| precision.same_everywhere());
    for ((at, case), precision) in
        precisions.flat_map(|precision| CASES.into_iter().enumerate().map(move |case| (case, precision)))
    {
        let golden = open(at);
        let policy = policy_of(PolicyName::Block, 16);
        let run = |isa| {
            let mut case = golden.case_with(isa, precision, None, true, Mode::Accumulate, policy, 2);
            case.loss(None);
            bits(case.gradients())
        };
        let scalar = run(Isa::Scalar);
        for isa in Isa::ALL.iter().copied().filter(|isa| isa.available()) {
            assert_eq!(scalar, run(isa), "{case} on {} in {}", isa.name(), precision.name());
        }
    }
}

#[test]
fn a_step_in_pieces_has_the_gradients_of_the_whole() {
    for (at, case) in CASES.into_iter().enumerate() {
        let golden = open(at);
        let run = |name, rows| {
            let policy = Policy { rows, ..policy_of(name, 64) };
            let mut case = golden.case_on(Isa::detect().unwrap(), true, Mode::Accumulate, policy, 2);
            (case.loss(None).to_bits(), bits(case.gradients()))
        };
        let whole = run(PolicyName::None, usize::MAX);
        for name in [PolicyName::None, PolicyName::Block, PolicyName::Selective] {
            for rows in [1, 7, 32] {
                assert_eq!(whole, run(name, rows), "{case} {name:?} {rows}");
            }
        }
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

#[test]
fn gradients_that_pass_blocks_by_do_not_depend_on_policy_pieces_or_when_they_are_applied() {
    let rule = |step| Rule::AdamW(AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step });
    for name in ["llama.gguf", "gemma3_text", "opt", "roberta", "llama_ends", "qwen2_dora", "roberta_classes"] {
        let run = |mode, policy| {
            let mut case = Golden::open(name).case_on(Isa::detect().unwrap(), true, mode, policy, 2);
            for step in 1..=3 {
                case.cpu.drop_blocks(0.5, 9, step);
                case.loss(Some(rule(step)));
            }
            bits(case.params())
        };
        let plain = policy_of(PolicyName::None, 64);
        let block = Policy { rows: 32, ..policy_of(PolicyName::Block, 5) };
        let far = Policy { every: [2, 1], stream: true, ..block };
        let [spilled, paged] =
            [Spill::Ahead, Spill::Tight].map(|spill| Policy { spill, page_optimizer: true, ..block });
        let whole = run(Mode::Accumulate, plain);
        for policy in [plain, block, far, spilled, paged] {
            for mode in [Mode::Accumulate, Mode::TrainAndUpdate] {
                assert!(whole == run(mode, policy), "{name} {mode:?} {policy:?}");
            }
        }
    }
}
