//! All parameters of the families with learned positions, OPT and RoBERTa, which GGUF has no form for: their updates are PyTorch's, runs go on to the same bytes inside their
//! plans, and what they end with is a folder like the one that they began with.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::adapters::{self, distance, under};
use crate::classes::with_head;
use crate::encoders::{cloze, encoder};
use crate::models::{Golden, rewrite};
use crate::place::{Place, Run};
use crate::reports::{losses, validations};
use crate::whole::sampled;

/// OPT, RoBERTa with its masked tokens, and RoBERTa with a head of classes.
const CASES: [&str; 3] = ["opt", "roberta", "classes"];

/// A tiny model, and what it learns from.
struct Pupil {
    place: Place,
    model: PathBuf,
    data: PathBuf,
    words: &'static str,
}

impl Pupil {
    fn new(case: &'static str) -> Self {
        let place = Place::new();
        let (model, data, words) = match case {
            "roberta" => (encoder(&place), cloze("reviews.tsv"), "--task sst2 --batch-size 4"),
            "classes" => (with_head(&place), cloze("reviews.tsv"), "--task sst2 --batch-size 4"),
            _ => {
                let golden = Golden::new(case);
                (golden.folder(&place), place.texts("data.jsonl", &golden.records()), "--batch-size 2")
            }
        };
        Self { place, model, data, words }
    }

    fn train(&self, words: &str) -> Run<'_> {
        self.train_on(&self.model, words)
    }

    fn train_on(&self, model: &Path, words: &str) -> Run<'_> {
        let run = self.place.pocketune("train --no-shuffle --steps-per-report 1 --log-format jsonl --seed 3");
        run.words(self.words).words(words).model(model).data(&self.data)
    }

    /// The tensors' file that the run of a folder ended with.
    fn result(&self, run: &str) -> Vec<u8> {
        assert!(!self.place.path(run).join("model.gguf").exists(), "a file that nothing reads is left");
        std::fs::read(self.place.path(run).join("model/model.safetensors")).unwrap()
    }
}

#[test]
fn ten_updates_of_all_parameters_are_pytorchs() {
    let expected = adapters::read(&Golden::new("opt").adapter().join("../../learned.safetensors"));
    let (decay, moved) = ("--weight-decay 0.01 --learning-rate", "--fine-tune-type full --learning-rate");
    let methods = [
        ("full", decay, "1e-3"),
        ("lomo", decay, "0.1"),
        ("lomo-clipped", decay, "0.1 --max-grad-norm 1"),
        ("adalomo", decay, "1e-2"),
        ("apollo", decay, "1e-3"),
        ("apollo-mini", decay, "1e-3"),
        ("galore", decay, "1e-3"),
        ("badam", decay, "1e-3 --switch-every 3"),
        ("lisa", decay, "1e-3 --switch-every 3"),
        ("mezo", moved, "2e-4"),
        ("sparse-mezo", moved, "2e-4"),
        ("fzoo", moved, "1e-3"),
        ("lozo", moved, "5e-5"),
        ("lezo", moved, "2e-4"),
    ];
    for case in CASES {
        // The gradients of four prompts have rank 4, and what else is projected onto is rounding.
        for (name, words, rate) in methods.into_iter().filter(|of| of.0 != "galore" || case == "opt") {
            let pupil = Pupil::new(case);
            let run = pupil.train("--iters 10 --precision f32 --store f32").words(words).words(rate);
            let said = run.with("--method", name.trim_end_matches("-clipped")).into("run").succeeds();
            for (got, want) in losses(&said.stdout).iter().zip(&expected[&format!("{name}.{case}.losses")]) {
                assert!((got - f64::from(*want)).abs() < 1e-4 * got.max(1.0), "{name} {case}: {got} instead of {want}");
            }
            let prefix = format!("{name}.{case}.final.");
            let want = under(&expected, &prefix);
            // Where it is not among PyTorch's numbers, all that a key's bias moves by is rounding.
            let moot = |name: &String| name.ends_with(".k_proj.bias") || name.ends_with(".key.bias");
            let mut got = sampled(&pupil.place.path("run/model"));
            got.retain(|name, _| want.contains_key(name) || !moot(name));
            let off = distance(&got, &want);
            assert!(off < 1e-4, "{name} {case}: the model is off by {off:e}");
        }
    }
}

