//! A model that is trained itself: its bits after some updates depend on no policy, no number of threads and no place of the optimizer's state.

mod golden;

use golden::{Case, Golden, policy_of};
use pocketune::backend::Rule;
use pocketune::graph::{Of, ParamId, Turns};
use pocketune::plan::{Mode, Policy, PolicyName, Spill};
use pocketune_kernels::Isa;
use pocketune_kernels::matmul::Precision;
use pocketune_kernels::update::{AdaLomo, AdamW, Apollo, Galore, Mlorc, Sgd};

const ADAMW: AdamW = AdamW { lr: 1e-3, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: 1 };

/// The last two are folders, which GGUF has no form for.
const FAMILIES: [&str; 6] = ["llama.gguf", "qwen2.gguf", "qwen3.gguf", "gemma3_text.gguf", "opt", "roberta"];

fn rules() -> [Rule; 8] {
    let apollo = Apollo { adamw: ADAMW, rank: 4, scale: 16.0, tensor: false, seed: 3 };
    [
        Rule::Sgd(Sgd { lr: 1e-2, weight_decay: 0.01 }),
        Rule::AdamW(ADAMW),
        Rule::AdamW8bit(ADAMW),
        Rule::AdaLomo(AdaLomo { lr: 1e-3, weight_decay: 0.01, step: 1 }),
        Rule::Apollo(apollo),
        Rule::Apollo(Apollo { rank: 1, scale: 128.0, tensor: true, ..apollo }),
        Rule::Mlorc(Mlorc { adamw: ADAMW, seed: 3 }),
        Rule::Galore(Galore { adamw: ADAMW, rank: 4, scale: 0.25, seed: 3 }),
    ]
}

/// Every tensor after three updates.
fn trained(name: &str, rule: Rule, precision: Precision, policy: Policy, threads: usize) -> Tensors {
    let mut golden = Golden::open(name);
    (golden.states, golden.whole) = (rule.states(), true);
    let isa = Isa::detect().unwrap();
    let mut case = golden.case_with(isa, precision, Some([40, 30]), true, Mode::TrainAndUpdate, policy, threads);
    for _ in 0..3 {
        let rows = case.batch();
        case.cpu.run(&case.program, rows.batch(), 0, Some(rule)).unwrap();
    }
    tensors(&case)
}

/// Every tensor as it is stored, under its name.
type Tensors = Vec<(String, Vec<u8>)>;

fn tensors(case: &Case) -> Tensors {
    let bytes = |id: usize| match case.graph.params[id].of {
        Of::Matrix(weight) => {
            let mut bytes = vec![0; case.cpu.weights().stored_bytes(weight)];
            case.cpu.weights().read(weight, 0, &mut bytes).unwrap();
            bytes
        }
        Of::Module(_) | Of::Shared | Of::Saved(_) | Of::Vector(_) => {
            bytemuck::cast_slice(case.cpu.param(ParamId(id))).to_vec()
        }
    };
    (0..case.graph.params.len()).map(|id| (case.graph.name_of(ParamId(id)).into(), bytes(id))).collect()
}

#[test]
fn bits_depend_on_no_policy_and_no_number_of_threads() {
    let plain = policy_of(PolicyName::None, 64);
    let others = [
        (Policy { stream: true, page_optimizer: true, ..policy_of(PolicyName::Block, 7) }, 2),
        (Policy { spill: Spill::Ahead, page_optimizer: true, ..policy_of(PolicyName::Selective, 64) }, 3),
        (Policy { every: [2, 1], stream: true, ..policy_of(PolicyName::Block, 32) }, 1),
    ];
    for name in FAMILIES {
        for (rule, precision) in rules().into_iter().zip(Precision::ALL.repeat(3)) {
            let whole = trained(name, rule, precision, plain, 1);
            for (policy, threads) in others {
                assert!(whole == trained(name, rule, precision, policy, threads), "{name} {rule:?} {policy:?}");
            }
        }
    }
}

