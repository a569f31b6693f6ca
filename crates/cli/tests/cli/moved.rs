//! Methods without gradients on all parameters of a model: their updates are PyTorch's with the same random numbers, runs go on and are made again to the same bytes inside
//! their plans, and memory does not grow with the batch.

use pocketune_formats::{BlockType, Element, ModelFiles};
use serde_json::Value;

use crate::adapters::{self, distance};
use crate::models::{Golden, demo, demo_data};
use crate::place::{Place, Run};
use crate::reports::losses;
use crate::whole::sampled;

const METHODS: [&str; 5] = ["mezo", "sparse-mezo", "fzoo", "lozo", "lezo"];

fn floats(place: &Place) {
    place.pocketune("quantize --type f32").model(demo()).with("--output", place.path("floats.gguf")).succeeds();
}

fn train<'a>(place: &'a Place, words: &str) -> Run<'a> {
    let run = place.pocketune("train --fine-tune-type full --iters 4 --batch-size 2 --max-seq-length 40");
    let run = run.words("--log-format jsonl --steps-per-report 1").words(words);
    run.model(place.path("floats.gguf")).data(demo_data().join("train.jsonl")).into("run")
}

#[test]
fn ten_updates_of_all_parameters_are_pytorchs_with_the_same_random_numbers() {
    for case in ["llama", "qwen2"] {
        let golden = Golden::new(case);
        let expected = adapters::read(&golden.adapter().join("../../moved.safetensors"));
        for (method, rate) in METHODS.into_iter().zip(["2e-4", "2e-4", "1e-3", "5e-5", "2e-4"]) {
            let place = Place::new();
            let (folder, data) = (golden.folder(&place), place.texts("data.jsonl", &golden.records()));
            let run =
                place.pocketune("train --iters 10 --batch-size 2 --no-shuffle --steps-per-report 1 --log-format jsonl");
            let run =
                run.words("--precision f32 --seed 3 --store f32 --fine-tune-type full --learning-rate").word(rate);
            let said = run.with("--method", method).model(folder).data(data).into("run").succeeds();
            for (got, want) in losses(&said.stdout).iter().zip(&expected[&format!("{method}.{case}.losses")]) {
                assert!((got - f64::from(*want)).abs() < 1e-4 * got, "{method} {case}: {got} instead of {want}");
            }
            let prefix = format!("{method}.{case}.final.");
            let last = expected
                .iter()
                .filter_map(|(name, values)| Some((name.strip_prefix(&prefix)?.to_string(), values.clone())));
            let off = distance(&sampled(&place.path("run/model.gguf")), &last.collect());
            assert!(off < 1e-4, "{method} {case}: the model is off by {off:e}");
        }
    }
}

#[test]
fn every_method_goes_on_and_is_made_again_to_the_same_bytes_under_any_plan_and_inside_it() {
    for method in ["mezo --weight-decay 0.1", "sparse-mezo --store f32", "fzoo", "lozo --store f32", "lezo"] {
        let (whole, place) = (Place::new(), Place::new());
        floats(&whole);
        floats(&place);
        let words = format!("--method {method} --learning-rate 1e-3");
        train(&whole, &words).succeeds();
        let model = |place: &Place, folder: &str| std::fs::read(place.path(folder).join("model.gguf")).unwrap();
        for plan in ["--threads 1", "--memory-budget min", "--threads 2"] {
            let said = train(&place, &words).words(plan).words("--time-limit 1ms --resume auto").stops_early();
            let report: Value = serde_json::from_str(&said.stdout).unwrap();
            let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
            assert!(held <= planned, "{method} {plan}: {held} bytes held, {planned} planned");
        }
        train(&place, &words).words("--resume auto").succeeds();
        assert!(model(&place, "run") == model(&whole, "run"), "{method}");
        // Nothing but the updates and the first model is needed.
        std::fs::create_dir(place.path("alone")).unwrap();
        std::fs::copy(place.path("run/pocketune.updates"), place.path("alone/pocketune.updates")).unwrap();
        let replay = place.pocketune("replay --threads 1 --output again").word(place.path("alone"));
        replay.model(place.path("floats.gguf")).succeeds();
        assert!(model(&place, "again") == model(&whole, "run"), "{method}");
    }
}