#[test]
fn every_method_goes_on_to_the_same_bytes_under_any_plan_and_inside_it() {
    let with_gradients =
        ["full", "full --optimizer adamw8bit", "lomo --max-grad-norm 0.1", "adalomo --store f32", "apollo"];
    let others = ["mlorc", "galore", "badam --switch-every 2", "lisa --switch-every 2", "mezo --fine-tune-type full"];
    for case in CASES {
        for method in with_gradients.into_iter().chain(others) {
            let pupil = Pupil::new(case);
            let words = format!("--iters 5 --learning-rate 1e-3 --method {method}");
            pupil.train(&words).into("whole").succeeds();
            let kept = if method.starts_with("mezo") { "" } else { "--grad-checkpoint block" };
            for plan in ["--threads 1", "--memory-budget min", &format!("--threads 2 {kept}")] {
                let run = pupil.train(&words).words(plan).words("--time-limit 1ms --resume auto").into("run");
                let report: Value = serde_json::from_str(&run.stops_early().stdout).unwrap();
                let [held, planned] =
                    ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
                assert!(held <= planned, "{case} {method} {plan}: {held} bytes held, {planned} planned");
            }
            assert!(!pupil.place.path("run/model").exists());
            pupil.train(&words).words("--resume auto --threads 2").into("run").succeeds();
            assert!(pupil.result("run") == pupil.result("whole"), "{case} {method}");
            assert!(!pupil.place.path("run/.pocketune").exists(), "a finished run keeps no checkpoint");
        }
    }
}

#[test]
fn a_run_ends_in_a_folder_that_goes_on_where_it_ended() {
    for case in CASES {
        let pupil = Pupil::new(case);
        let words =
            |iters: &str| format!("--precision f32 --store f32 --method lomo --learning-rate 0.05 --iters {iters}");
        let four = losses(&pupil.train(&words("4")).into("four").succeeds().stdout);
        pupil.train(&words("3")).into("three").succeeds();
        let folder = pupil.place.path("three/model");
        let next = losses(&pupil.train_on(&folder, &words("1")).into("next").succeeds().stdout);
        assert_eq!(next, four[3..], "{case}");
        assert!(pupil.result("next") == pupil.result("four"), "{case}");
        for file in ["config.json", "tokenizer.json"] {
            let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
            assert_eq!(read(&pupil.model), read(&folder), "{file}");
        }
        let header = |folder: &Path| {
            let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
            let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            bytes[8..8 + len].to_vec()
        };
        assert!(header(&pupil.model) == header(&folder), "names, types and shapes are those of the folder");
        pupil.place.pocketune("erase --adapter").word(pupil.place.path("three")).succeeds();
        assert!(!pupil.place.path("three").exists());
    }
}

#[test]
fn the_best_model_is_what_a_run_ends_with() {
    let (place, golden) = (Place::new(), Golden::new("opt"));
    let (model, [one, two]) = (golden.folder(&place), golden.records());
    place.texts("data/train.jsonl", &[one]);
    place.texts("data/valid.jsonl", &[two]);
    // A rate so high that the last model is not the best.
    let words =
        "train --iters 6 --precision f32 --store f32 --method lomo --learning-rate 0.5 --save-best --steps-per-eval 1";
    let run = place.pocketune(words).words("--val-batches -1 --log-format jsonl").model(model);
    let said = run.data(place.path("data")).into("run").succeeds();
    let found: Vec<f64> = validations(&said.stdout).iter().map(|line| line["val_loss"].as_f64().unwrap()).collect();
    // The first is of the model as it was.
    let best = found[1..].iter().copied().fold(f64::INFINITY, f64::min);
    assert!(best < *found.last().unwrap(), "{found:?}");
    assert!(!place.path("run/model.gguf").exists());
    let measured = place.pocketune("eval --log-format jsonl --precision f32").model(place.path("run/model"));
    let measured: Value =
        serde_json::from_str(&measured.data(place.path("data/valid.jsonl")).succeeds().stdout).unwrap();
    assert!((measured["loss"].as_f64().unwrap() - best).abs() < 1e-6, "{measured} instead of {best}");
}

