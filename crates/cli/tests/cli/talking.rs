//! `pocketune chat`, through pipes: what it replies is what `generate` continues the same history with, whatever was kept, dropped or
//! exchanged on the way; what is wrong with a line is said, and the conversation goes on.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pocketune_text::{ChatTemplate, Ends};
use serde_json::{Value, json};

use crate::models::{Golden, chat_template, chatty, demo};
use crate::place::{Place, Run, Said, wait};

/// What every run here has, so that bits do not depend on how much was read at once.
const WORDS: &str = "--max-tokens 12 --precision f32";

fn chat<'a>(place: &'a Place, words: &str) -> Run<'a> {
    place.pocketune("chat").words(WORDS).words(words).model(place.path("llama"))
}

/// The replies, one after another, each with the line's end behind it.
fn replies(place: &Place, words: &str, lines: &str) -> String {
    chat(place, words).reading(lines).succeeds().stdout
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

/// What `generate` makes of a history, with the line's end.
fn generated(place: &Place, words: &str, messages: &[Value]) -> String {
    let template = ChatTemplate::new(chat_template("smollm2.json")["template"].as_str().unwrap()).unwrap();
    let text = template.render(messages, None, true, Ends { bos: "", eos: "" }).unwrap().text;
    let run = place.pocketune("generate").words(WORDS).words(words).model(place.path("llama"));
    run.with("--prompt", text).succeeds().stdout
}

fn adapter(place: &Place) -> String {
    let theirs = Golden::new("llama").adapter();
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        place.file(&format!("changed/{name}"), std::fs::read(theirs.join(name)).unwrap());
    }
    "changed".into()
}

#[test]
fn one_turn_is_what_generate_makes_of_the_same_prompt() {
    let place = Place::new();
    let model = chatty(&place);
    for words in ["", "--temp 1.5 --seed 3 --top-p 0.9"] {
        let run = place.pocketune("generate --chat --prompt Hello?").words(WORDS).words(words).model(&model);
        assert_eq!(replies(&place, words, "Hello?\n"), run.succeeds().stdout, "{words}");
    }
}

#[test]
fn every_further_turn_continues_the_whole_history() {
    let place = Place::new();
    chatty(&place);
    for words in ["", "--temp 1.5 --seed 3"] {
        let mut history = Vec::new();
        let mut said = String::new();
        for question in ["Who is there?", "And who else?", "Why?"] {
            history.push(message("user", question));
            let reply = generated(&place, words, &history);
            history.push(message("assistant", reply.strip_suffix('\n').unwrap()));
            said += &reply;
        }
        assert_eq!(replies(&place, words, "Who is there?\n\nAnd who else?\nWhy?"), said, "{words}");
    }
}

#[test]
fn a_systems_message_comes_first_until_it_is_taken_away() {
    let place = Place::new();
    chatty(&place);
    let [user, system] = [message("user", "Who?"), message("system", "Be brief.")];
    let told = generated(&place, "", &[system, user.clone()]);
    let plain = generated(&place, "", &[user]);
    assert_ne!(told, plain);
    let told_by_option = chat(&place, "").with("--system", "Be brief.").reading("Who?\n/reset\n/system\nWho?\n");
    assert_eq!(told_by_option.succeeds().stdout, format!("{told}{plain}"));
    assert_eq!(replies(&place, "", "/system Be brief.\nWho?\n/reset\nWho?\n"), format!("{told}{told}"));
}

#[test]
fn an_adapter_is_exchanged_on_the_way_and_a_missing_one_changes_nothing() {
    let place = Place::new();
    chatty(&place);
    let folder = adapter(&place);
    let question = [message("user", "Who?")];
    let plain = generated(&place, "", &question);
    let adapted = generated(&place, &format!("--adapter {folder}"), &question);
    assert_ne!(plain, adapted);
    let lines = format!(
        "Who?\n/reset\n/adapter {folder}\nWho?\n/reset\n/adapter missing\nWho?\n/reset\n/adapter none\nWho?\n/quit\nWho?\n"
    );
    let Said { stdout, stderr } = chat(&place, "").reading(&lines).succeeds();
    assert_eq!(stdout, [&plain[..], &adapted, &adapted, &plain].concat());
    assert!(stderr.contains("missing") && stderr.contains("the adapter is as before"), "{stderr}");
}

#[test]
fn a_saved_conversation_is_a_record_that_train_reads() {
    let place = Place::new();
    let model = chatty(&place);
    let first =
        replies(&place, "", "/system Be brief.\nWho?\n/save talks.jsonl\n/reset\n/system\nWhy?\n/save talks.jsonl\n");
    let records: Vec<Value> = std::fs::read_to_string(place.path("talks.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let roles = |record: &Value| -> Vec<String> {
        record["messages"].as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap().into()).collect()
    };
    assert_eq!(roles(&records[0]), ["system", "user", "assistant"]);
    assert_eq!(roles(&records[1]), ["user", "assistant"]);
    assert_eq!(records.len(), 2);
    assert!(first.starts_with(records[0]["messages"][2]["content"].as_str().unwrap()));
    let train = place.pocketune("train --iters 1 --batch-size 1 --mask-prompt").model(&model);
    train.data(place.path("talks.jsonl")).into("learnt").succeeds();
}

