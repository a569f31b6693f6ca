//! `pocketune generate`: the same words give the same text, and the options mean what they say.

use crate::models::{demo, demo_data};
use crate::place::Place;

fn generated(place: &Place, words: &str) -> String {
    let run = place.pocketune("generate --max-tokens 30").words(words).model(demo());
    run.with("--prompt", "Question: What do you eat?\nAnswer:").succeeds().stdout
}

#[test]
fn the_same_words_give_the_same_text() {
    let place = Place::new();
    for words in ["", "--temp 1 --seed 4", "--temp 0.7 --top-p 0.9 --seed 5", "--precision bf16"] {
        let text = generated(&place, words);
        assert!(text.len() > 20, "{text:?}");
        assert_eq!(generated(&place, words), text, "{words}");
    }
}

#[test]
fn every_number_of_threads_gives_the_same_text() {
    let place = Place::new();
    for words in ["--precision f32", "--precision f32 --temp 1 --seed 3", "--precision bf16 --temp 1 --seed 3"] {
        let one = generated(&place, &format!("{words} --threads 1"));
        for threads in [2, 4] {
            assert_eq!(generated(&place, &format!("{words} --threads {threads}")), one, "{words} --threads {threads}");
        }
    }
}

#[test]
fn seeds_differ_and_greedy_has_none() {
    let place = Place::new();
    let hot = |seed: usize| generated(&place, &format!("--temp 1.5 --seed {seed}"));
    assert!((1..6).any(|seed| hot(seed) != hot(0)));
    assert_eq!(generated(&place, "--seed 1"), generated(&place, "--seed 2"));
}

#[test]
fn the_narrowest_choice_is_the_greedy_one() {
    let place = Place::new();
    let greedy = generated(&place, "");
    assert_eq!(generated(&place, "--temp 2 --top-p 1e-6 --seed 9"), greedy);
    assert_eq!(generated(&place, "--temp 1e-4 --seed 9"), greedy);
}

#[test]
fn fewer_tokens_are_the_beginning_of_more() {
    let place = Place::new();
    let of = |tokens: &str| {
        let run = place.pocketune("generate --temp 0.8 --seed 2").with("--max-tokens", tokens).model(demo());
        run.with("--prompt", "The boat").succeeds().stdout
    };
    let (five, twenty) = (of("5"), of("20"));
    assert!(twenty.starts_with(five.trim_end_matches('\n')), "{five:?} {twenty:?}");
    assert!(twenty.len() > five.len());
    assert_eq!(of("0"), "\n");
}

#[test]
fn an_adapter_changes_the_text_to_what_it_was_trained_on() {
    let place = Place::new();
    let place_of = "Where do you live?";
    place.pocketune("train --log-format jsonl --adapter-path diary").succeeds();
    let answer = |adapter: bool| {
        let run = place.pocketune("generate --max-tokens 16").model(demo());
        let run = if adapter { run.with("--adapter", place.path("diary")) } else { run };
        run.with("--prompt", format!("Question: {place_of}\nAnswer:")).succeeds().stdout
    };
    let diary = std::fs::read_to_string(demo_data().join("train.jsonl")).unwrap();
    let (before, after) = (answer(false), answer(true));
    let first_line = |text: &str| text.lines().next().unwrap().trim().to_string();
    assert!(!diary.contains(&first_line(&before)), "{before:?}");
    assert!(diary.contains(&first_line(&after)), "{after:?}");
}

#[test]
fn a_real_model_says_the_same_in_a_fifth_of_its_size() {
    let Some(model) = std::env::var_os("POCKETUNE_SMOLLM2") else {
        return println!("skipped: POCKETUNE_SMOLLM2 does not name a SmolLM2-135M-Instruct Q4_1 GGUF");
    };
    let place = Place::new();
    // The head alone has 28 MB: its rows go through in pieces.
    let said = |budget: &str| {
        let run = place.pocketune("generate --max-tokens 12 --threads 1").words(budget).model(&model);
        run.with("--prompt", "The capital of France is").succeeds().stdout
    };
    let roomy = said("--memory-budget 256MiB");
    assert!(roomy.contains("Paris"), "{roomy:?}");
    assert_eq!(said("--memory-budget 28MiB"), roomy);
}
