//! `-c FILE.yaml`: the options by their names, under what is typed; what will run as such a file; and words about words.

use crate::adapters;
use crate::models::{demo, demo_data};
use crate::place::Place;

fn written(place: &Place, text: &str) -> std::path::PathBuf {
    let paths = format!("model: {}\ndata: {}\n", demo().display(), demo_data().display());
    place.file("run.yaml", paths + text)
}

/// What `--print-config` says of a key.
fn value(said: &str, key: &str) -> Option<String> {
    said.lines().find_map(|line| line.strip_prefix(&format!("{key}: "))).map(String::from)
}

#[test]
fn a_file_stands_for_what_would_be_typed_and_what_is_typed_wins() {
    let place = Place::new();
    let file = written(
        &place,
        "# a run\niters: 3\nbatch_size: 2\nlearning_rate: 1e-3\nlora_targets: [q_proj, v_proj]\nno_shuffle: true\npack: false\n",
    );
    place.pocketune("train --iters 2").with("-c", &file).into("file").succeeds();
    let words = "train --iters 2 --batch-size 2 --learning-rate 1e-3 --lora-targets q_proj,v_proj --no-shuffle";
    place.pocketune(words).model(demo()).data(demo_data()).into("typed").succeeds();
    assert!(adapters::bytes(&place.path("file")) == adapters::bytes(&place.path("typed")));
}

#[test]
fn names_of_other_trainers_are_understood() {
    let place = Place::new();
    let file = written(
        &place,
        "lora_r: 4\nlora_target_modules: all-linear\ngradient_accumulation_steps: 2\nnum_train_epochs: 1\nmask_prompt: true\n\
         grad_checkpoint: true\nmax-seq-length: 64\nper_device_train_batch_size: 1\nseed: ~\n",
    );
    let said = place.pocketune("train --print-config").with("--config", &file).succeeds().stdout;
    for (key, want) in [
        ("lora_rank", "4"),
        ("grad_accumulation_steps", "2"),
        ("epochs", "1"),
        ("mask_prompt", "\"true\""),
        ("max_seq_length", "64"),
        ("batch_size", "1"),
        ("seed", "0"),
    ] {
        assert_eq!(value(&said, key).as_deref(), Some(want), "{key} in: {said}");
    }
    assert_eq!(value(&said, "iters"), None, "{said}");
}

#[test]
fn what_mlx_lm_keeps_inside_lora_parameters_is_understood() {
    let place = Place::new();
    let text = "fine_tune_type: lora\nlora_parameters:\n  keys: [\"self_attn.q_proj\", \"self_attn.v_proj\"]\n  rank: 4\n  scale: 20.0\n  \
                dropout: 0.1\nnum_layers: 2\n";
    let said = place.pocketune("train --print-config").with("-c", written(&place, text)).succeeds().stdout;
    for (key, want) in [
        ("lora_rank", "4"),
        ("lora_alpha", "80"),
        ("lora_dropout", "0.1"),
        ("lora_targets", "self_attn.q_proj,self_attn.v_proj"),
        ("num_layers", "2"),
        ("fine_tune_type", "lora"),
    ] {
        assert_eq!(value(&said, key).as_deref(), Some(want), "{key} in: {said}");
    }
}

#[test]
fn an_adapter_to_begin_with_is_kept_without_what_it_decides() {
    let place = Place::new();
    place.pocketune("train --iters 1").into("first").succeeds();
    let train = place.pocketune("train --iters 1").model(demo()).data(demo_data());
    train.with("--init-adapter", place.path("first")).into("a").succeeds();
    place.pocketune("train").with("-c", place.path("a/pocketune.yaml")).into("b").succeeds();
    assert!(adapters::bytes(&place.path("a")) == adapters::bytes(&place.path("b")));
}

