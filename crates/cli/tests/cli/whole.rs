//! Methods that train the model itself: their updates are PyTorch's, runs go on to the same bytes inside their plans, and what does not go together is refused.

use std::io::{BufRead, BufReader};
use std::path::Path;

use pocketune_formats::ModelFiles;
use serde_json::Value;

use crate::adapters::{self, Tensors, distance};
use crate::models::{Golden, demo, demo_data};
use crate::place::{Place, Run};
use crate::reports::losses;

const METHODS: [&str; 9] = ["full", "lomo", "adalomo", "apollo", "apollo-mini", "mlorc", "galore", "badam", "lisa"];

/// Writes the built-in model in floats.
fn floats(place: &Place) {
    place.pocketune("quantize --type f32").model(demo()).with("--output", place.path("floats.gguf")).succeeds();
}

fn train<'a>(place: &'a Place, words: &str) -> Run<'a> {
    let run =
        place.pocketune("train --iters 6 --batch-size 2 --max-seq-length 40 --log-format jsonl --steps-per-report 1");
    run.words(words).model(place.path("floats.gguf")).data(demo_data().join("train.jsonl")).into("run")
}

fn model(place: &Place) -> Vec<u8> {
    std::fs::read(place.path("run/model.gguf")).unwrap()
}

/// Every 13th number of each tensor of a file of f32.
pub fn sampled(path: &Path) -> Tensors {
    let files = ModelFiles::open(path).unwrap();
    let values = |name: &str| {
        let words = files.tensor(name).unwrap().unwrap().data.chunks_exact(4);
        words.step_by(13).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
    };
    files.tensors().map(|info| (info.name.to_string(), values(&info.name))).collect()
}

#[test]
fn ten_updates_of_all_parameters_are_pytorchs() {
    for case in ["llama", "qwen2", "qwen3", "gemma3_text"] {
        let golden = Golden::new(case);
        let expected = adapters::read(&golden.adapter().join("../../full.safetensors"));
        let rates = ["1e-3", "0.1", "1e-2", "1e-3", "1e-3", "1e-4", "1e-3", "1e-3", "1e-3"];
        for (name, rate) in METHODS.into_iter().zip(rates).chain([("lomo-clipped", "0.1")]) {
            let (method, words) = match name {
                "badam" | "lisa" => (name, "--switch-every 3"),
                "lomo-clipped" => ("lomo", "--max-grad-norm 1"),
                _ => (name, ""),
            };
            // Rounding decides there which second moments are rebuilt below zero.
            if (method, case) == ("mlorc", "llama") {
                continue;
            }
            let place = Place::new();
            let (folder, data) = (golden.folder(&place), place.texts("data.jsonl", &golden.records()));
            let run =
                place.pocketune("train --iters 10 --batch-size 2 --no-shuffle --steps-per-report 1 --log-format jsonl");
            let run = run.words("--precision f32 --seed 3 --store f32 --weight-decay 0.01 --learning-rate").word(rate);
            let said = run.words(words).with("--method", method).model(folder).data(data).into("run").succeeds();
            for (got, want) in losses(&said.stdout).iter().zip(&expected[&format!("{name}.{case}.losses")]) {
                assert!((got - f64::from(*want)).abs() < 1e-4 * got.max(1.0), "{name} {case}: {got} instead of {want}");
            }
            let prefix = format!("{name}.{case}.final.");
            let last = expected
                .iter()
                .filter_map(|(name, values)| Some((name.strip_prefix(&prefix)?.to_string(), values.clone())));
            let off = distance(&sampled(&place.path("run/model.gguf")), &last.collect());
            assert!(off < 1e-4, "{name} {case}: the model is off by {off:e}");
        }
    }
}

#[test]
fn every_method_goes_on_to_the_same_bytes_under_any_plan_and_inside_it() {
    let methods = ["full", "full --optimizer adamw8bit", "lomo --store f32", "adalomo", "apollo", "mlorc", "galore"];
    for method in
        methods.into_iter().chain(["badam --switch-every 2", "lisa --switch-every 2", "lomo --max-grad-norm 0.1"])
    {
        let (whole, place) = (Place::new(), Place::new());
        floats(&whole);
        floats(&place);
        let words = format!("--method {method}");
        train(&whole, &words).succeeds();
        for plan in ["--threads 1", "--memory-budget min", "--threads 2 --grad-checkpoint block"] {
            let said = train(&place, &words).words(plan).words("--time-limit 1ms --resume auto").stops_early();
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
            assert!(held <= planned, "{method} {plan}: {held} bytes held, {planned} planned");
        }
        train(&place, &words).words("--resume auto").succeeds();
        assert!(model(&place) == model(&whole), "{method}");
        assert!(!place.path("run/.pocketune").exists(), "a finished run keeps no checkpoint");
    }
}

