//! RoBERTa with a head of classes: beside an adapter, with PyTorch's and PEFT's numbers, or the model's own.

use std::collections::BTreeMap;
use std::path::PathBuf;

use safetensors::SafeTensors;
use serde_json::Value;

use crate::adapters::{self, agrees};
use crate::encoders::{cloze, encoder};
use crate::models::{Golden, rewrite};
use crate::place::{Place, Run};
use crate::reports::losses;

const HEAD: [&str; 4] =
    ["classifier.dense.weight", "classifier.dense.bias", "classifier.out_proj.weight", "classifier.out_proj.bias"];

/// Pairs of sentences in three classes, an adapter of PEFT's with a head for them, and PyTorch's numbers.
fn golden(name: &str) -> PathBuf {
    Golden::new("roberta").adapter().join("../../classifier").join(name)
}

/// The tiny encoder with a head of two classes of its own, in place of the one for masked tokens.
pub fn with_head(place: &Place) -> PathBuf {
    let model = encoder(place);
    let bytes = std::fs::read(golden("head.safetensors")).unwrap();
    let head = SafeTensors::deserialize(&bytes).unwrap();
    let values = adapters::read(&golden("head.safetensors"));
    rewrite(&model.join("model.safetensors"), |tensors| {
        tensors.retain(|name, _| !name.starts_with("lm_head."));
        tensors.extend(values.into_iter().map(|(name, values)| {
            let shape = head.tensor(&name).unwrap().shape().to_vec();
            (name, (shape, values))
        }));
    });
    model
}

fn train<'a>(place: &'a Place, words: &str) -> Run<'a> {
    place.pocketune("train --no-shuffle --steps-per-report 1 --log-format jsonl --seed 3 --batch-size 4").words(words)
}

fn measured(run: Run) -> Value {
    serde_json::from_str(&run.succeeds().stdout).unwrap()
}

#[test]
fn ten_updates_of_an_adapter_and_its_head_are_pytorchs() {
    let expected = adapters::read(&golden("expected.safetensors"));
    for (method, rate) in [("backprop", "--learning-rate 1e-2 --weight-decay 0.01"), ("mezo", "--learning-rate 2e-3")] {
        let place = Place::new();
        let run = train(&place, "--task cb --iters 10 --precision f32").with("--method", method).words(rate);
        let run = run.with("--init-adapter", golden("adapter")).model(encoder(&place));
        let said = run.data(golden("pairs.jsonl")).into("out").succeeds();
        agrees(method, &expected, &said.stdout, &place.path("out"));
        let said = adapters::config(&place.path("out"));
        assert_eq!(said["task_type"], "SEQ_CLS");
        assert_eq!(said["modules_to_save"], serde_json::json!(["classifier"]));
    }
}

#[test]
fn a_fresh_head_learns_beside_any_adapter_and_is_measured_with_it() {
    for kind in [
        "",
        "--fine-tune-type dora",
        "--method vera",
        "--lora-dropout 0.1",
        "--method lora-fa",
        "--optimizer adamw8bit",
    ] {
        let place = Place::new();
        let run = train(&place, "--task cb --classification-head --iters 60 --learning-rate 5e-3").words(kind);
        run.model(encoder(&place)).data(golden("pairs.jsonl")).into("out").succeeds();
        let run = place.pocketune("eval --task cb --log-format jsonl").model(place.path("roberta"));
        let score = measured(run.data(golden("pairs.jsonl")).with("--adapter", place.path("out")));
        assert_eq!((score["right"].as_u64(), score["asked"].as_u64()), (Some(4), Some(4)), "{kind}: {score}");
    }
}

#[test]
fn a_models_own_head_is_where_an_adapters_begins() {
    let place = Place::new();
    let model = with_head(&place);
    let words = "--task sst2 --iters 3 --precision f32 --learning-rate 1e-2";
    let found = losses(&train(&place, words).model(&model).data(cloze("reviews.tsv")).into("out").succeeds().stdout);
    // A fresh adapter changes nothing.
    let first = adapters::read(&golden("../learned.safetensors"))["full.classes.losses"][0];
    assert!((found[0] - f64::from(first)).abs() < 1e-5, "{found:?} instead of {first}");
    let (head, adapter) = (adapters::read(&golden("head.safetensors")), adapters::tensors(&place.path("out")));
    for name in HEAD {
        assert!(adapter[&format!("base_model.model.{name}")] != head[name], "{name} has not learnt");
    }
    // What was learnt is used without the model's, too.
    let other = Place::new();
    let next = [(&place, &model), (&other, &encoder(&other))].map(|(at, model)| {
        let run = train(at, words).with("--init-adapter", place.path("out")).model(model).data(cloze("reviews.tsv"));
        losses(&run.into("next").succeeds().stdout)
    });
    assert_eq!(next[0], next[1]);
    assert!(next[0][0] < found[2], "{next:?} after {found:?}");
}

