//! PEFT adapters: what PEFT writes is read, what is written PEFT reads, and what is not plain LoRA is refused by name.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use pocketune_formats::inspect::describe;
use pocketune_formats::peft::{Adapter, AdapterConfig, Patterns, Targets, TensorSpec, tensor_names, write_tensors};

use crate::handmade::Place;

/// As PEFT 0.21.2 saves `LoraConfig(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")`.
pub const CONFIG_OF_PEFT: &str = r#"{
  "alora_invocation_tokens": null, "alpha_pattern": {}, "arrow_config": null, "auto_mapping": null,
  "base_model_name_or_path": "x/y", "bias": "none", "corda_config": null, "ensure_weight_tying": false, "eva_config": null,
  "exclude_modules": null, "fan_in_fan_out": false, "inference_mode": false, "init_lora_weights": true, "kasa_config": null,
  "layer_replication": null, "layers_pattern": null, "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 6,
  "lora_bias": false, "lora_dropout": 0.0, "lora_ga_config": null, "megatron_config": null, "megatron_core": "megatron.core",
  "modules_to_save": null, "monteclora_config": null, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 16,
  "r": 4, "rank_pattern": {}, "revision": null, "target_modules": ["v_proj", "q_proj"], "target_parameters": null,
  "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_bdlora": null, "use_dora": false, "use_qalora": false,
  "use_rslora": false, "velora_config": null
}"#;

const MODULES: [&str; 2] = ["model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"];
const RANK: usize = 4;
const WIDTH: usize = 16;

fn specs() -> Vec<TensorSpec> {
    let shapes = [vec![RANK, WIDTH], vec![WIDTH, RANK]];
    MODULES
        .iter()
        .flat_map(|module| tensor_names(module, false).into_iter().zip(shapes.clone()))
        .map(|(name, shape)| TensorSpec { name, shape })
        .collect()
}

/// Tensor `i` holds `i + element / 64`.
pub fn adapter_tensors() -> Vec<u8> {
    let mut bytes = Vec::new();
    write_tensors(&mut bytes, &specs(), &mut |i, out| {
        (0..RANK * WIDTH).try_for_each(|n| out.write_all(&(i as f32 + n as f32 / 64.0).to_le_bytes()))
    })
    .unwrap();
    bytes
}

fn folder(config: &str) -> Place {
    let place = Place::new();
    place.file("adapter_config.json", config);
    place.file("adapter_model.safetensors", adapter_tensors());
    place
}

fn said(folder: &Path) -> String {
    let error = Adapter::open(folder).unwrap_err().to_string();
    error.replace(&folder.display().to_string(), "DIR")
}

fn plain() -> AdapterConfig {
    AdapterConfig {
        rank: RANK,
        alpha: 6.0,
        targets: Targets::Modules(vec!["q_proj".into(), "v_proj".into()]),
        layers: Some(vec![1]),
        base_model: Some("x/y".into()),
        task: Some("CAUSAL_LM".into()),
        ..AdapterConfig::default()
    }
}

#[test]
fn what_peft_writes_is_read() {
    let place = folder(CONFIG_OF_PEFT);
    let adapter = Adapter::open(place.path()).unwrap();
    let targets = Targets::Modules(vec!["v_proj".into(), "q_proj".into()]);
    assert_eq!(*adapter.config(), AdapterConfig { layers: None, targets, ..plain() });
    assert_eq!(adapter.config().scale_of(MODULES[0]), 1.5);
    assert_eq!(adapter.pairs().map(|pair| pair.module).collect::<Vec<_>>(), MODULES);
    let pair = adapter.pair(MODULES[1]).unwrap();
    assert_eq!((pair.a.shape, pair.b.shape), (&[RANK, WIDTH][..], &[WIDTH, RANK][..]));
    assert_eq!(pair.b.data[..8], [3.0f32, 3.0 + 1.0 / 64.0].map(f32::to_le_bytes).concat());
    assert!(adapter.pair("model.layers.0.self_attn.q_proj").is_none());
}

