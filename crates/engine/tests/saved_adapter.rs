//! An adapter that went into the arena and out again is the one that PEFT wrote, under names that PEFT finds.

mod golden;

use golden::Golden;
use pocketune::beside::Beside;
use pocketune::graph::{LoraSpec, Target};
use pocketune::plan::{Mode, PolicyName};
use pocketune::train::adapter;
use pocketune_formats::TensorInfo;
use pocketune_formats::peft::{Adapter, Targets};

#[test]
fn an_adapter_of_a_decoder_and_of_an_encoder_comes_back_as_it_went_in() {
    let decoders =
        ["llama", "opt", "llama_dora.gguf", "qwen2_dora", "llama_ends", "gemma3_text_ends", "llama_vera.gguf"];
    let cases = decoders.into_iter().map(|name| (name, Some("CAUSAL_LM"))).chain([("roberta", None)]);
    for (name, task) in cases {
        let golden = Golden::open(name);
        let case = golden.case(true, Mode::Accumulate, PolicyName::None, 1);
        let theirs = Adapter::open(&golden.adapter()).unwrap();
        let saved = adapter::open(&golden.adapter()).unwrap();
        let spec = adapter::spec(&golden.adapter(), &saved).unwrap();
        let folder = tempfile::tempdir().unwrap();
        adapter::save(
            &case.cpu,
            &case.graph,
            &adapter::config(&case.graph, &spec, "base"),
            None,
            None,
            &Beside::default(),
            &folder.path().join("out"),
        )
        .unwrap();
        let ours = Adapter::open(&folder.path().join("out")).unwrap();
        assert_eq!(ours.config().task.as_deref(), task, "{name}");
        assert_eq!(ours.pairs().len(), theirs.pairs().len(), "{name}");
        for (ours, theirs) in ours.pairs().zip(theirs.pairs()) {
            assert_eq!(ours.module, theirs.module);
            assert!(ours.a.data == theirs.a.data && ours.b.data == theirs.b.data, "{name} {}", ours.module);
            let [ours, theirs] = [ours, theirs].map(|pair| pair.magnitude.map(|magnitude| magnitude.data));
            assert_eq!(ours, theirs, "{name}");
            assert_eq!(ours.is_some(), name.contains("dora"));
        }
        // Vectors beside the matrices that modules share, which pairs do not have.
        let all = |adapter: &Adapter| {
            let vectors = adapter.tensors().iter().filter(|info| info.name.contains("vera"));
            let vectors =
                vectors.map(|info| (info.name.to_string(), info.shape.to_vec(), data(adapter, info).to_vec()));
            let mut vectors: Vec<_> = vectors.collect();
            vectors.sort();
            vectors
        };
        assert_eq!(all(&ours), all(&theirs), "{name}");
        let scales = |adapter: &Adapter| -> Vec<f64> {
            adapter.pairs().map(|pair| adapter.config().scale_of(pair.module)).collect()
        };
        assert_eq!(scales(&ours), scales(&theirs), "{name}");
        let Targets::Modules(names) = &ours.config().targets else { panic!("{name}: no names") };
        let found = |module: &str| names.iter().any(|name| module == name || module.ends_with(&format!(".{name}")));
        assert!(theirs.pairs().all(|pair| found(pair.module)), "{name}: {names:?}");
        assert!(!found("lm_head.dense"), "{name}: the head has no adapter");
    }
}

/// The bytes of a tensor.
fn data<'a>(adapter: &'a Adapter, info: &TensorInfo) -> &'a [u8] {
    &adapter.file().bytes()[info.offset..info.offset + info.bytes]
}

#[test]
fn names_of_every_family_are_understood() {
    let read = |names| Target::parse_list(names).unwrap();
    assert_eq!(read("q_proj,k_proj,v_proj,out_proj,fc1,fc2"), read("query,key,value,dense"));
    assert_eq!(read("intermediate.dense"), [Target::Up]);
    assert_eq!(read("output.dense"), [Target::O, Target::Down], "as PEFT reads it");
    assert_eq!(read("attention.output.dense"), [Target::O]);
}

#[test]
fn all_linear_means_those_that_a_block_has() {
    let lora = |targets| LoraSpec { rank: 2, alpha: 4.0, targets, ..LoraSpec::default() };
    let config = pocketune::families::shape("opt-1.3b").unwrap();
    assert_eq!(config.graph(Some(&lora(Target::ALL.to_vec()))).unwrap().modules.len(), 24 * 6);
    let fault = config.graph(Some(&lora(vec![Target::Q, Target::Gate]))).unwrap_err().to_string();
    assert_eq!(fault, "--lora-targets gate_proj: this model has no such linear");
}