#[test]
fn a_history_that_outgrows_its_room_loses_its_oldest_turns_and_keeps_the_system() {
    let place = Place::new();
    chatty(&place);
    let long = "word ".repeat(20).trim().to_string();
    let system = message("system", "Be brief.");
    let only_last = generated(&place, "", &[system, message("user", "And now?")]);
    let lines = format!("{long}\n{long}\nAnd now?\n");
    let Said { stdout, stderr } =
        chat(&place, "--max-kv-size 200").with("--system", "Be brief.").reading(&lines).succeeds();
    assert!(stdout.ends_with(&only_last), "{stdout:?} {only_last:?}");
    assert!(stderr.contains("(the oldest 2 messages were dropped: the room is 200 tokens)"), "{stderr}");
    let Said { stdout, stderr } = chat(&place, "--max-kv-size 200").reading(&"long ".repeat(60)).succeeds();
    assert!(stdout.is_empty() && stderr.contains("not sent: the message has "), "{stderr}");
}

#[test]
fn a_line_that_is_no_command_is_said_so_and_the_conversation_goes_on() {
    let place = Place::new();
    chatty(&place);
    let plain = generated(&place, "", &[message("user", "Who?")]);
    let lines = "/sistem x\n/adapter\n/save\n/save a.jsonl\n/reset all\n/help\nWho?\n/save .\n";
    let Said { stdout, stderr } = chat(&place, "").reading(lines).succeeds();
    assert_eq!(stdout, plain);
    let faults = ["/sistem: no such command", "/adapter: which folder", "/save: which file?", "no place for a file"];
    for fault in faults.into_iter().chain(["/save: nothing has been said yet", "/reset all: nothing goes", "/quit "]) {
        assert!(stderr.contains(fault), "{fault}: {stderr}");
    }
    assert!(!place.path("a.jsonl").exists());
}

#[test]
fn a_conversation_can_not_begin_without_a_template_a_model_or_memory() {
    let place = Place::new();
    chatty(&place);
    place.pocketune("chat").model(demo()).refuses(&["model.gguf", "no chat template", "--chat-template"]);
    place.pocketune("chat --model missing").refuses(&["missing"]);
    chat(&place, "--adapter missing").refuses(&["missing"]);
    chat(&place, "--temp -1").refuses(&["--temp -1"]);
    chat(&place, "--memory-budget 1MiB").refuses(&["--memory-budget", "the smallest plan needs"]);
    chat(&place, "--chat-template missing.jinja").refuses(&["missing.jinja"]);
}

#[test]
fn a_smaller_budget_has_less_room_and_says_the_same() {
    let place = Place::new();
    chatty(&place);
    let whole = replies(&place, "", "Who?\nWhy?\n");
    for words in ["--memory-budget min", "--memory-budget 40MiB"] {
        assert_eq!(replies(&place, words, "Who?\nWhy?\n"), whole, "{words}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_stays_within_its_budget_through_turns_and_another_adapter() {
    let place = Place::new();
    chatty(&place);
    let adapter = adapter(&place);
    for budget in [32_u64 << 20, 48 << 20] {
        let run = chat(&place, &format!("--memory-budget {budget}")).answering("heard");
        let mut child = run.start();
        let (mut typed, mut told) = (child.stdin.take().unwrap(), child.stderr.take().unwrap());
        write!(typed, "Who?\nWhy?\n/adapter {adapter}\nAnd now?\n/system Be brief.\nWhen?\n/save talk.jsonl\n")
            .unwrap();
        until(&mut told, "messages added");
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak = 1024 * line.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        println!("{budget} bytes: {peak} at most");
        assert!(peak <= budget, "a peak of {peak} in a budget of {budget}");
        drop(typed);
        assert!(wait(child).0.success());
        std::fs::remove_file(place.path("talk.jsonl")).unwrap();
    }
}

#[test]
fn the_first_interrupt_ends_a_reply_and_the_next_the_program() {
    let place = Place::new();
    chatty(&place);
    let run =
        place.pocketune("chat --precision f32 --max-tokens 1000000 --max-kv-size 1000100").model(place.path("llama"));
    let mut child = run.answering("heard").start();
    let mut typed = child.stdin.take().unwrap();
    let mut told = child.stderr.take().unwrap();
    let interrupt =
        || assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    for _ in 0..2 {
        let heard = || std::fs::metadata(place.path("heard")).unwrap().len();
        let before = heard();
        typed.write_all(b"Who?\n").unwrap();
        while heard() < before + 4 {
            std::thread::sleep(Duration::from_millis(2));
        }
        interrupt();
        until(&mut told, "(stopped)");
    }
    typed.write_all(b"/save talk.jsonl\n").unwrap();
    until(&mut told, "messages added");
    assert_eq!(turns(&place.path("talk.jsonl")), 4);
    interrupt();
    let (status, _) = wait(child);
    assert_eq!(status.code(), Some(130));
}

/// Reads until `words` came.
fn until(from: &mut impl Read, words: &str) {
    let (mut all, mut byte) = (Vec::new(), [0]);
    while !all.ends_with(words.as_bytes()) {
        from.read_exact(&mut byte).unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&all)));
        all.push(byte[0]);
    }
}

fn turns(path: &Path) -> usize {
    let record: Value = serde_json::from_str(std::fs::read_to_string(path).unwrap().trim()).unwrap();
    record["messages"].as_array().unwrap().len()
}
