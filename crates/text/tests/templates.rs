//! Chat templates of real models write what `transformers` writes, refuse what it refuses, and the assistant's words are found where
//! its assistant mask has them: by the template's own marks where there are any, and without.

use pocketune_text::{Chat, ChatTemplate, Ends, Example, ExampleMaker, Mask, Record, Tokenizer};
use serde_json::{Value, json};
use std::ops::Range;

struct Golden {
    all: Value,
    plain: ChatTemplate,
    marked: ChatTemplate,
}

impl Golden {
    fn open(golden: &str) -> Self {
        let all: Value = serde_json::from_str(golden).unwrap();
        let [plain, marked] =
            ["template", "marked"].map(|name| ChatTemplate::new(all[name].as_str().unwrap()).unwrap());
        assert!(!plain.marks_assistant() && marked.marks_assistant());
        Self { all, plain, marked }
    }

    fn ends(&self) -> Ends<'_> {
        Ends { bos: self.all["bos"].as_str().unwrap(), eos: self.all["eos"].as_str().unwrap() }
    }

    fn cases(&self) -> &[Value] {
        self.all["cases"].as_array().unwrap()
    }

    /// A small tokenizer of the model's kind.
    fn tokenizer(&self) -> Tokenizer {
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        let folder = tempfile::tempdir().unwrap();
        let file = fixtures.join(self.all["tokenizer"].as_str().unwrap()).with_extension("json");
        std::fs::copy(file, folder.path().join("tokenizer.json")).unwrap();
        let end = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        let config = json!({"bos_token": end(self.ends().bos), "eos_token": end(self.ends().eos)});
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        Tokenizer::from_folder(&pocketune_formats::folder::Folder::open(folder.path()).unwrap()).unwrap()
    }
}

fn chat(case: &Value, given: usize) -> Chat {
    let tools = case.get("tools").cloned();
    Chat { messages: case["messages"].as_array().unwrap().clone(), tools, given }
}

fn example(maker: &ExampleMaker, chat: Chat) -> Result<Example, String> {
    let mut found = None;
    let made = maker.examples(&Record::Chat(chat), &mut |example| found = Some(example));
    made.map_err(|error| error.to_string()).map(|()| found.unwrap())
}

/// The runs of tokens that the loss is taken on.
fn runs(loss: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for at in (0..loss.len()).filter(|&at| loss[at]) {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end += 1,
            None => runs.push(at..at + 1),
        }
    }
    runs
}

fn compare_text(golden: &str) {
    let golden = Golden::open(golden);
    for case in golden.cases() {
        let (chat, prompt) = (chat(case, 0), case["add_generation_prompt"].as_bool().unwrap());
        for template in [&golden.plain, &golden.marked] {
            let rendered = template.render(&chat.messages, chat.tools.as_ref(), prompt, golden.ends());
            match (rendered, case["output"].as_str(), case["refusal"].as_str()) {
                (Ok(rendered), Some(output), _) => {
                    assert_eq!(rendered.text, output, "{}", case["name"]);
                    if let (true, Some(words)) = (template.marks_assistant(), case["assistant"].as_array()) {
                        let found: Vec<&str> = rendered.marked.into_iter().map(|range| &output[range]).collect();
                        assert_eq!(found, words.iter().map(|text| text.as_str().unwrap()).collect::<Vec<_>>());
                    }
                }
                (Err(error), None, Some(refusal)) => assert!(error.to_string().contains(refusal), "{error}"),
                (other, ..) => panic!("{}: {other:?}", case["name"]),
            }
        }
    }
}

/// Compares masks; a conversation of this name is refused without marks.
fn compare_masks(golden: &str, lost: Option<&str>) {
    let golden = Golden::open(golden);
    let tokenizer = golden.tokenizer();
    let mut compared = 0;
    for case in golden.cases().iter().filter(|case| case.get("tokens").is_some()) {
        let want: Vec<(usize, usize)> = serde_json::from_value(case["tokens"].clone()).unwrap();
        let want: Vec<Range<usize>> = want.into_iter().map(|(first, last)| first..last).collect();
        for template in [&golden.marked, &golden.plain] {
            let maker = |mask| ExampleMaker::new(&tokenizer, Some(template), 1 << 20, mask);
            if lost == case["name"].as_str() && !template.marks_assistant() {
                let line = example(&maker(Mask::All), chat(case, 0)).unwrap_err();
                assert!(line.contains("its place can't be told"), "{line}");
                continue;
            }
            let example = |mask, given| example(&maker(mask), chat(case, given)).unwrap();
            let place = format!("{}, marked: {}", case["name"], template.marks_assistant());
            let all = example(Mask::All, 0);
            assert_eq!(all.ids.len() as u64, case["count"].as_u64().unwrap(), "{place}");
            assert_eq!(runs(&all.loss), want, "{place}");
            assert_eq!(runs(&example(Mask::Last, 0).loss), want[want.len().saturating_sub(1)..], "{place}");
            let given = case["messages"].as_array().unwrap().len() - 1;
            let spoken = want.len().saturating_sub(1);
            let last_is_assistant = case["messages"][given]["role"] == "assistant";
            let after = if last_is_assistant { &want[spoken..] } else { &[] };
            assert_eq!(runs(&example(Mask::All, given).loss), after, "{place}");
            assert!(example(Mask::None, 0).loss[1..].iter().all(|&on| on));
            compared += want.len();
        }
    }
    assert!(compared > 10, "{compared}");
}

macro_rules! models {
    ($($test:ident, $masks:ident: $file:literal $(, $lost:literal)?;)*) => {$(
        #[test]
        fn $test() {
            compare_text(include_str!(concat!("templates/", $file, ".json")));
        }

        #[test]
        fn $masks() {
            compare_masks(include_str!(concat!("templates/", $file, ".json")), None$(.or(Some($lost)))?);
        }
    )*};
}

models! {
    smollm2_conversations_are_written_alike, smollm2_answers_are_found_where_transformers_marks_them: "smollm2";
    qwen2_5_conversations_are_written_alike, qwen2_5_answers_are_found_where_transformers_marks_them: "qwen2_5";
    qwen3_conversations_are_written_alike, qwen3_answers_are_found_where_transformers_marks_them: "qwen3";
    llama3_conversations_are_written_alike, llama3_answers_are_found_where_transformers_marks_them: "llama3_2";
    gemma3_conversations_are_written_alike, gemma3_answers_are_found_where_transformers_marks_them: "gemma3";
    // It moves the system's words to the last question, whichever that is, and leaves the content beside a call out.
    mistral_conversations_are_written_alike, mistral_answers_are_found_where_transformers_marks_them: "mistral_nemo", "tools";
}

#[test]
fn an_answer_whose_place_can_not_be_told_is_refused_by_its_number() {
    let golden = Golden::open(include_str!("templates/smollm2.json"));
    let tokenizer = golden.tokenizer();
    // What it writes first depends on what comes last, and no content is in it.
    let source = "{{ messages | length }}{% for m in messages %}{{ m.role }}{% endfor %}";
    let template = ChatTemplate::new(source).unwrap();
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"},
        {"role": "user", "content": "b"}]);
    let record = Record::Chat(Chat { messages: messages.as_array().unwrap().clone(), tools: None, given: 0 });
    let maker = ExampleMaker::new(&tokenizer, Some(&template), 100, Mask::All);
    let line = maker.examples(&record, &mut |_| {}).unwrap_err().to_string();
    assert!(line.contains("message 2") && line.contains("--mask-prompt none"), "{line}");
}
