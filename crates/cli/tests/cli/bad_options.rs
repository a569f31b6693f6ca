//! Numbers and names that can't work: refused in one line that names the option, before anything is read or written.

use crate::models::{demo, demo_data};
use crate::place::{Place, Run};

fn train<'a>(place: &'a Place, words: &str) -> Run<'a> {
    place.pocketune("train --iters 2").words(words).model(demo()).data(demo_data()).into("out")
}

#[test]
fn numbers_that_cannot_work_are_refused_by_train() {
    let place = Place::new();
    for (option, value) in [
        ("--lora-rank", "0"),
        ("--lora-rank", "5000"),
        ("--lora-alpha", "0"),
        ("--lora-alpha", "NaN"),
        ("--lora-alpha", "-1"),
        ("--lora-dropout", "1"),
        ("--lora-dropout", "-0.1"),
        ("--lora-dropout", "NaN"),
        ("--lora-plus", "0"),
        ("--lora-plus", "NaN"),
        ("--lora-rank-pattern", "q_proj"),
        ("--lora-rank-pattern", "=4"),
        ("--lora-rank-pattern", "q_proj=half"),
        ("--lora-alpha-pattern", "q_proj=x"),
        ("--learning-rate", "-1"),
        ("--learning-rate", "-0.0001"),
        ("--learning-rate", "0"),
        ("--learning-rate", "NaN"),
        ("--learning-rate", "inf"),
        ("--weight-decay", "-0.1"),
        ("--weight-decay", "NaN"),
        ("--batch-size", "0"),
        ("--batch-size", "18446744073709551615"),
        ("--max-seq-length", "0"),
        ("--max-seq-length", "1"),
        ("--max-seq-length", "18446744073709551615"),
        ("--grad-accumulation-steps", "0"),
        ("--grad-accumulation-steps", "18446744073709551615"),
        ("--steps-per-report", "0"),
        ("--num-layers", "-2"),
        ("--threads", "0"),
        ("--threads", "100000"),
    ] {
        train(&place, "").with(option, value).refuses(&[&format!("{option} {value}: ")]);
    }
    let none = place.pocketune("train --iters 0").model(demo()).data(demo_data()).into("out");
    none.refuses(&["--iters 0: "]);
    train(&place, "--num-layers 0").stops(&["--num-layers 0: "]);
    train(&place, "--num-layers 5").stops(&["--num-layers 5: ", "4 layers"]);
}

#[test]
fn numbers_that_cannot_work_are_refused_by_eval_and_generate() {
    let place = Place::new();
    for (option, value) in [
        ("--batch-size", "0"),
        ("--batch-size", "18446744073709551615"),
        ("--max-seq-length", "1"),
        ("--max-seq-length", "18446744073709551615"),
        ("--threads", "0"),
    ] {
        let eval = place.pocketune("eval").model(demo()).data(demo_data());
        eval.with(option, value).refuses(&[&format!("{option} {value}: ")]);
    }
    for (option, value) in [
        ("--temp", "-1"),
        ("--temp", "NaN"),
        ("--top-p", "0"),
        ("--top-p", "1.5"),
        ("--top-p", "NaN"),
        ("--max-tokens", "18446744073709551615"),
        ("--threads", "0"),
    ] {
        let generate = place.pocketune("generate --prompt Hi").model(demo());
        generate.with(option, value).refuses(&[&format!("{option} {value}: ")]);
    }
}

#[test]
fn an_empty_prompt_is_refused() {
    let place = Place::new();
    place.pocketune("generate").model(demo()).with("--prompt", "").refuses(&["--prompt", "no token"]);
}

#[test]
fn an_unknown_target_is_refused_with_the_known_ones() {
    let place = Place::new();
    train(&place, "--lora-targets q_proj,nose").refuses(&["--lora-targets", "'nose'", "down_proj", "all-linear"]);
    train(&place, "--lora-targets ,").refuses(&["--lora-targets"]);
    train(&place, "--lora-targets lm_head --fine-tune-type dora").refuses(&["--lora-targets lm_head", "neither DoRA"]);
    train(&place, "--lora-targets embed_tokens --lora-dropout 0.1").refuses(&["embed_tokens", "nor dropout"]);
}

#[test]
fn an_unknown_instruction_set_is_refused_with_the_known_ones() {
    let place = Place::new();
    let known = if cfg!(target_arch = "x86_64") { "avx2" } else { "scalar" };
    let words = ["POCKETUNE_ISA=nonsense", "scalar", known];
    train(&place, "").env("POCKETUNE_ISA", "nonsense").refuses(&words);
    let eval = place.pocketune("eval").model(demo()).data(demo_data());
    eval.env("POCKETUNE_ISA", "nonsense").refuses(&words);
    place.pocketune("generate -p Hi").model(demo()).env("POCKETUNE_ISA", "nonsense").refuses(&words);
}

