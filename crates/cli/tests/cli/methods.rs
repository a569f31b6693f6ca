//! `--method`: every method trains, resumes to the same bytes and obeys its plan; what does not go together is refused with what does.

use serde_json::Value;

use crate::adapters::{self, Tensors, distance};
use crate::models::{Golden, demo, demo_data};
use crate::place::{Place, Run};
use crate::reports::losses;

/// Those without gradients.
const ZEROTH: [&str; 5] = ["mezo", "sparse-mezo", "fzoo", "lozo", "lezo"];

/// A short run of the built-in model with `words`.
fn train<'a>(place: &'a Place, words: &str) -> Run<'a> {
    train_into(place, "adapter", &format!("--iters 4 {words}"))
}

fn train_into<'a>(place: &'a Place, folder: &str, words: &str) -> Run<'a> {
    let run = place.pocketune("train --batch-size 2 --max-seq-length 40 --log-format jsonl --steps-per-report 1");
    run.words(words).model(demo()).data(demo_data().join("train.jsonl")).into(folder)
}

fn bytes(place: &Place) -> Vec<u8> {
    adapters::bytes(&place.path("adapter"))
}

#[test]
fn every_method_goes_on_to_the_same_bytes_under_any_plan() {
    let approximate = [
        "backprop --drop-backward 0.5",
        "lora-fa --drop-backward 0.3 --grad-accumulation-steps 2",
        "backprop --approx-act",
        "backprop --ms-norm --ce-skip",
    ];
    for method in ["lora-fa", "dora", "vera --lora-rank 24"].into_iter().chain(ZEROTH).chain(approximate) {
        let (whole, place) = (Place::new(), Place::new());
        let words = format!("--method {method}");
        train(&whole, &words).succeeds();
        for plan in ["--threads 1", "--memory-budget min", "--threads 2"] {
            let said = train(&place, &words).words(plan).words("--time-limit 1ms --resume auto").stops_early();
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
            assert!(held <= planned, "{method} {plan}: {held} bytes held, {planned} planned");
        }
        train(&place, &words).words("--resume auto").succeeds();
        assert!(bytes(&place) == bytes(&whole), "{method}");
    }
}

#[test]
fn a_run_with_another_method_is_not_gone_on_with() {
    let place = Place::new();
    train(&place, "--time-limit 1ms").stops_early();
    let other = train(&place, "--method lora-fa --resume auto --allow-changed");
    other.stops(&["method backprop, not lora-fa", "can't be gone on with"]);
}

#[test]
fn a_run_with_another_derivative_is_not_gone_on_with_unasked() {
    let place = Place::new();
    train(&place, "--time-limit 1ms").stops_early();
    for option in ["approx-act", "ms-norm", "ce-skip"] {
        let changed = format!("{option} false, not true");
        train(&place, &format!("--{option} --resume auto")).stops(&[&changed, "--allow-changed"]);
    }
}

#[test]
fn dora_by_its_method_is_dora_by_its_type() {
    let (method, kind) = (Place::new(), Place::new());
    train(&method, "--method dora").succeeds();
    train(&kind, "--fine-tune-type dora").succeeds();
    assert!(bytes(&method) == bytes(&kind));
}

#[test]
fn first_factors_that_stay_cost_neither_state_nor_kept_inputs() {
    let place = Place::new();
    let plan = |method: &str| -> Value {
        let run = place.pocketune("plan --json --batch-size 1 --max-seq-length 64 --grad-checkpoint none --method");
        serde_json::from_str(&run.word(method).succeeds().stdout).unwrap()
    };
    let of = |plan: &Value, name: &str| plan["chosen"]["memory"][name].as_u64().unwrap();
    let (plain, frozen) = (plan("backprop"), plan("lora-fa"));
    assert_eq!(of(&plain, "adapter"), of(&frozen, "adapter"));
    assert!(of(&frozen, "optimizer") * 3 < of(&plain, "optimizer") * 2, "{frozen}");
    assert!(of(&frozen, "step") < of(&plain, "step"), "{frozen}");
}

#[test]
fn a_plan_has_the_two_bits_of_a_slope() {
    let place = Place::new();
    let step = |words: &str| {
        let plan = "plan --json --shape roberta-large --batch-size 1 --max-seq-length 128 --grad-checkpoint none";
        let run = place.pocketune(plan).words("--lora-targets query,value").words(words);
        let plan: Value = serde_json::from_str(&run.succeeds().stdout).unwrap();
        plan["plans"][0]["memory"]["step"].as_u64().unwrap()
    };
    // 24 blocks, 128 tokens, 4,096 elements that are four bytes or two bits.
    let (exact, stepped) = (step(""), step("--approx-act"));
    let saved = 24 * 128 * 4096 * 4 / 16 * 15;
    assert!(exact - stepped > saved * 9 / 10 && exact - stepped < saved * 11 / 10, "{exact} {stepped} {saved}");
}