#[test]
fn a_run_without_gradients_is_made_again_of_its_updates() {
    for case in CASES {
        let pupil = Pupil::new(case);
        pupil.train("--iters 4 --method sparse-mezo --fine-tune-type full --learning-rate 1e-3").into("run").succeeds();
        let replay = pupil.place.pocketune("replay --threads 1 --output again").word(pupil.place.path("run"));
        replay.model(&pupil.model).succeeds();
        assert!(pupil.result("again") == pupil.result("run"), "{case}");
    }
}

#[test]
fn a_head_that_a_folder_holds_twice_is_written_twice() {
    for (case, twins) in [
        ("opt", &[("model.decoder.embed_tokens.weight", "lm_head.weight")][..]),
        (
            "roberta",
            &[
                ("roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
                ("lm_head.bias", "lm_head.decoder.bias"),
            ],
        ),
    ] {
        let pupil = Pupil::new(case);
        rewrite(&pupil.model.join("model.safetensors"), |tensors| {
            for (name, twin) in twins {
                tensors.insert((*twin).into(), tensors[*name].clone());
            }
        });
        pupil.train("--iters 2 --method full --learning-rate 1e-3").into("run").succeeds();
        let [before, after] = [pupil.model.clone(), pupil.place.path("run/model")]
            .map(|at| adapters::read(&at.join("model.safetensors")));
        for (name, twin) in twins {
            assert!(after[*name] == after[*twin] && after[*name] != before[*name], "{case}: {name}");
        }
    }
}

#[test]
fn tokens_that_are_no_answers_learn_nothing_and_change_nothing() {
    const MANY: usize = 1100;
    let (few, many) = (Pupil::new("roberta"), Pupil::new("roberta"));
    let (table, bias) = ("roberta.embeddings.word_embeddings.weight", "lm_head.bias");
    // More than one strip of the vocabulary.
    rewrite(&many.model.join("model.safetensors"), |tensors| {
        for name in [table, bias] {
            let (shape, values) = tensors.get_mut(name).unwrap();
            let len = values.len() / shape[0] * MANY;
            *values = values.iter().copied().cycle().take(len).collect();
            shape[0] = MANY;
        }
    });
    let config = std::fs::read_to_string(many.model.join("config.json")).unwrap();
    std::fs::write(many.model.join("config.json"), config.replace("\"vocab_size\": 96", "\"vocab_size\": 1100"))
        .unwrap();
    let before = adapters::read(&many.model.join("model.safetensors"));
    for method in ["lomo", "full"] {
        let words = "--iters 3 --precision f32 --store f32 --weight-decay 0 --learning-rate 1e-2";
        let train = |pupil: &Pupil| pupil.train(words).with("--method", method).into(method).succeeds().stdout;
        let [one, two] = [&few, &many].map(train);
        assert_eq!(losses(&one), losses(&two), "{method}");
        let read = |pupil: &Pupil| adapters::read(&pupil.place.path(method).join("model/model.safetensors"));
        let [few, many] = [&few, &many].map(read);
        for name in [table, bias] {
            let (known, all) = (&few[name], &many[name]);
            assert!(known[..] == all[..known.len()], "{method}: {name}");
            assert!(all[known.len()..] == before[name][known.len()..], "{method}: {name} moved");
        }
        let moved = (0..96).filter(|&token| many[bias][token] != before[bias][token]).count();
        assert_eq!(moved, 2, "{method}: the biases of two answers");
    }
}

#[test]
fn what_has_no_scales_to_move_is_refused_with_what_moves() {
    let pupil = Pupil::new("opt");
    pupil.train("--method qzo").into("run").refuses(&["--method qzo", "no form in", "--fine-tune-type full"]);
}