#[test]
fn an_adapter_and_its_head_are_the_same_bytes_under_any_plan_and_go_on_to_them() {
    for method in [
        "backprop",
        "backprop --optimizer adamw8bit",
        "backprop --grad-accumulation-steps 2",
        "backprop --max-grad-norm 0.5",
        "mezo",
        "fzoo",
    ] {
        let place = Place::new();
        let model = encoder(&place);
        let words = format!("--task cb --classification-head --iters 5 --learning-rate 1e-2 --method {method}");
        let run = |plan: &str| train(&place, &words).words(plan).model(&model).data(golden("pairs.jsonl"));
        run("").into("whole").succeeds();
        let kept = if method.starts_with("backprop") { "--grad-checkpoint block" } else { "" };
        for plan in ["--threads 1", "--memory-budget min", &format!("--threads 2 {kept}")] {
            let said = run(plan).words("--time-limit 1ms --resume auto").into("run").stops_early();
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
            assert!(held <= planned, "{method} {plan}: {held} bytes held, {planned} planned");
        }
        run("--resume auto --threads 2").into("run").succeeds();
        let [one, other] = ["run", "whole"].map(|name| adapters::bytes(&place.path(name)));
        assert!(one == other, "{method}");
        if !method.starts_with("backprop") {
            let again = place.pocketune("replay --threads 1 --output again").word(place.path("run")).model(&model);
            again.succeeds();
            assert!(adapters::bytes(&place.path("again")) == one, "{method}: the replay");
        }
    }
}

#[test]
fn a_preview_shows_the_class_beside_the_token_it_is_read_from() {
    let place = Place::new();
    let run = place.pocketune("data preview --task cb --classification-head --records 2").model(encoder(&place));
    let said = run.data(golden("pairs.jsonl")).succeeds().stdout;
    assert!(said.contains("⟦<s>→0⟧") && said.contains("⟦<s>→1⟧"), "{said}");
}

#[test]
fn a_plan_of_a_real_shape_counts_the_head() {
    let peak = |words: &str| {
        let place = Place::new();
        let said =
            place.pocketune("plan --json --batch-size 1 --task sst2").with("--shape", "roberta-large").words(words);
        let plan: Value = serde_json::from_str(&said.succeeds().stdout).unwrap();
        plan["plans"].as_array().unwrap().iter().map(|plan| plan["peak_bytes"].as_u64().unwrap()).min().unwrap()
    };
    // Its first linear is 1,024 by 1,024; its moments are on disk in the smallest plan, and the vocabulary's part of the loss is gone.
    let [without, with] = ["", "--classification-head"].map(peak);
    assert!(with > without + (3 << 20), "{with} after {without}");
}

#[test]
fn what_has_no_such_head_is_refused_with_what_has() {
    let place = Place::new();
    let (model, pairs, reviews) = (encoder(&place), golden("pairs.jsonl"), cloze("reviews.tsv"));
    let run = |words: &str| place.pocketune(words).model(&model).into("out");
    run("train --classification-head --task cb --method full")
        .data(&pairs)
        .refuses(&["no such head", "--method backprop"]);
    let from = |words: &str| run(words).with("--init-adapter", golden("adapter"));
    from("train --task sst2").data(&reviews).refuses(&["a head of 3 classes", "sst2 has 2"]);
    let copa = place.file(
        "copa.jsonl",
        "{\"premise\": \"a\", \"question\": \"cause\", \"choice1\": \"b\", \"choice2\": \"c\", \"label\": 0}\n",
    );
    run("train --classification-head --task copa").data(&copa).refuses(&["copa are sentences"]);
    let words = "train --classification-head";
    place.pocketune(words).model(&model).data(&pairs).into("out").misused(&["--task"]);
    let other = Place::new();
    let llama = Golden::new("llama").folder(&other);
    let run = other.pocketune("train --classification-head --task cb").model(&llama).data(&pairs).into("out");
    run.refuses(&["family llama has no such head"]);
    let data = place.texts("data.jsonl", &["some words"]);
    let run = place.pocketune("eval").with("--adapter", golden("adapter")).model(&model).data(&data);
    run.refuses(&["roberta is an encoder", "--task sst2"]);
}

#[test]
fn what_no_runtime_can_hold_is_not_converted_and_a_broken_head_not_read() {
    let place = Place::new();
    let model = encoder(&place);
    let run = place.pocketune("convert --to mlx --output out").with("--adapter", golden("adapter")).model(&model);
    run.refuses(&["a classification head", "PEFT"]);
    let run = place.pocketune("merge --output out").with("--adapter", golden("adapter")).model(&model);
    run.refuses(&["a classification head", "PEFT"]);
    fn name(part: &str) -> String {
        format!("base_model.model.classifier.{part}")
    }
    type Change = dyn Fn(&mut BTreeMap<String, (Vec<usize>, Vec<f32>)>);
    let changes: [(&Change, &str); 5] = [
        (&|tensors| drop(tensors.remove(&name("out_proj.bias"))), "a part of a classification head"),
        (
            &|tensors| drop(tensors.insert(name("third.weight"), (vec![1], vec![0.0]))),
            "classifier.third.weight is of no head",
        ),
        (&|tensors| tensors.get_mut(&name("dense.weight")).unwrap().0 = vec![16, 64], "has shape [16, 64]"),
        (&|tensors| tensors.get_mut(&name("dense.bias")).unwrap().1[3] = f32::NAN, "classifier.dense.bias holds NaN"),
        (
            &|tensors| tensors.get_mut(&name("out_proj.weight")).unwrap().0 = vec![2, 48],
            "a head of 2 classes, and cb has 3",
        ),
    ];
    for (change, words) in changes {
        for file in adapters::FILES {
            place.file(&format!("adapter/{file}"), std::fs::read(golden("adapter").join(file)).unwrap());
        }
        rewrite(&place.path("adapter/adapter_model.safetensors"), change);
        let run = place.pocketune("eval --task cb").with("--adapter", place.path("adapter")).model(&model);
        run.data(golden("pairs.jsonl")).refuses(&[words]);
    }
}