#[test]
fn a_real_model_whose_table_is_many_strips_stays_inside_its_smallest_plan() {
    let Ok(path) = std::env::var("POCKETUNE_SMOLLM2") else {
        println!("skipped: POCKETUNE_SMOLLM2 does not name a SmolLM2-135M-Instruct Q4_1 GGUF");
        return;
    };
    let place = Place::new();
    place.pocketune("quantize --type bf16").model(path).with("--output", place.path("floats.gguf")).succeeds();
    // One of each kind: those like it are held to their plans on the small model.
    let fzoo = "fzoo --fine-tune-type full";
    for method in ["full", "lomo --max-grad-norm 1", "adalomo", "galore", "mlorc", "badam", fzoo] {
        let run = place
            .pocketune("train --iters 1 --batch-size 1 --max-seq-length 64 --log-format jsonl --memory-budget min");
        let run = run.words(&format!("--method {method}")).model(place.path("floats.gguf"));
        let run = run.data(demo_data().join("train.jsonl")).into(method);
        let report: Value = serde_json::from_str(run.succeeds().stdout.lines().last().unwrap()).unwrap();
        let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
        assert!(held <= planned, "{method}: {held} bytes held, {planned} planned");
        std::fs::remove_dir_all(place.path(method)).unwrap();
    }
}

#[test]
fn a_killed_run_leaves_its_checkpoint_alone_and_goes_on_to_the_same_bytes() {
    let (whole, place) = (Place::new(), Place::new());
    floats(&whole);
    floats(&place);
    train(&whole, "--method adalomo --commit-every 2").succeeds();
    let before = place.listing();
    let mut child = train(&place, "--method adalomo --commit-every 2").start();
    let mut reports = BufReader::new(child.stdout.take().unwrap()).lines();
    (0..3).for_each(|_| assert!(reports.next().unwrap().unwrap().starts_with('{')));
    child.kill().unwrap();
    child.wait().unwrap();
    for (path, _) in place.listing().difference(&before) {
        assert!(path.starts_with(place.path("run")), "{} was left", path.display());
    }
    let said = train(&place, "--method adalomo --commit-every 2 --resume auto").succeeds();
    assert!(said.stderr.contains("Resuming after update "), "{}", said.stderr);
    assert!(model(&place) == model(&whole));
}

#[test]
fn small_steps_are_not_lost_in_bf16() {
    let place = Place::new();
    floats(&place);
    // A step is a hundredth of what bf16 tells apart at 0.02; without chance nothing would move.
    let words = "--method full --learning-rate 1e-6 --weight-decay 0";
    let run = |store: &str| {
        let run = train(&place, words).words("--store").word(store).words("--resume auto");
        run.succeeds();
        let files = ModelFiles::open(&place.path("run/model.gguf")).unwrap();
        let tensor = files.tensor("blk.0.ffn_up.weight").unwrap().unwrap();
        let wide = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
        match store {
            "f32" => tensor.data.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect(),
            _ => tensor.data.chunks_exact(2).map(wide).collect::<Vec<f32>>(),
        }
    };
    let start = ModelFiles::open(&place.path("floats.gguf")).unwrap();
    let start = start.tensor("blk.0.ffn_up.weight").unwrap().unwrap();
    let start: Vec<f32> = start.data.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect();
    let (exact, rounded) = (run("f32"), run("bf16"));
    let along = |after: &[f32]| -> f64 {
        let moved = after
            .iter()
            .zip(&start)
            .zip(&exact)
            .map(|((after, start), exact)| f64::from((after - start) * (exact - start)));
        moved.sum()
    };
    let share = along(&rounded) / along(&exact);
    assert!((0.5..1.5).contains(&share), "{share} of the step is there");
}