/// Every tensor after five updates in turns of two, and how many instructions ran.
fn trained_in_turns(name: &str, turns: Turns, order: &[usize], policy: Policy, threads: usize) -> (Tensors, usize) {
    let mut golden = Golden::open(name);
    (golden.whole, golden.turns) = (true, Some(turns));
    let isa = Isa::detect().unwrap();
    let lengths = Some([40, 30]);
    let mut case = golden.case_with(isa, Precision::Bf16, lengths, true, Mode::TrainAndUpdate, policy, threads);
    let mut ran = 0;
    for update in 0..5 {
        let first = update / 2 * turns.blocks;
        let learns = |block: usize| order[first..first + turns.blocks].contains(&block);
        case.cpu.take_turn(learns, update as u64 % 2 + 1).unwrap();
        let rule = Rule::AdamW(AdamW { step: update as u64 + 1, ..ADAMW });
        let rows = case.batch();
        case.cpu.run_watched(&case.program, rows.batch(), 0, Some(rule), &mut |_| ran += 1).unwrap();
    }
    (tensors(&case), ran)
}

#[test]
fn blocks_that_take_turns_have_the_same_bits_under_every_plan() {
    let plain = policy_of(PolicyName::None, 64);
    let others = [
        (Policy { stream: true, page_optimizer: true, ..policy_of(PolicyName::Block, 7) }, 2),
        (Policy { spill: Spill::Ahead, page_optimizer: true, ..policy_of(PolicyName::Selective, 64) }, 3),
        (Policy { every: [2, 1], stream: true, ..policy_of(PolicyName::Block, 32) }, 1),
    ];
    let (one, two) = (Turns { blocks: 1, ends: false }, Turns { blocks: 2, ends: true });
    let gemma = [4, 1, 5, 0, 2, 3];
    for (name, turns, order) in [
        ("gemma3_text.gguf", one, &gemma[..]),
        ("gemma3_text.gguf", two, &gemma),
        ("opt", one, &[1, 0, 1]),
        ("roberta", Turns { blocks: 1, ends: true }, &[1, 0, 1]),
    ] {
        let (whole, _) = trained_in_turns(name, turns, order, plain, 1);
        for (policy, threads) in others {
            let (other, _) = trained_in_turns(name, turns, order, policy, threads);
            assert!(whole == other, "{name} {turns:?} {policy:?}");
        }
    }
}

#[test]
fn the_backward_pass_ends_below_the_lowest_block_that_learns() {
    let (plain, one) = (policy_of(PolicyName::None, 64), Turns { blocks: 1, ends: false });
    let ran = |order: &[usize]| trained_in_turns("gemma3_text.gguf", one, order, plain, 1).1;
    let (last, first) = (ran(&[5, 5, 5]), ran(&[0, 0, 0]));
    assert!(last < first, "{last} instructions where the last block learns, {first} where the first does");
}

#[test]
fn there_is_room_for_the_states_of_the_blocks_that_learn_and_no_more() {
    let mut golden = Golden::open("gemma3_text.gguf");
    golden.whole = true;
    let mut states = |turns| {
        golden.turns = turns;
        let policy = policy_of(PolicyName::None, 64);
        let case = golden.case_on(Isa::detect().unwrap(), true, Mode::TrainAndUpdate, policy, 1);
        let len = |in_block: bool| -> usize {
            let blocks = case.graph.blocks_of_params();
            let of = (0..blocks.len()).filter(|&id| blocks[id].is_some() == in_block);
            of.map(|id| case.cpu.state_len(ParamId(id))).sum()
        };
        (len(true), len(false))
    };
    let (blocks, ends) = states(None);
    assert_eq!(states(Some(Turns { blocks: 1, ends: false })), (blocks / 6, 0));
    assert_eq!(states(Some(Turns { blocks: 2, ends: true })), (blocks / 3, ends));
}

#[test]
fn every_tensor_of_a_model_moves() {
    for name in FAMILIES {
        let still = Rule::Sgd(Sgd { lr: 0.0, weight_decay: 0.0 });
        let plain = policy_of(PolicyName::None, 64);
        let before = trained(name, still, Precision::F32, plain, 1);
        for rule in rules() {
            let after = trained(name, rule, Precision::F32, plain, 1);
            let same = before.iter().zip(&after).filter(|(before, after)| before == after).map(|(before, _)| &before.0);
            // Where there are no rotations a key's bias changes no output: all of its gradient is rounding.
            let moot = |of: &&String| name == "opt" && of.ends_with("k_proj.bias") || of.ends_with(".key.bias");
            let same: Vec<&String> = same.filter(|of| !moot(of)).collect();
            assert!(same.is_empty(), "{name} {rule:?}: {same:?} stayed");
        }
    }
}