#[test]
fn a_written_configuration_is_read_back() {
    let all_linear = AdapterConfig {
        alpha: 0.5,
        targets: Targets::AllLinear,
        layers: None,
        base_model: None,
        task: None,
        ..plain()
    };
    let special = AdapterConfig {
        ranks: Patterns(vec![("layers.1.self_attn.v_proj".into(), 7), ("q_proj".into(), 2)]),
        alphas: Patterns(vec![("v_proj".into(), 2.5)]),
        stabilized: true,
        dora: true,
        dropout: 0.1,
        ..plain()
    };
    assert_eq!([special.rank_of(MODULES[0]), special.rank_of(MODULES[1])], [2, 7]);
    assert_eq!(special.scale_of(MODULES[1]), 2.5 / 7_f64.sqrt());
    for config in [plain(), all_linear, special] {
        assert_eq!(AdapterConfig::from_json(&serde_json::from_str(&config.to_json()).unwrap()), Ok(config));
    }
}

#[test]
fn what_is_not_plain_lora_is_refused_by_the_field() {
    let cases = [
        ("\"use_dora\": false", "\"use_dora\": 1", "use_dora is 1, where true or false is wanted"),
        ("\"use_rslora\": false", "\"use_rslora\": \"yes\"", "use_rslora is \"yes\", where true or false is wanted"),
        (
            "\"lora_dropout\": 0.0",
            "\"lora_dropout\": 1.0",
            "lora_dropout is 1.0, where a share of at least 0 and below 1 is wanted",
        ),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", "bias is \"all\", which pocketune does not support"),
        (
            "\"rank_pattern\": {}",
            "\"rank_pattern\": {\"q_proj\": 0}",
            "rank_pattern is {\"q_proj\":0}, where names of modules, each with a rank of at least 1 is wanted",
        ),
        (
            "\"alpha_pattern\": {}",
            "\"alpha_pattern\": {\"layers.[01].*\": 2}",
            "alpha_pattern is \"layers.[01].*\", where the name or the path of a module (patterns are not read) is wanted",
        ),
        (
            "\"modules_to_save\": null",
            "\"modules_to_save\": [\"lm_head\"]",
            "modules_to_save is [\"lm_head\"], which pocketune does not support",
        ),
        (
            "\"init_lora_weights\": true",
            "\"init_lora_weights\": \"pissa\"",
            "init_lora_weights is \"pissa\", which pocketune does not support",
        ),
        (
            "\"fan_in_fan_out\": false",
            "\"fan_in_fan_out\": true",
            "fan_in_fan_out is true, which pocketune does not support",
        ),
        ("\"use_bdlora\": null", "\"a_field_of_2030\": 7", "a_field_of_2030 is 7, which pocketune does not support"),
        ("\"LORA\"", "\"IA3\"", "peft_type is \"IA3\"; only \"LORA\" and \"VERA\" are read"),
        ("\"r\": 4", "\"r\": 0", "r is 0, where a whole number of at least 1 is wanted"),
        ("\"lora_alpha\": 6", "\"lora_alpha\": \"6\"", "lora_alpha is \"6\", where a number of at least 0 is wanted"),
        ("\"lora_alpha\": 6,", "", "the field lora_alpha is missing"),
        (
            "[\"v_proj\", \"q_proj\"]",
            "\".*_proj\"",
            "target_modules is \".*_proj\", where a list of module names or \"all-linear\" (patterns are not read) is wanted",
        ),
        (
            "\"layers_to_transform\": null",
            "\"layers_to_transform\": [1, -1]",
            "layers_to_transform is [1,-1], where a list of layer numbers is wanted",
        ),
    ];
    for (from, to, sentence) in cases {
        let place = folder(&CONFIG_OF_PEFT.replace(from, to));
        assert_eq!(said(place.path()), format!("DIR/adapter_config.json: {sentence}"));
    }
}

