//! A model that is trained itself: its bits after some updates depend on no policy, no number of threads and no place of the optimizer's state.

mod golden;

use golden::{Golden, policy_of};
use pocketune::backend::Rule;
use pocketune::graph::{Of, ParamId};
use pocketune::plan::{Mode, Policy, PolicyName, Spill};
use pocketune_kernels::Isa;
use pocketune_kernels::matmul::Precision;
use pocketune_kernels::update::{AdaLomo, AdamW, Apollo, Sgd};

const ADAMW: AdamW = AdamW { lr: 1e-3, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 };

fn rules() -> [Rule; 6] {
    let apollo = Apollo { adamw: ADAMW, rank: 4, scale: 16.0, tensor: false, seed: 3 };
    [
        Rule::Sgd(Sgd { lr: 1e-2, weight_decay: 0.01 }),
        Rule::AdamW(ADAMW),
        Rule::AdamW8bit(ADAMW),
        Rule::AdaLomo(AdaLomo { lr: 1e-3, weight_decay: 0.01, step: 1 }),
        Rule::Apollo(apollo),
        Rule::Apollo(Apollo { rank: 1, scale: 128.0, tensor: true, ..apollo }),
    ]
}

/// Every tensor after three updates.
fn trained(name: &str, rule: Rule, precision: Precision, policy: Policy, threads: usize) -> Vec<Vec<u8>> {
    let mut golden = Golden::open(name);
    (golden.states, golden.whole) = (rule.states(), true);
    let isa = Isa::detect().unwrap();
    let mut case = golden.case_with(isa, precision, Some([40, 30]), true, Mode::TrainAndUpdate, policy, threads);
    for _ in 0..3 {
        let rows = case.batch();
        case.cpu.run(&case.program, rows.batch(), 0, Some(rule)).unwrap();
    }
    let bytes = |id: usize| match case.graph.params[id].of {
        Of::Matrix(weight) => {
            let mut bytes = vec![0; case.cpu.weights().stored_bytes(weight)];
            case.cpu.weights().read(weight, 0, &mut bytes).unwrap();
            bytes
        }
        Of::Module(_) | Of::Shared | Of::Vector(_) => bytemuck::cast_slice(case.cpu.param(ParamId(id))).to_vec(),
    };
    (0..case.graph.params.len()).map(bytes).collect()
}

#[test]
fn bits_depend_on_no_policy_and_no_number_of_threads() {
    let plain = policy_of(PolicyName::None, 64);
    let others = [
        (Policy { stream: true, page_optimizer: true, ..policy_of(PolicyName::Block, 7) }, 2),
        (Policy { spill: Spill::Ahead, page_optimizer: true, ..policy_of(PolicyName::Selective, 64) }, 3),
        (Policy { every: [2, 1], stream: true, ..policy_of(PolicyName::Block, 32) }, 1),
    ];
    for name in ["llama.gguf", "qwen2.gguf", "qwen3.gguf", "gemma3_text.gguf"] {
        for (rule, precision) in rules().into_iter().zip([Precision::F32, Precision::Bf16, Precision::F32].repeat(2)) {
            let whole = trained(name, rule, precision, plain, 1);
            for (policy, threads) in others {
                assert!(whole == trained(name, rule, precision, policy, threads), "{name} {rule:?} {policy:?}");
            }
        }
    }
}

#[test]
fn every_tensor_of_a_model_moves() {
    for name in ["llama.gguf", "qwen2.gguf", "qwen3.gguf", "gemma3_text.gguf"] {
        let still = Rule::Sgd(Sgd { lr: 0.0, weight_decay: 0.0 });
        let plain = policy_of(PolicyName::None, 64);
        let before = trained(name, still, Precision::F32, plain, 1);
        for rule in rules() {
            let after = trained(name, rule, Precision::F32, plain, 1);
            let same = before.iter().zip(&after).filter(|(before, after)| before == after).count();
            assert_eq!(same, 0, "{name} {rule:?}: {same} tensors stayed");
        }
    }
}