#[test]
fn what_is_printed_and_what_is_kept_run_again() {
    let place = Place::new();
    let words = "--iters 2 --batch-size 1 --warmup-steps 1 --lora-rank 2 --no-shuffle";
    let train = |out: &str| place.pocketune("train").words(words).model(demo()).data(demo_data()).into(out);
    let printed = train("a").word("--print-config").succeeds().stdout;
    assert!(!place.path("a").exists(), "it ran");
    assert_eq!(value(&printed, "lora_alpha").as_deref(), Some("4"), "{printed}");
    assert_eq!(value(&printed, "learning_rate").as_deref(), Some("0.0001"), "{printed}");
    train("a").succeeds();
    assert_eq!(std::fs::read_to_string(place.path("a/pocketune.yaml")).unwrap(), printed);
    place.pocketune("train").with("-c", place.path("a/pocketune.yaml")).into("b").succeeds();
    assert!(adapters::bytes(&place.path("a")) == adapters::bytes(&place.path("b")));
}

#[test]
fn faults_of_a_file_are_named_with_their_line() {
    let place = Place::new();
    for (text, words) in [
        ("batch_sise: 2\n", ["line 3", "`batch_sise` is no option; `batch_size` is"]),
        ("wibble: 2\n", ["line 3", "`pocketune train --help` lists them"]),
        ("pack: maybe\n", ["line 3", "`pack` is true or false, not `maybe`"]),
        ("lora_parameters:\n  wibble: 8\n", ["line 4", "`lora_parameters.wibble` is no option"]),
        ("lora_parameters:\n  rank: 8\n    scale: 2\n", ["line 5", "something indented"]),
        ("iters: 3\n  rank: 8\n", ["line 4", "something indented"]),
        ("config: b.yaml\n", ["line 3", "`config` is no option"]),
    ] {
        place.pocketune("train").with("-c", written(&place, text)).into("out").refuses(&words);
    }
    place.pocketune("train -c nowhere.yaml").refuses(&["nowhere.yaml", "No such file"]);
    place.pocketune("train -c .").refuses(&[".: "]);
    place.pocketune("train -c /dev/zero").refuses(&["not a regular file"]);
    place.pocketune("train").with("-c", written(&place, "iters: many\n")).misused(&["--iters", "many"]);
}

#[test]
fn an_epoch_has_as_many_updates_as_it_takes() {
    let place = Place::new();
    let data = place.texts("data.jsonl", &["one one", "two two", "three three", "four four", "five five"]);
    let run = |words: &str| {
        let run = place.pocketune("train --log-format jsonl --steps-per-report 1").words(words);
        run.model(demo()).data(&data).into("adapter").succeeds().stdout.lines().count()
    };
    assert_eq!(run("--epochs 2 --batch-size 2"), 6);
    assert_eq!(run("--epochs 1.5 --batch-size 1 --grad-accumulation-steps 2"), 4);
    assert_eq!(run("--epochs 0.1"), 1);
}

#[test]
fn completions_and_the_manual_name_every_command_and_option() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let said = place.pocketune("completions").word(shell).succeeds().stdout;
        assert!(["mask-prompt", "preview", "early-stopping"].iter().all(|word| said.contains(word)), "{shell}");
    }
    let said = place.pocketune("man").succeeds().stdout;
    for word in [".TH pocketune", "mask\\-prompt", "preview", "memory\\-budget"] {
        assert!(said.contains(word), "{word:?} is not in the manual");
    }
}

#[test]
fn a_quiet_run_says_nothing_and_still_writes() {
    let place = Place::new();
    let said = place.pocketune("train --iters 1 --quiet").model(demo()).data(demo_data()).into("adapter").succeeds();
    assert_eq!((said.stdout.as_str(), said.stderr.as_str()), ("", ""));
    assert!(place.path("adapter/adapter_model.safetensors").exists());
    let run = place.pocketune("train --iters 1 -q --log-format jsonl").model(demo()).data(demo_data());
    let said = run.into("adapter").succeeds();
    assert_eq!((said.stdout.lines().count(), said.stderr.as_str()), (3, ""));
}

#[test]
fn a_sample_is_shown_before_and_after() {
    let place = Place::new();
    let run = place.pocketune("train --iters 1 --sample").word("I live in").model(demo()).data(demo_data());
    let said = run.into("adapter").succeeds();
    assert!(said.stdout.contains("\nI live in\n  before: ") && said.stdout.contains("\n  after:  "), "{}", said.stdout);
    assert!(said.stdout.contains("  next    pocketune generate --model "), "{}", said.stdout);
    // Piped, nothing moves the cursor.
    assert!(!said.stderr.contains('\r') && !said.stderr.contains('\u{1b}'), "{}", said.stderr);
}