#[test]
fn random_matrices_that_modules_share_are_counted_once_and_stay_as_they_were_drawn() {
    let place = Place::new();
    let plan = |rank: usize| -> Value {
        let plan = format!("plan --json --shape smollm2-135m --max-seq-length 64 --method vera --lora-rank {rank}");
        serde_json::from_str(&place.pocketune(&plan).succeeds().stdout).unwrap()
    };
    let of = |plan: &Value| plan["chosen"]["memory"]["adapter"].as_u64().unwrap();
    // 1,536 inputs and as many outputs at most, 30 blocks of seven linears with a number for each of the rank.
    assert_eq!(of(&plan(256)) - of(&plan(128)), 4 * 128 * (1536 + 1536 + 30 * 7));
    train_into(&place, "start", "--method vera --lora-rank 16 --iters 1").succeeds();
    let on = train_into(&place, "end", "--method vera --iters 4").with("--init-adapter", place.path("start"));
    on.succeeds();
    let [start, end] = ["start", "end"].map(|folder| adapters::tensors(&place.path(folder)));
    for (name, values) in &start {
        assert_eq!(name.starts_with("base_model.vera_"), *values == end[name], "{name}");
    }
}

#[test]
fn first_factors_stay_as_they_began() {
    let place = Place::new();
    train_into(&place, "start", "--method lora-fa --iters 1 --learning-rate 1e-9").succeeds();
    train_into(&place, "end", "--method lora-fa --iters 4").succeeds();
    let [start, end] = ["start", "end"].map(|folder| adapters::tensors(&place.path(folder)));
    for (name, values) in &start {
        assert_eq!(name.contains("lora_A"), *values == end[name], "{name}");
    }
}

#[test]
fn ten_updates_of_every_method_are_pytorchs_with_the_same_random_numbers() {
    let golden = Golden::new("llama");
    let expected = adapters::read(&golden.adapter().join("../../methods.safetensors"));
    for method in ["lora-fa", "drop-backward"].into_iter().chain(ZEROTH) {
        let place = Place::new();
        let words = if method == "drop-backward" { "--drop-backward 0.5".into() } else { format!("--method {method}") };
        let rate = match method {
            "lora-fa" => "--learning-rate 1e-2 --weight-decay 0.01",
            "drop-backward" => "--optimizer sgd --learning-rate 0.1 --weight-decay 0.01",
            "lozo" => "--learning-rate 5e-4",
            _ => "--learning-rate 2e-3",
        };
        let run =
            place.pocketune("train --iters 10 --batch-size 2 --no-shuffle --steps-per-report 1 --log-format jsonl");
        let run = run.words("--precision f32 --seed 3").words(&words).words(rate);
        let (model, data) = (golden.folder(&place), place.texts("data.jsonl", &golden.records()));
        let said = run.with("--init-adapter", golden.adapter()).model(model).data(data).into("out").succeeds();
        for (got, want) in losses(&said.stdout).iter().zip(&expected[&format!("{method}.losses")]) {
            assert!((got - f64::from(*want)).abs() < 1e-4 * got, "{method}: {got} instead of {want}");
        }
        let prefix = format!("{method}.final.");
        let last: Tensors = expected
            .iter()
            .filter_map(|(name, values)| Some((name.strip_prefix(&prefix)?.to_string(), values.clone())))
            .collect();
        let off = distance(&adapters::tensors(&place.path("out")), &last);
        assert!(off < 1e-4, "{method}: the adapter is off by {off:e}");
        let start = distance(&adapters::tensors(&golden.adapter()), &last);
        assert!(start > 1e-2, "{method}: the adapter hardly moved, {start:e}");
    }
}

#[test]
fn a_run_without_gradients_is_made_again_of_its_updates_alone() {
    for (method, more) in [
        ("mezo", "--weight-decay 0.1"),
        ("fzoo", "--val-split 0.2 --save-best --steps-per-eval 1"),
        ("lozo", ""),
        ("sparse-mezo", ""),
    ] {
        let place = Place::new();
        let words = format!("--method {method} --seed 9 {more}");
        train(&place, &words).words("--time-limit 1ms").stops_early();
        train(&place, &words).words("--resume auto --memory-budget min").succeeds();
        // Nothing but the updates is needed.
        std::fs::create_dir(place.path("alone")).unwrap();
        std::fs::copy(place.path("adapter/pocketune.updates"), place.path("alone/pocketune.updates")).unwrap();
        let replay = || place.pocketune("replay --output again").word(place.path("alone"));
        let said = replay().model(demo()).succeeds();
        assert!(said.stdout.contains(" updates"), "{}", said.stdout);
        assert!(adapters::bytes(&place.path("again")) == bytes(&place), "{method}");
    }
}