#[test]
fn ten_updates_of_scales_are_numpys_with_the_same_random_numbers() {
    let (golden, place) = (Golden::new("llama"), Place::new());
    let expected = adapters::read(&golden.adapter().join("../../moved.safetensors"));
    let (folder, data) = (golden.folder(&place), place.texts("data.jsonl", &golden.records()));
    place.pocketune("quantize --type q8_0").model(folder).with("--output", place.path("q8_0.gguf")).succeeds();
    let run = place.pocketune("train --iters 10 --batch-size 2 --no-shuffle --steps-per-report 1 --log-format jsonl");
    let run = run.words("--precision f32 --seed 3 --method qzo --learning-rate 2e-6").model(place.path("q8_0.gguf"));
    let said = run.data(data).into("run").succeeds();
    for (got, want) in losses(&said.stdout).iter().zip(&expected["qzo.llama.losses"]) {
        assert!((got - f64::from(*want)).abs() < 1e-4 * got, "{got} instead of {want}");
    }
    let files = ModelFiles::open(&place.path("run/model.gguf")).unwrap();
    let (mut same, mut all) = (0, 0);
    for (name, want) in &expected {
        let Some(name) = name.strip_prefix("qzo.llama.scales.") else { continue };
        let data = files.tensor(name).unwrap().unwrap().data;
        assert_eq!(data.len(), 34 * want.len(), "{name}");
        for (block, want) in data.chunks_exact(34).zip(want) {
            let scale = half::f16::from_le_bytes([block[0], block[1]]).to_f32();
            assert!((scale - want).abs() <= 2e-3 * want.abs(), "{name}: {scale} instead of {want}");
            same += usize::from(scale == *want);
            all += 1;
        }
    }
    // The last bit of a slope decides now and then which way a scale is rounded.
    assert!(all > 1000 && 100 * same >= 98 * all, "{same} of {all} scales are the same");
}

#[test]
fn scales_of_blocks_move_and_their_integers_stay_and_a_run_is_made_again() {
    for ty in ["q4_1", "q8_0", "q6_k"] {
        let (whole, place) = (Place::new(), Place::new());
        for place in [&whole, &place] {
            let quantize = place.pocketune("quantize --type").word(ty).model(demo());
            quantize.with("--output", place.path("floats.gguf")).succeeds();
        }
        let words = "--method qzo --learning-rate 1e-5";
        train(&whole, words).succeeds();
        let said = train(&place, words).words("--time-limit 1ms --memory-budget min").stops_early();
        let report: Value = serde_json::from_str(&said.stdout).unwrap();
        let [held, planned] = ["peak_rss_bytes", "planned_peak_bytes"].map(|name| report[name].as_u64().unwrap());
        assert!(held <= planned, "{ty}: {held} bytes held, {planned} planned");
        train(&place, words).words("--resume auto --threads 1").succeeds();
        let model = |place: &Place, folder: &str| std::fs::read(place.path(folder).join("model.gguf")).unwrap();
        let after = model(&whole, "run");
        assert!(model(&place, "run") == after, "{ty}");
        place.pocketune("replay --output again").word(place.path("run")).model(place.path("floats.gguf")).succeeds();
        assert!(model(&place, "again") == after, "{ty}");
        let before = std::fs::read(place.path("floats.gguf")).unwrap();
        assert_eq!(before.len(), after.len(), "{ty}");
        let files = ModelFiles::open(&place.path("floats.gguf")).unwrap();
        let (mut moved, mut scales) = (0, 0);
        for info in files.tensors() {
            let [before, after] = [&before, &after].map(|file| &file[info.offset..info.offset + info.bytes]);
            // Tables, and rows that are no whole blocks, may be of another type.
            let Element::Block(ty) = info.element else { panic!("{}", info.name) };
            if ty.block_len() == 1 {
                assert!(before == after, "{ty:?}: {} moved", info.name);
                continue;
            }
            let (bytes, scale) = (ty.block_bytes(), if ty == BlockType::Q6_K { 208..210 } else { 0..2 });
            for (before, after) in before.chunks_exact(bytes).zip(after.chunks_exact(bytes)) {
                let same = |range: std::ops::Range<usize>| before[range.clone()] == after[range];
                assert!(
                    same(0..scale.start) && same(scale.end..bytes),
                    "{ty:?}: more than a scale of {} moved",
                    info.name
                );
                scales += 1;
                moved += usize::from(!same(scale.clone()));
            }
        }
        assert!(scales > 100 && moved > scales / 4, "{ty}: {moved} of {scales} scales moved");
    }
}

#[test]
fn what_does_not_go_together_is_refused_with_what_does() {
    let place = Place::new();
    floats(&place);
    for (words, said) in [
        ("--method backprop", "--method full"),
        ("--method vera", "--method full"),
        ("--method mezo --lora-rank 4", "has no adapter"),
        ("--method mezo --max-grad-norm 1", "--learning-rate"),
        ("--method qzo", "pocketune quantize --type q4_0"),
        ("--method qzo --store f32", "the model's own blocks"),
    ] {
        train(&place, words).refuses(&[said]);
    }
    let quantised = place.pocketune("train --iters 1 --method mezo --fine-tune-type full").model(demo());
    quantised.data(demo_data()).into("out").refuses(&["too coarse", "pocketune quantize --type bf16"]);
}