#[test]
fn the_best_model_is_kept_and_measured() {
    let place = Place::new();
    floats(&place);
    let records = |name: &str| std::fs::read(demo_data().join(name)).unwrap();
    place.file("data/train.jsonl", records("train.jsonl"));
    place.file("data/valid.jsonl", records("valid.jsonl"));
    place.file("data/test.jsonl", records("valid.jsonl"));
    // A rate so high that the last model is not the best.
    let words = "train --iters 8 --batch-size 2 --precision f32 --method lomo --learning-rate 0.6 --save-best --steps-per-eval 1";
    let run = place.pocketune(words).words("--val-batches -1 --test").model(place.path("floats.gguf"));
    let said = run.data(place.path("data")).into("run").succeeds();
    let kept =
        said.stdout.lines().find(|line| line.contains("kept    what")).unwrap_or_else(|| panic!("{}", said.stdout));
    assert!(!kept.contains("after update 8,"), "{kept}");
    let measured = place.pocketune("eval --log-format jsonl --batch-size 2 --precision f32");
    let measured = measured.model(place.path("run/model.gguf")).data(place.path("data/valid.jsonl")).succeeds();
    let measured: Value = serde_json::from_str(&measured.stdout).unwrap();
    let found = format!("test    loss {:.3}, ", measured["loss"].as_f64().unwrap());
    assert!(said.stdout.contains(&found), "{found} is not in {}", said.stdout);
    place.pocketune("erase --adapter").word(place.path("run")).succeeds();
    assert!(!place.path("run").exists());
}

#[test]
fn a_run_that_began_from_a_folder_ends_in_one_with_the_same_numbers() {
    // Rows in llama.cpp's order, biases, and norms that are stored less one.
    for case in ["llama", "qwen2", "gemma3_text"] {
        let (place, golden) = (Place::new(), Golden::new(case));
        let (folder, data) = (golden.folder(&place), place.texts("data.jsonl", &golden.records()));
        let train = |into: &'static str, words: &str| {
            let run = place.pocketune("train --method full --iters 3 --batch-size 2 --precision f32 --store f32");
            run.words(words).words("--learning-rate 1e-3").model(&folder).data(&data).into(into)
        };
        train("run", "").succeeds();
        for file in ["config.json", "tokenizer.json"] {
            let read = |folder: &Path| std::fs::read(folder.join(file)).unwrap();
            assert_eq!(read(&folder), read(&place.path("run/model")), "{file}");
        }
        let again = place.pocketune("quantize --type f32").model(place.path("run/model"));
        again.with("--output", place.path("again.gguf")).succeeds();
        let off = distance(&sampled(&place.path("again.gguf")), &sampled(&place.path("run/model.gguf")));
        assert!(off < 1e-6, "{case}: the folder is off by {off:e}");
        train("stopped", "--time-limit 1ms").stops_early();
        assert!(!place.path("stopped/model").exists());
        train("stopped", "--resume auto").succeeds();
        let shards = if case == "llama" { &["model-00001-of-00002", "model-00002-of-00002"][..] } else { &["model"] };
        let model = |run: &str| -> Vec<Vec<u8>> {
            let path = |shard: &&str| place.path(run).join(format!("model/{shard}.safetensors"));
            shards.iter().map(|shard| std::fs::read(path(shard)).unwrap()).collect()
        };
        assert!(model("run") == model("stopped"), "{case}");
        place.pocketune("erase --adapter").word(place.path("run")).succeeds();
        assert!(!place.path("run").exists());
    }
}

