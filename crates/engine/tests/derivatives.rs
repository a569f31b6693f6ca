//! Derivatives that are asked for by name: ten updates with each against a few lines of PyTorch (`oracle/derivatives.py`), and what each
//! saves in bytes.

mod golden;

use std::path::Path;

use golden::Golden;
use pocketune::backend::Rule;
use pocketune::graph::Derivatives;
use pocketune::plan::{Instr, Kind, Mode, PolicyName, Program};
use pocketune_kernels::Isa;
use pocketune_kernels::update::AdamW;
use safetensors::SafeTensors;

const PLAIN: Derivatives = Derivatives { approx_act: false, ms_norm: false, ce_skip: false };
const APPROX_ACT: Derivatives = Derivatives { approx_act: true, ..PLAIN };
const CE_SKIP: Derivatives = Derivatives { ce_skip: true, ..PLAIN };
const MS_NORM: Derivatives = Derivatives { ms_norm: true, ..PLAIN };

fn expected(name: &str) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/derivatives.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let data = tensors.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}")).data();
    data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn distance(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    got.iter().zip(want).fold(0.0, |most, (got, want)| (got - want).abs().max(most))
}

fn ten_updates(option: &str, derivatives: Derivatives, case: &str) {
    let mut golden = Golden::open(case);
    golden.derivatives = derivatives;
    for policy in [PolicyName::None, PolicyName::Block] {
        let mut case_ = golden.case(true, Mode::TrainAndUpdate, policy, 2);
        for (step, want) in expected(&format!("{option}.{case}.losses")).iter().enumerate() {
            let rule =
                AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step: step as u64 + 1 };
            let loss = case_.loss(Some(Rule::AdamW(rule)));
            assert!((loss - want).abs() < 1e-4 * want, "{option} {case} step {step}: {loss} instead of {want}");
        }
        for (name, got) in case_.params() {
            let off = distance(&got, &expected(&format!("{option}.{case}.final.{name}")));
            assert!(off < 1e-4, "{option} {case} {name} is off by {off:e}");
        }
    }
}

/// Floats of values that wait for the backward pass, under the policy that keeps everything.
fn kept(golden: &Golden) -> usize {
    kept_under(golden, PolicyName::None)
}

fn kept_under(golden: &Golden, policy: PolicyName) -> usize {
    let program: Program = golden.case(true, Mode::Accumulate, policy, 1).program;
    let waits = program.buffers.iter().filter(|buffer| buffer.kind == Kind::Checkpoint);
    waits.map(|buffer| buffer.len).sum()
}

#[test]
fn ten_updates_with_stepped_slopes_are_pytorchs() {
    ten_updates("approx-act", APPROX_ACT, "llama");
    ten_updates("approx-act", APPROX_ACT, "roberta");
}

#[test]
fn stepped_slopes_keep_two_bits_an_element_in_place_of_an_activations_input() {
    // Two blocks; 33 tokens; 56 elements of a feed-forward, whose levels fill four words.
    let (blocks, tokens, ffn, words) = (2, 33, 56, 4);
    for frozen_a in [false, true] {
        let mut golden = Golden::open("roberta");
        golden.frozen_a = frozen_a;
        let exact = kept(&golden);
        golden.derivatives = APPROX_ACT;
        assert_eq!(exact - kept(&golden), blocks * tokens * (ffn - words), "frozen A: {frozen_a}");
    }
    // A gate's product needs act(gate): there the gate stays, and nothing is saved or added.
    let mut golden = Golden::open("llama");
    let exact = kept(&golden);
    golden.derivatives = APPROX_ACT;
    assert_eq!(exact, kept(&golden));
}

#[test]
fn norms_that_share_have_the_same_losses_and_gradients() {
    for name in ["llama", "qwen2.gguf", "gemma3_text", "opt", "roberta", "llama_ends", "qwen2_dora"] {
        let run = |derivatives| {
            let mut golden = Golden::open(name);
            golden.derivatives = derivatives;
            let mut case = golden.case(true, Mode::Accumulate, PolicyName::Block, 2);
            let shares = case.program.instrs.iter().any(|instr| matches!(instr, Instr::SharedNormBackward { .. }));
            assert_eq!(shares, derivatives.ms_norm, "{name}");
            (case.loss(None).to_bits(), case.gradients())
        };
        let (plain, shared) = (run(PLAIN), run(MS_NORM));
        assert_eq!(plain.0, shared.0, "{name}: the forward pass has other bits");
        for ((matrix, plain), (_, shared)) in plain.1.iter().zip(&shared.1) {
            let size = plain.iter().fold(0.0_f32, |most, g| most.max(g.abs()));
            let off = distance(plain, shared);
            assert!(off < 1e-5 * size, "{name} {matrix}: {off:e} of {size:e}");
        }
    }
}

#[test]
fn norms_that_share_keep_one_value_and_a_number_a_row_where_two_were() {
    for (name, hidden) in [("llama", 64), ("roberta", 32), ("gemma3_text", 32)] {
        let mut golden = Golden::open(name);
        let blocks = if name == "gemma3_text" { 6 } else { 2 };
        let exact =
            [PolicyName::None, PolicyName::Selective, PolicyName::Block].map(|policy| kept_under(&golden, policy));
        golden.derivatives = MS_NORM;
        let [none, selective, block] =
            [PolicyName::None, PolicyName::Selective, PolicyName::Block].map(|policy| kept_under(&golden, policy));
        // The inputs of both norms of a block, less a number for each; the first block's first norm has nothing to differentiate before it,
        // and its input was never kept.
        assert_eq!(exact[0] - none, 33 * (2 * blocks - 1) * (hidden - 1), "{name}");
        // Where only inputs were kept, what stands for the second one has its number beside it.
        assert_eq!(selective - exact[1], 33 * blocks, "{name}");
        assert_eq!(block, exact[2], "{name}");
    }
}

#[test]
fn ten_updates_without_faint_strips_are_pytorchs() {
    ten_updates("ce-skip", CE_SKIP, "llama_wide");
}

#[test]
fn which_strips_are_left_out_does_not_depend_on_pieces_or_threads() {
    let run = |derivatives, policy, rows, threads| {
        let mut golden = Golden::open("llama_wide");
        golden.derivatives = derivatives;
        let policy = golden::policy_of(policy, rows);
        let mut case = golden.case_on(Isa::detect().unwrap(), true, Mode::Accumulate, policy, threads);
        let loss = case.loss(None);
        (loss, case.gradients())
    };
    let whole = run(CE_SKIP, PolicyName::None, 64, 1);
    for (policy, rows, threads) in [(PolicyName::Block, 1, 1), (PolicyName::None, 5, 2), (PolicyName::Selective, 17, 4)]
    {
        assert!(whole == run(CE_SKIP, policy, rows, threads), "{rows} rows, {threads} threads");
    }
    let exact = run(PLAIN, PolicyName::None, 64, 1);
    assert_eq!(exact.0, whole.0, "the loss is exact");
    assert!(exact.1 != whole.1, "nothing was left out");
}
