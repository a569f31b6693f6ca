//! `pocketune quantize`: a Hugging Face folder becomes the GGUF file that llama.cpp's own converter would make of it, and computes the same; other
//! types stay near; what can't be written is refused, and what is interrupted leaves nothing under the final name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pocketune_formats::gguf::Header;
use pocketune_formats::{BlockType, ModelFiles};
use serde_json::Value;

use crate::models::{Golden, chatty, demo, demo_data};
use crate::place::{Place, Run};

fn loss(place: &Place, model: &Path, data: &Path) -> f64 {
    let said = place.pocketune("eval --precision f32 --log-format jsonl").model(model).data(data).succeeds().stdout;
    serde_json::from_str::<Value>(&said).unwrap()["loss"].as_f64().unwrap()
}

#[test]
fn a_folder_becomes_the_file_that_the_gguf_package_makes_of_it() {
    for name in ["llama", "llama3", "qwen2", "qwen3", "gemma3_text"] {
        let place = Place::new();
        let golden = Golden::new(name);
        let folder = golden.folder(&place);
        place.pocketune("quantize --type f32 --output out.gguf").model(&folder).succeeds();
        let wanted = place.file("wanted.gguf", golden.gguf_without_tokenizer());
        let (wanted, got) = (ModelFiles::open(&wanted).unwrap(), ModelFiles::open(&place.path("out.gguf")).unwrap());
        assert_eq!(got.tensors().len(), wanted.tensors().len(), "{name}");
        for info in wanted.tensors() {
            let [got, want] = [&got, &wanted].map(|files| files.tensor(&info.name).unwrap().unwrap());
            assert_eq!((got.ty, got.shape), (want.ty, want.shape), "{name}: {}", info.name);
            if info.name.starts_with("rope_freqs") {
                let pairs = got.data.chunks(4).zip(want.data.chunks(4));
                let floats = pairs.map(|pair| [pair.0, pair.1].map(|b| f32::from_le_bytes(b.try_into().unwrap())));
                assert!(floats.into_iter().all(|[got, want]| (got - want).abs() <= 1e-6 * want), "{name}");
            } else {
                assert!(got.data == want.data, "{name}: {} differs", info.name);
            }
        }
        let [got, want] = [&got, &wanted].map(|files| files.gguf().unwrap().meta());
        for (key, value) in want.iter().filter(|(key, _)| !key.starts_with("general.name")) {
            assert_eq!(format!("{:?}", got.get(key).unwrap()), format!("{value:?}"), "{name}: {key}");
        }
    }
}

#[test]
fn a_quantised_folder_computes_what_the_folder_does() {
    for name in ["llama", "llama3", "qwen2", "qwen3", "gemma3_text"] {
        let place = Place::new();
        let golden = Golden::new(name);
        let folder = golden.folder(&place);
        let data = place.texts("data.jsonl", &golden.records());
        let want = loss(&place, &folder, &data);
        for (ty, tolerance) in [("f32", 1e-6), ("bf16", 0.02), ("q8_0", 0.02), ("q4_1", 0.3)] {
            let out = format!("{ty}.gguf");
            place.pocketune("quantize --type").word(ty).with("--output", &out).model(&folder).succeeds();
            let got = loss(&place, &place.path(&out), &data);
            assert!((got - want).abs() < tolerance, "{name} in {ty}: {got}, not {want}");
        }
    }
}

#[test]
fn every_type_of_the_built_in_model_stays_near_it_and_more_bits_stay_nearer() {
    let place = Place::new();
    let want = loss(&place, &demo(), &demo_data());
    let mut off = Vec::new();
    for ty in BlockType::ALL {
        let said = place.pocketune("quantize --json --output out.gguf --type").word(ty.name()).model(demo()).succeeds();
        let report: Value = serde_json::from_str(&said.stdout).unwrap();
        assert_eq!(report["bytes"], std::fs::metadata(place.path("out.gguf")).unwrap().len());
        off.push((loss(&place, &place.path("out.gguf"), &demo_data()) - want).abs());
        assert!(*off.last().unwrap() < 0.05, "{}: off by {off:?} from {want}", ty.name());
    }
    let of = |ty: BlockType| off[BlockType::ALL.iter().position(|other| *other == ty).unwrap()];
    assert!(of(BlockType::F32) < 1e-6 && of(BlockType::Q8_0) < 0.005, "{off:?}");
    // It is in q4_1, with its embedding in q8_0; so that this changes nothing but the embedding.
    assert!(of(BlockType::Q4_1) < 0.02, "{off:?}");
}