#[test]
fn what_does_not_go_with_all_parameters_is_refused_with_what_does() {
    let place = Place::new();
    floats(&place);
    let quantised = || place.pocketune("train --method full").model(demo()).data(demo_data()).into("run");
    quantised().refuses(&["--method full", "is stored as q", "--method backprop", "quantize --type bf16"]);
    train(&place, "--method full --grad-accumulation-steps 2").refuses(&["as large as the model", "--batch-size"]);
    train(&place, "--method adalomo --optimizer sgd").refuses(&["--method full"]);
    train(&place, "--method full --lora-rank 4").refuses(&["--lora-rank", "no adapter", "--method backprop"]);
    train(&place, "--method full --lora-plus 4").refuses(&["no adapter"]);
    train(&place, "--method full --drop-backward 0.5").refuses(&["all blocks"]);
    train(&place, "--method full --ms-norm").refuses(&["--ms-norm", "plain derivatives", "--method backprop"]);
    train(&place, "--store f32").refuses(&["--store", "--method full"]);
    train(&place, "--method full --switch-every 5").refuses(&["--switch-every 5", "turn", "--method badam"]);
    train(&place, "--method lisa --switch-every 0").refuses(&["--switch-every 0", "between 1 and"]);
    train(&place, "--method lisa --block-order ascending").refuses(&["--block-order ascending", "--method badam"]);
    train(&place, "--method badam --optimizer sgd").refuses(&["--optimizer", "--method full"]);
    let init = Golden::new("llama").adapter();
    train(&place, "--method full").with("--init-adapter", init).refuses(&["pocketune merge"]);
}

#[test]
fn blocks_learn_in_their_turns_and_the_rest_of_the_model_stays() {
    let place = Place::new();
    floats(&place);
    let before = sampled(&place.path("floats.gguf"));
    let moved = |words: &str| -> Vec<String> {
        train(&place, words).words("--store f32").succeeds();
        let after = sampled(&place.path("run/model.gguf"));
        let moved = after.into_iter().filter(|(name, values)| before[name] != *values).map(|(name, _)| name);
        let part = |name: String| name.split('.').take(2).collect::<Vec<_>>().join(".");
        let parts: std::collections::BTreeSet<String> = moved.map(part).collect();
        std::fs::remove_dir_all(place.path("run")).unwrap();
        parts.into_iter().collect()
    };
    let blocks = (0..).take_while(|block| before.contains_key(&format!("blk.{block}.ffn_up.weight"))).count();
    let last = format!("blk.{}", blocks - 1);
    assert_eq!(moved("--method badam --block-order ascending"), ["blk.0"]);
    assert_eq!(moved("--method badam --block-order descending"), [last]);
    assert_eq!(moved("--method badam --block-order ascending --switch-every 3"), ["blk.0", "blk.1"]);
    let moved = moved("--method lisa");
    let in_blocks = moved.iter().filter(|part| part.starts_with("blk.")).count();
    assert_eq!(in_blocks, 2.min(blocks), "{moved:?}");
    assert!(moved.contains(&"token_embd.weight".into()) && moved.contains(&"output_norm.weight".into()), "{moved:?}");
}

#[test]
fn measuring_the_norm_first_takes_twice_the_operations_and_no_more_memory() {
    let place = Place::new();
    let chosen = |words: &str| -> Value {
        // A named policy: which one is fastest depends on rates that each process measures for itself.
        let words = format!(
            "plan --json --method lomo --grad-checkpoint block --shape smollm2-135m --memory-budget 2GiB {words}"
        );
        let plan: Value = serde_json::from_str(&place.pocketune(&words).succeeds().stdout).unwrap();
        plan["chosen"].clone()
    };
    let (plain, clipped) = (chosen(""), chosen("--max-grad-norm 1"));
    let [once, twice] = [&plain, &clipped].map(|plan| plan["flops"].as_f64().unwrap());
    assert_eq!(2.0 * once, twice);
    assert_eq!(plain["memory"]["step"], clipped["memory"]["step"]);
}

#[test]
fn all_of_half_a_billion_parameters_are_trained_in_512_mib() {
    let place = Place::new();
    // A block of Qwen2.5-0.5B has 14.9 million numbers, each with two moments.
    let others = [("badam", 120 << 20), ("mlorc", 32 << 20), ("galore", 128 << 20)];
    for (method, most) in
        [("adalomo", 8 << 20), ("apollo-mini", 8 << 20), ("apollo", 128 << 20)].into_iter().chain(others)
    {
        let words =
            "plan --json --shape qwen2.5-0.5b --batch-size 1 --max-seq-length 256 --memory-budget 512MiB --method";
        let plan: Value = serde_json::from_str(&place.pocketune(words).word(method).succeeds().stdout).unwrap();
        let chosen = &plan["chosen"];
        assert!(chosen["peak_bytes"].as_u64().unwrap() <= 512 << 20, "{method}: {chosen}");
        assert!(chosen["memory"]["optimizer"].as_u64().unwrap() < most, "{method}: {chosen}");
    }
}