#[test]
fn a_model_without_data_and_data_without_a_model_are_refused() {
    let place = Place::new();
    place.pocketune("train").model(demo()).into("out").refuses(&["--data is missing"]);
    place.pocketune("train").data(demo_data()).into("out").refuses(&["--model is missing"]);
}

#[test]
fn words_that_mean_nothing_get_usage_help() {
    let place = Place::new();
    place.pocketune("fly").misused(&["'fly'", "Usage"]);
    train(&place, "--learning-rat 1").misused(&["--learning-rat", "--learning-rate"]);
    train(&place, "--lora-rank eight").misused(&["'eight'", "--lora-rank"]);
    train(&place, "--lora-rank -3").misused(&["-3"]);
    train(&place, "--optimizer lion").misused(&["'lion'", "adamw", "adamw8bit", "sgd"]);
    train(&place, "--grad-checkpoint some").misused(&["'some'", "selective"]);
    train(&place, "--lora-rank-pattern q_proj=0").refuses(&["--lora-rank-pattern 0", "between 1 and 4096"]);
    train(&place, "--lora-alpha-pattern v_proj=0").refuses(&["--lora-alpha-pattern 0", "above 0"]);
    train(&place, "--lora-rank-pattern nose=4").refuses(&["--lora-rank-pattern nose", "no adapted module"]);
    train(&place, "--fine-tune-type dora --lora-dropout 0.1").refuses(&["--lora-dropout 0.1", "DoRA"]);
    for option in ["--lora-rank 4", "--lora-alpha 4", "--lora-targets q", "--num-layers 1", "--use-rslora"] {
        train(&place, "--init-adapter somewhere").words(option).misused(&["--init-adapter", "cannot be used with"]);
    }
    place.pocketune("generate").model(demo()).misused(&["--prompt"]);
    place.pocketune("eval").model(demo()).misused(&["--data"]);
}

#[test]
fn options_about_data_that_can_not_work_are_refused() {
    let place = Place::new();
    for (words, said) in [
        ("--val-split 0", "--val-split 0"),
        ("--val-split 0.6", "at most at 0.5"),
        ("--val-split -0.1", "at most at 0.5"),
        ("--val-split nan", "at most at 0.5"),
        ("--chat-template nowhere.jinja", "nowhere.jinja: not found"),
    ] {
        place.pocketune("train").words(words).model(demo()).data(demo_data()).into("out").refuses(&[said]);
    }
    place.pocketune("train --mask-prompt some").model(demo()).data(demo_data()).misused(&["all, last, none"]);
    let broken = place.file("broken.jinja", "{% for m in messages %}");
    let run = place.pocketune("train").with("--chat-template", broken).model(demo()).data(demo_data());
    run.into("out").refuses(&["chat template"]);
    let few = place.texts("few.jsonl", &["a b c"]);
    let run = place.pocketune("train --val-split 0.01").model(demo()).data(few).into("out");
    run.refuses(&["--val-split 0.01", "none of the 1 records"]);
    place.pocketune("data preview").data("nowhere.jsonl").refuses(&["nowhere.jsonl", "No such file"]);
    place.pocketune("data preview").misused(&["--data"]);
}

#[test]
fn options_about_validation_and_length_of_a_run_that_can_not_work_are_refused() {
    let place = Place::new();
    for (words, said) in [
        ("--steps-per-eval 0", "--steps-per-eval 0"),
        ("--val-batches 0", "--val-batches 0"),
        ("--val-batches -2", "-1 for all"),
        ("--early-stopping 0", "--early-stopping 0"),
        ("--epochs 0", "--epochs 0"),
        ("--epochs -1", "--epochs -1"),
        ("--epochs nan", "--epochs NaN"),
        ("--warmup-ratio 1.5", "--warmup-ratio 1.5"),
        ("--lr-min 1", "--lr-min 1"),
        ("--lr-min -1", "--lr-min -1"),
    ] {
        place.pocketune("train").words(words).model(demo()).data(demo_data()).into("out").refuses(&[said]);
    }
    let train = || place.pocketune("train").model(demo()).data(demo_data());
    train().words("--epochs 1 --iters 2").misused(&["--iters"]);
    train().words("--warmup-ratio 0.1 --warmup-steps 2").misused(&["--warmup-steps"]);
    for words in ["--early-stopping 2", "--save-best"] {
        let run = place.pocketune("train").words(words).model(demo()).data(demo_data().join("train.jsonl")).into("out");
        run.stops(&["there is no validation set", "--val-split"]);
    }
    place.pocketune("plan --print-config").refuses(&["--print-config"]);
}