#[test]
fn a_gguf_in_its_own_type_is_the_same_file_again() {
    let place = Place::new();
    let golden = Golden::new("qwen3");
    let model = golden.gguf(&place);
    place.pocketune("quantize --type F32 --output out.gguf").model(&model).succeeds();
    let (was, is) = (ModelFiles::open(&model).unwrap(), ModelFiles::open(&place.path("out.gguf")).unwrap());
    for info in was.tensors() {
        let [was, is] = [&was, &is].map(|files| files.tensor(&info.name).unwrap().unwrap().data);
        assert!(was == is, "{}", info.name);
    }
    let [was, is] = [&was, &is].map(|files| files.gguf().unwrap().meta());
    let is: std::collections::BTreeMap<&str, &[u8]> = is.encoded().collect();
    for (key, entry) in was.encoded() {
        assert_eq!(is.get(key), Some(&entry), "{key}");
    }
}

#[test]
fn a_window_that_gguf_has_no_word_for_bounds_the_context() {
    let place = Place::new();
    let folder = Golden::new("mistral").folder(&place);
    let said = place.pocketune("quantize --type f16 --output out.gguf").model(&folder).succeeds().stderr;
    assert!(said.contains("has no window"), "{said}");
    let config: Value = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let files = ModelFiles::open(&place.path("out.gguf")).unwrap();
    let context = files.gguf().unwrap().meta().get_u64("llama.context_length").unwrap();
    assert_eq!(context, config["sliding_window"].as_u64());
}

#[test]
fn tokenizer_and_template_go_along() {
    let place = Place::new();
    let folder = chatty(&place);
    place.pocketune("quantize --type q8_0 --output out.gguf").model(&folder).succeeds();
    let generate = |model: &Path| {
        place.pocketune("generate --chat --precision f32 -n 8 --prompt hi").model(model).succeeds().stdout
    };
    let files = ModelFiles::open(&place.path("out.gguf")).unwrap();
    assert!(files.gguf().unwrap().meta().get_str("tokenizer.chat_template").unwrap().unwrap().contains("<|im_start|>"));
    // Eight bits change few words of a random model; that any come says that template and tokenizer work.
    assert!(!generate(&place.path("out.gguf")).trim_end_matches('\n').is_empty());
}

#[test]
fn the_gguf_package_reads_what_was_written() {
    let Ok(python) = std::env::var("POCKETUNE_PYTHON") else {
        println!("skipped: POCKETUNE_PYTHON names no Python with gguf");
        return;
    };
    let place = Place::new();
    place
        .pocketune("quantize --type q4_k --output out.gguf")
        .model(Golden::new("gemma3_text").folder(&place))
        .succeeds();
    let program = "import gguf, sys\n\
        reader = gguf.GGUFReader(sys.argv[1])\n\
        assert reader.fields['general.architecture'].contents() == 'gemma3'\n\
        assert all(gguf.dequantize(t.data, t.tensor_type).size == t.n_elements for t in reader.tensors)\n\
        print(len(reader.tensors))";
    let out = std::process::Command::new(python).args(["-c", program]).arg(place.path("out.gguf")).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let tensors = ModelFiles::open(&place.path("out.gguf")).unwrap().tensors().len();
    assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), tensors.to_string());
}

#[test]
fn what_can_not_be_quantised_is_refused_in_one_line() {
    let place = Place::new();
    let quantize = |words: &str| place.pocketune("quantize").words(words);
    let model = Golden::new("llama").gguf(&place);
    quantize("--type q4_9 --output out.gguf").model(&model).misused(&["q4_9", "q4_k"]);
    quantize("--type q4_k --output missing/out.gguf").model(&model).refuses(&["missing"]);
    quantize("--type q4_k --output tmp").model(&model).refuses(&["no place for a file"]);
    quantize("--type q4_k --output llama.gguf").model(&model).refuses(&["--output llama.gguf", "the model itself"]);
    let opt = Golden::new("opt").folder(&place);
    quantize("--type q4_k --output out.gguf").model(&opt).refuses(&["opt models have no form in GGUF"]);
    let without = Golden::new("qwen2").folder_without_tokenizer(&place);
    quantize("--type q4_k --output out.gguf").model(&without).refuses(&["tokenizer.json"]);
}

#[test]
fn numbers_that_a_type_can_not_hold_are_refused_by_the_tensors_name() {
    for (value, words) in [(f32::NAN, "holds NaN at element 3"), (7e4, "and q8_0 goes up to 65504")] {
        let place = Place::new();
        let model = Golden::new("llama").gguf(&place);
        let files = ModelFiles::open(&model).unwrap();
        let offset = files.tensor("blk.1.ffn_up.weight").unwrap().unwrap().offset;
        drop(files);
        let mut bytes = std::fs::read(&model).unwrap();
        bytes[offset + 12..offset + 16].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&model, bytes).unwrap();
        let quantize = place.pocketune("quantize --type q8_0 --output out.gguf").model(&model);
        quantize.refuses(&["tensor blk.1.ffn_up.weight", words]);
    }
}