#[test]
fn updates_of_another_model_or_another_start_and_damaged_ones_are_refused() {
    let place = Place::new();
    train_into(&place, "first", "--iters 1").succeeds();
    let from = train_into(&place, "adapter", "--iters 2 --method mezo").with("--init-adapter", place.path("first"));
    from.succeeds();
    let replay = || place.pocketune("replay --output again").word(place.path("adapter"));
    replay().model(demo()).refuses(&["--init-adapter"]);
    replay().model(demo()).with("--init-adapter", place.path("adapter")).refuses(&["another adapter than"]);
    let golden = Golden::new("llama");
    let other = golden.folder(&place);
    replay().model(other).refuses(&["another model"]);
    replay().model(demo()).with("--init-adapter", place.path("first")).succeeds();
    assert!(adapters::bytes(&place.path("again")) == bytes(&place));
    let path = place.path("adapter/pocketune.updates");
    let mut spoilt = std::fs::read(&path).unwrap();
    let last = spoilt.len() - 40;
    spoilt[last] ^= 1;
    std::fs::write(&path, spoilt).unwrap();
    replay().model(demo()).refuses(&["damaged"]);
    train(&place, "").succeeds();
    assert!(!path.exists(), "updates of another run stayed");
}

#[test]
fn a_larger_batch_needs_no_more_memory_without_gradients() {
    let place = Place::new();
    for words in ["roberta-large", "roberta-large --fine-tune-type full", "opt-1.3b", "opt-1.3b --fine-tune-type full"]
    {
        let smallest = |batch: &str| {
            let run = place.pocketune("plan --json --max-seq-length 64 --method mezo --memory-budget 512MiB --shape");
            let plan = run.words(words).with("--batch-size", batch).succeeds().stdout;
            let plan: Value = serde_json::from_str(&plan).unwrap();
            assert!(plan["chosen"]["peak_bytes"].as_u64().unwrap() <= 512 << 20, "{plan}");
            // The process itself is counted in whole MiB, and may be one more the next time.
            let process = plan["plans"].as_array().unwrap().last().unwrap()["memory"]["process"].as_u64().unwrap();
            plan["smallest_peak_bytes"].as_u64().unwrap() - process
        };
        let (few, many) = (smallest("8"), smallest("64"));
        assert!(many < few + few / 50, "{words}: {few} bytes for 8 records, {many} for 64");
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_what_does() {
    for (words, said) in [
        ("--method lora-fa --fine-tune-type dora", "--method dora"),
        ("--method lora-fa --lora-targets q_proj,lm_head", "leave that out of --lora-targets"),
        ("--method dora --fine-tune-type lora", "--method backprop"),
        ("--method dora --lora-dropout 0.1", "without dropout"),
        ("--method mezo --optimizer sgd", "--method backprop takes one"),
        ("--method mezo --lora-dropout 0.1", "leave --lora-dropout out"),
        ("--method fzoo --fine-tune-type dora", "--method dora"),
        ("--method lozo --lora-targets embed_tokens,q_proj", "leave that out of --lora-targets"),
        ("--method lezo --grad-accumulation-steps 2", "a larger --batch-size is the same"),
        ("--method mezo --max-grad-norm 1", "--learning-rate"),
        ("--method mezo --lora-plus 4", "--method backprop"),
        ("--method mezo --grad-checkpoint block", "leave it out"),
        ("--method mezo --zo-eps 0", "above 0"),
        ("--zo-eps 0.1", "--method mezo"),
        ("--drop-backward 1", "below 1"),
        ("--method mezo --drop-backward 0.5", "--method backprop has"),
        ("--method mezo --approx-act", "--method backprop has"),
        ("--method mezo --ms-norm", "--method backprop has"),
        ("--method mezo --ce-skip", "--method backprop has"),
        ("--method vera --lora-rank-pattern q_proj=4", "one rank"),
        ("--method vera --use-rslora", "no alpha"),
        ("--method vera --lora-alpha 4", "no alpha"),
        ("--method vera --lora-dropout 0.1", "without dropout"),
        ("--method vera --lora-targets q_proj,lm_head", "linears of blocks"),
        ("--method vera --fine-tune-type dora", "--method dora"),
    ] {
        train(&Place::new(), words).refuses(&[said]);
    }
    train(&Place::new(), "--method gradient-descent").misused(&["backprop", "lora-fa"]);
    let place = Place::new();
    train_into(&place, "plain", "--iters 1").succeeds();
    let from = train(&place, "--method dora").with("--init-adapter", place.path("plain"));
    from.stops(&["no magnitudes", "--method backprop"]);
    train(&place, "--method vera").with("--init-adapter", place.path("plain")).stops(&["no VeRA", "--method backprop"]);
    train_into(&place, "vera", "--iters 1 --method vera --lora-rank 8").succeeds();
    train(&place, "--method mezo").with("--init-adapter", place.path("vera")).stops(&["VeRA's", "--method vera"]);
}
