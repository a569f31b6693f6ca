//! Every family against PyTorch, transformers and PEFT: logits, loss, every named gradient and ten optimizer steps, in f32. The
//! expected numbers were made by `oracle/families.py` and are checked in.

mod golden;

use golden::{Case, Golden};
use pocketune::backend::Rule;
use pocketune::plan::{Mode, PolicyName};
use pocketune_kernels::update::{AdamW, Sgd};

const DECODERS: [&str; 12] = [
    "llama",
    "llama3",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma3_text",
    "opt",
    "qwen2_dora",
    "llama_dora",
    "llama_ends",
    "gemma3_text_ends",
    "llama_vera",
];
const ENCODER: &str = "roberta";
const GGUFS: [&str; 7] =
    ["llama.gguf", "llama3.gguf", "qwen2.gguf", "qwen3.gguf", "gemma3_text.gguf", "llama_dora.gguf", "llama_vera.gguf"];

fn decoders() -> impl Iterator<Item = Golden> {
    DECODERS.into_iter().chain(GGUFS).map(Golden::open)
}

fn cases() -> impl Iterator<Item = Golden> {
    decoders().chain([Golden::open(ENCODER)])
}

/// Largest difference relative to the largest expected magnitude.
fn error(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    let scale = want.iter().fold(f32::MIN_POSITIVE, |a, b| a.max(b.abs()));
    got.iter().zip(want).fold(0.0_f32, |a, (got, want)| a.max((got - want).abs())) / scale
}

#[test]
fn logits_match_with_and_without_the_adapter() {
    for golden in decoders() {
        for (adapter, expected) in [(true, "logits.0"), (true, "logits.1"), (false, "logits_base.0")] {
            let ids = golden.ids(expected.ends_with('1') as usize);
            let got =
                golden.case(adapter, Mode::Generate { context: ids.len() }, PolicyName::None, 2).logits_by_token(&ids);
            let error = error(&got, &golden.expected(expected));
            assert!(error < 1e-4, "{} {expected}: {error:e}", golden.name);
        }
    }
}

#[test]
fn prompts_read_at_once_end_in_the_same_logits() {
    for golden in decoders() {
        let ids = golden.ids(0);
        let mut case = golden.case(true, Mode::Generate { context: ids.len() }, PolicyName::None, 2);
        let got = case.logits_at_once(&ids);
        let want = golden.expected("logits.0");
        let error = error(&got, &want[want.len() - got.len()..]);
        assert!(error < 1e-4, "{}: {error:e}", golden.name);
    }
}

#[test]
fn greedy_tokens_match() {
    for golden in decoders() {
        let prompt = &golden.ids(0)[..8];
        let want: Vec<u32> = golden.integers("greedy");
        let mut case = golden.case(true, Mode::Generate { context: 16 }, PolicyName::None, 1);
        let mut logits = case.logits_at_once(prompt);
        let mut got = Vec::new();
        for past in 8..16 {
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap() as u32;
            got.push(best);
            logits = case.logits_of(best, past);
        }
        assert_eq!(got, want, "{}", golden.name);
    }
}

#[test]
fn logits_of_every_token_of_an_encoder_match() {
    let golden = Golden::open(ENCODER);
    for (adapter, expected) in [(true, "logits.0"), (true, "logits.1"), (false, "logits_base.0")] {
        let ids = golden.ids(expected.ends_with('1') as usize);
        let mut case = golden.case(adapter, Mode::Generate { context: ids.len() }, PolicyName::None, 2);
        // The last row's logits are what a program leaves. Rows see each other in any order: each takes its turn as the last.
        let got: Vec<f32> = (0..ids.len()).flat_map(|row| case.logits_with_last(&ids, row)).collect();
        let error = error(&got, &golden.expected(expected));
        assert!(error < 1e-4, "{expected}: {error:e}");
    }
}

#[test]
fn loss_and_every_gradient_match() {
    for golden in cases() {
        let mut case = golden.case(true, Mode::Accumulate, PolicyName::None, 2);
        let loss = case.loss(None);
        let want = golden.expected("loss")[0];
        assert!((loss - want).abs() < 1e-4 * want, "{}: loss {loss} instead of {want}", golden.name);
        for (name, got) in case.gradients() {
            let error = error(&got, &golden.expected(&format!("grad.{name}")));
            assert!(error < 1e-4, "{} {name}: {error:e}", golden.name);
        }
    }
}

#[test]
fn ten_steps_of_adamw_match() {
    let rule = |step| Rule::AdamW(AdamW { lr: 1e-2, weight_decay: 0.01, beta1: 0.9, beta2: 0.999, eps: 1e-8, step });
    ten_steps("adamw", rule);
}

#[test]
fn ten_steps_of_sgd_match() {
    ten_steps("sgd", |_| Rule::Sgd(Sgd { lr: 0.1, weight_decay: 0.01 }));
}

/// Applies gradients both ways: as they complete, and summed first.
fn ten_steps(optimizer: &str, rule: impl Fn(u64) -> Rule) {
    for golden in cases() {
        for mode in [Mode::TrainAndUpdate, Mode::Accumulate] {
            let mut case: Case = golden.case(true, mode, PolicyName::Block, 2);
            let want = golden.expected(&format!("{optimizer}.losses"));
            for (step, want) in want.iter().enumerate() {
                let loss = case.loss(Some(rule(step as u64 + 1)));
                let error = (loss - want).abs() / want;
                assert!(error < 1e-4, "{} {optimizer} step {step}: {loss} instead of {want}", golden.name);
            }
            for (name, got) in case.params() {
                let error = error(&got, &golden.expected(&format!("{optimizer}.final.{name}")));
                assert!(error < 1e-3, "{} {optimizer} {name}: {error:e}", golden.name);
            }
        }
    }
}

#[test]
fn configurations_of_both_transformers_versions_mean_the_same() {
    for name in DECODERS.into_iter().chain([ENCODER]) {
        let (new, old) = Golden::both_configs(name);
        assert_eq!(new, old, "{name}");
    }
}