/// A llama of one layer with an embedding of 256 MB, all of it a hole in the file.
pub fn large(place: &Place) -> PathBuf {
    let mut header = Header::default();
    let numbers =
        [("context_length", 64), ("embedding_length", 1024), ("block_count", 1), ("feed_forward_length", 256)];
    header.text("general.architecture", "llama");
    numbers.iter().for_each(|(key, number)| header.number(&format!("llama.{key}"), *number));
    header.number("llama.attention.head_count", 16);
    header.float("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let shapes: [(&str, &[usize]); 11] = [
        ("token_embd", &[65536, 1024]),
        ("output_norm", &[1024]),
        ("blk.0.attn_norm", &[1024]),
        ("blk.0.attn_q", &[1024, 1024]),
        ("blk.0.attn_k", &[1024, 1024]),
        ("blk.0.attn_v", &[1024, 1024]),
        ("blk.0.attn_output", &[1024, 1024]),
        ("blk.0.ffn_norm", &[1024]),
        ("blk.0.ffn_gate", &[256, 1024]),
        ("blk.0.ffn_up", &[256, 1024]),
        ("blk.0.ffn_down", &[1024, 256]),
    ];
    let mut bytes = 0;
    for (name, shape) in shapes {
        let size = 4 * shape.iter().product::<usize>();
        header.tensor(&format!("{name}.weight"), shape, BlockType::F32, size);
        bytes += size;
    }
    let header = header.finish();
    let path = place.file("large.gguf", &header);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((header.len() + bytes) as u64).unwrap();
    path
}

#[test]
fn a_large_tensor_goes_through_in_little_memory() {
    let place = Place::new();
    let said = place.pocketune("quantize --json --type q6_k --output out.gguf").model(large(&place)).succeeds();
    let peak = serde_json::from_str::<Value>(&said.stdout).unwrap()["peak_bytes"].as_u64().unwrap();
    assert!(peak < 48 << 20, "{peak} bytes for a file of 256 MB");
}

/// A budget that is too small is refused with what is needed; in that much it is done, by one thread, and in more by others, within each.
#[cfg(target_os = "linux")]
pub fn keeps_its_budget<'a>(run: impl Fn() -> Run<'a>) {
    let refusal = run().with("--memory-budget", "4MiB").stops(&["--memory-budget 4.0 MiB", "writing this model needs"]);
    let needed: u64 = refusal.rsplit('(').next().unwrap().split(' ').next().unwrap().parse().unwrap();
    for budget in [needed, needed + (1 << 20), 64 << 20] {
        let said = run().words("--json").with("--memory-budget", budget.to_string()).succeeds();
        let peak = serde_json::from_str::<Value>(&said.stdout).unwrap()["peak_bytes"].as_u64().unwrap();
        println!("{budget} bytes: {peak} at most");
        assert!(peak <= budget, "a peak of {peak} in a budget of {budget}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_stays_within_its_budget() {
    let place = Place::new();
    let model = large(&place);
    keeps_its_budget(|| place.pocketune("quantize --type q6_k --output out.gguf").model(&model));
}

/// Kills a command that writes `out.gguf` of a large model when it has begun to; what was there stays.
pub fn killed_in_the_middle(place: &Place, run: Run) {
    place.file("out.gguf", "old");
    let mut child = run.start();
    let begun = |(path, bytes): &(PathBuf, u64)| path.extension().is_some_and(|ending| ending == "tmp") && *bytes > 0;
    let temporary = || place.listing().into_iter().find(begun);
    while temporary().is_none() {
        assert!(child.try_wait().unwrap().is_none(), "it was done before it could be killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(std::fs::read(place.path("out.gguf")).unwrap(), b"old");
    std::fs::remove_file(temporary().unwrap().0).unwrap();
}

#[test]
fn a_killed_command_leaves_nothing_under_the_final_name_and_a_full_disk_nothing_at_all() {
    let place = Place::new();
    let model = large(&place);
    let quantize = || place.pocketune("quantize --type q6_k --output out.gguf").model(&model);
    killed_in_the_middle(&place, quantize());
    let before = place.listing();
    quantize().through("ulimit -f 8000; exec \"$@\"").fails(&["out.gguf"]);
    assert_eq!(place.listing(), before);
}