#[test]
fn tensors_that_do_not_fit_the_configuration_are_refused() {
    let write = |specs: &[TensorSpec]| {
        let mut bytes = Vec::new();
        let zeros =
            |i: usize, out: &mut dyn Write| out.write_all(&vec![0; 4 * specs[i].shape.iter().product::<usize>()]);
        write_tensors(&mut bytes, specs, &mut { zeros }).unwrap();
        bytes
    };
    let place = folder(CONFIG_OF_PEFT);
    let said_of = |specs: &[TensorSpec]| {
        place.file("adapter_model.safetensors", write(specs));
        said(place.path()).strip_prefix("DIR/adapter_model.safetensors: ").unwrap().to_string()
    };
    assert_eq!(said_of(&[]), "the file holds no LoRA tensors");
    assert_eq!(said_of(&specs()[..3]), format!("module {:?} has a lora_A but no lora_B", MODULES[1]));
    assert_eq!(said_of(&specs()[1..]), format!("module {:?} has a lora_B but no lora_A", MODULES[0]));
    let mut wide = specs();
    wide[0].shape = vec![8, WIDTH];
    assert_eq!(
        said_of(&wide),
        format!("tensor {:?} has the shape [8, 16], where r = 4 asks for [r, in]", wide[0].name)
    );
    let mut odd = specs();
    odd[0].name = "base_model.model.lm_head.lora_C".into();
    assert_eq!(
        said_of(&odd),
        "tensor \"base_model.model.lm_head.lora_C\" is not part of a LoRA pair (names end in .lora_A.weight or .lora_B.weight)"
    );
    let mut scaled = specs();
    scaled.push(TensorSpec { name: tensor_names(MODULES[0], false)[2].clone(), shape: vec![WIDTH] });
    assert_eq!(said_of(&scaled), format!("module {:?} has magnitudes, and use_dora is not set", MODULES[0]));
    place.file("adapter_config.json", CONFIG_OF_PEFT.replace("\"use_dora\": false", "\"use_dora\": true"));
    let lacks = format!("module {:?} has no lora_magnitude_vector, and use_dora is set", MODULES[1]);
    assert_eq!(said_of(&scaled), lacks);
    scaled.push(TensorSpec { name: tensor_names(MODULES[1], false)[2].clone(), shape: vec![1, WIDTH] });
    assert!(said_of(&scaled).contains("has the shape [1, 16], where a module of 16 outputs asks for [16]"));
    std::fs::remove_file(place.path().join("adapter_model.safetensors")).unwrap();
    assert_eq!(said(place.path()), "DIR: the folder has no adapter_model.safetensors");
}

#[test]
fn a_tensor_filled_with_too_few_bytes_is_an_error() {
    let error = write_tensors(&mut Vec::new(), &specs(), &mut |_, out| out.write_all(&[0; 12])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "tensor \"base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight\": 12 bytes for 256"
    );
}

#[test]
fn inspect_shows_an_adapter() {
    let text = describe(folder(&plain().to_json()).path()).unwrap();
    for line in [
        "PEFT LoRA adapter, 0.0 MB, 4 tensors, 256 parameters",
        "  alpha            6 (scale 1.5)",
        "  layers           [1]",
        "  base model       x/y",
        "  base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight  f32  4 x 16  256 bytes",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

/// The oracle is PEFT itself: `POCKETUNE_PYTHON` names a Python that has torch, transformers and peft.
#[test]
fn peft_loads_what_is_written_without_a_warning_and_what_it_saves_is_read() {
    let Ok(python) = std::env::var("POCKETUNE_PYTHON") else {
        println!("skipped: POCKETUNE_PYTHON does not name a Python with peft");
        return;
    };
    let place = folder(&plain().to_json());
    let saved = place.path().join("saved");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peft_loads.py");
    let status = Command::new(python).arg(script).arg(place.path()).arg(&saved).status().unwrap();
    assert!(status.success());
    let (ours, theirs) = (Adapter::open(place.path()).unwrap(), Adapter::open(&saved).unwrap());
    assert_eq!(theirs.config().layers, Some(vec![1]));
    assert_eq!(ours.pairs().len(), theirs.pairs().len());
    for (ours, theirs) in ours.pairs().zip(theirs.pairs()) {
        assert_eq!((ours.module, ours.a.data, ours.b.data), (theirs.module, theirs.a.data, theirs.b.data));
    }
}
