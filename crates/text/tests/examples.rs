//! Records become examples: the right tokens around them, cut where asked, the first token never predicted.

use pocketune_formats::folder::Folder;
use pocketune_text::{Chat, ChatTemplate, Cloze, Example, ExampleMaker, Mask, Question, Recipe, Record, Tokenizer};
use serde_json::json;
use std::fs;
use tempfile::TempDir;

fn folder(fixture: &str, config: &serde_json::Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("tokenizer.json"), fixture).unwrap();
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

fn chat(messages: serde_json::Value) -> Record {
    Record::Chat(Chat { messages: messages.as_array().unwrap().clone(), tools: None, given: 0 })
}

/// All examples of a record.
fn all(maker: &ExampleMaker, record: &Record) -> Vec<Example> {
    let mut found = Vec::new();
    maker.examples(record, &mut |example| found.push(example)).unwrap();
    found
}

/// The only example of a record.
fn one(maker: &ExampleMaker, record: &Record) -> Example {
    let mut found = all(maker, record);
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn text(maker: &ExampleMaker, text: &str) -> Example {
    one(maker, &Record::Text(text.into()))
}

fn qwen_like() -> TempDir {
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    let config = json!({"eos_token": "<|im_end|>", "bos_token": null, "chat_template": template});
    folder(include_str!("fixtures/qwen_like.json"), &config)
}

#[test]
fn text_ends_with_the_end_token_once() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let eos = tokenizer.token_id("<|im_end|>").unwrap();
    assert_eq!((tokenizer.eos(), tokenizer.bos()), (Some(eos), None));
    let maker = ExampleMaker::new(&tokenizer, None, 100, Mask::None);
    let example = text(&maker, "the dog");
    assert_eq!(example.ids.last(), Some(&eos));
    assert_eq!(text(&maker, "the dog<|im_end|>"), example);
    assert_eq!(example.loss.iter().filter(|&&on| !on).count(), 1);
    assert!(!example.loss[0]);
    assert_eq!(example.loss.len(), example.ids.len());
}

#[test]
fn a_beginning_token_is_added_to_text_but_not_to_a_rendered_conversation() {
    let config = json!({
        "bos_token": {"content": "<|begin_of_text|>"}, "eos_token": "<|eot_id|>",
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}]
    });
    let folder = folder(include_str!("fixtures/llama3_like.json"), &config);
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let template = ChatTemplate::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().unwrap();
    let maker = ExampleMaker::new(&tokenizer, Some(&template), 100, Mask::None);
    let plain = text(&maker, "the fox");
    let conversation = one(&maker, &chat(json!([{"role": "user", "content": "the fox"}])));
    assert_eq!(Some(plain.ids[0]), tokenizer.bos());
    assert_eq!(plain, conversation);
}

#[test]
fn a_long_example_is_cut_and_says_from_what() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let template = ChatTemplate::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let record = chat(json!([{"role": "user", "content": "fox ".repeat(50)}]));
    let whole = one(&ExampleMaker::new(&tokenizer, template.as_ref(), 1000, Mask::None), &record);
    let cut = one(&ExampleMaker::new(&tokenizer, template.as_ref(), 16, Mask::None), &record);
    assert_eq!(whole.cut_from, None);
    assert_eq!(cut.cut_from, Some(whole.ids.len()));
    assert_eq!((&cut.ids[..], cut.loss.len()), (&whole.ids[..16], 16));
}

#[test]
fn a_long_text_is_cut_into_examples_that_lose_nothing() {
    let config = json!({"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"});
    let folder = folder(include_str!("fixtures/llama3_like.json"), &config);
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let words = "the quick brown fox jumps over the lazy dog. ".repeat(9);
    let whole = text(&ExampleMaker::new(&tokenizer, None, 1000, Mask::None), &words);
    let maker = ExampleMaker::new(&tokenizer, None, 10, Mask::All);
    for last in [true, false] {
        let pieces = all(&maker, &Record::Passage { text: words.clone(), last });
        assert!(pieces.iter().all(|piece| piece.ids.len() <= 10 && Some(piece.ids[0]) == tokenizer.bos()));
        assert!(pieces.iter().all(|piece| piece.loss[1..].iter().all(|&on| on) && !piece.loss[0]));
        let joined: Vec<u32> = pieces.iter().flat_map(|piece| piece.ids[1..].to_vec()).collect();
        assert_eq!(joined, whole.ids[1..whole.ids.len() - usize::from(!last)]);
    }
}

#[test]
fn an_answer_is_a_conversation_where_there_is_a_template_and_else_a_text() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let template = ChatTemplate::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().unwrap();
    let messages = json!([{"role": "user", "content": "the fox:"}, {"role": "assistant", "content": " the dog"}]);
    let conversation = Chat { messages: messages.as_array().unwrap().clone(), tools: None, given: 1 };
    let record = Record::Answer { chat: conversation, prompt: "the fox:".into(), answer: " the dog".into() };
    let with = one(&ExampleMaker::new(&tokenizer, Some(&template), 100, Mask::None), &record);
    assert_eq!(with, one(&ExampleMaker::new(&tokenizer, Some(&template), 100, Mask::None), &chat(messages)));
    let without = one(&ExampleMaker::new(&tokenizer, None, 100, Mask::None), &record);
    assert_eq!(without, text(&ExampleMaker::new(&tokenizer, None, 100, Mask::None), "the fox: the dog"));
    let masked = one(&ExampleMaker::new(&tokenizer, None, 100, Mask::All), &record);
    assert_eq!(masked.ids, without.ids);
    let mut prompt = Vec::new();
    tokenizer.encode("the fox:", true, &mut prompt);
    assert_eq!(masked.loss.iter().filter(|&&on| !on).count(), prompt.len());
    assert!(masked.loss[prompt.len()..].iter().all(|&on| on));
}

#[test]
fn a_conversation_without_a_template_is_refused() {
    let folder = qwen_like();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let record = chat(json!([{"role": "user", "content": "a"}]));
    let maker = ExampleMaker::new(&tokenizer, None, 9, Mask::None);
    let line = maker.examples(&record, &mut |_| {}).unwrap_err().to_string();
    assert!(line.contains("the model has none"), "{line}");
}

#[test]
fn the_end_of_a_text_is_also_found_in_config_json() {
    let folder = folder(include_str!("fixtures/qwen_like.json"), &json!({}));
    let id = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().token_id("<|endoftext|>").unwrap();
    fs::write(folder.path().join("config.json"), json!({"eos_token_id": [id, 3]}).to_string()).unwrap();
    assert_eq!(Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().eos(), Some(id));
}

#[test]
fn a_token_that_is_looked_for_in_normalised_text_is_found_by_its_name() {
    let mut json: serde_json::Value = serde_json::from_str(include_str!("fixtures/qwen_like.json")).unwrap();
    let token = json["added_tokens"].as_array_mut().unwrap().last_mut().unwrap();
    token["normalized"] = true.into();
    let (name, id) = (token["content"].as_str().unwrap().to_string(), token["id"].as_u64().unwrap() as u32);
    let folder = folder(&json.to_string(), &json!({"eos_token": name}));
    assert_eq!(Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap().eos(), Some(id));
}

#[test]
fn masked_prompts_that_are_too_long_are_cut_before_the_mask_and_keep_what_follows_it() {
    let folder = folder(include_str!("../../engine/tests/golden/cloze/tokenizer.json"), &json!({}));
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let cloze = Cloze::new(&tokenizer, Recipe::Sst2).unwrap();
    let prompt = "a warm, funny film, and much too long It was".to_string();
    let question =
        Question { prompt, texts: Vec::new(), choices: vec![" terrible".into(), " great".into()], answer: 1 };
    let choices = |longest: usize| {
        let maker = ExampleMaker::new(&tokenizer, None, longest, Mask::All);
        maker.with_cloze(Some(&cloze)).choices(&question)
    };
    let whole = choices(1000);
    let (before, len) = (tokenizer.before_text().len(), whole[0].ids.len());
    let place = |example: &Example| example.loss.iter().position(|&on| on).unwrap();
    let after = len - place(&whole[0]);
    assert!(after > 1 && len > 12, "{whole:?}");
    for longest in before + after..=len {
        for (number, (cut, whole)) in choices(longest).iter().zip(&whole).enumerate() {
            assert_eq!((cut.ids.len(), cut.cut_from), (longest, (longest < len).then_some(len)));
            assert_eq!((place(cut), cut.ids[place(cut)]), (longest - after, cloze.words[number]));
            assert_eq!(cut.ids[before..], whole.ids[len - longest + before..], "{longest}");
            assert_eq!(cut.loss.iter().filter(|&&on| on).count(), 1);
        }
    }
}

#[test]
fn classes_stand_in_the_place_of_the_first_token_of_what_tokenizers_makes_of_texts() {
    let json = include_str!("../../engine/tests/golden/cloze/tokenizer.json");
    let (folder, plain) = (folder(json, &json!({})), json.parse::<tokenizers::Tokenizer>().unwrap());
    let mut oracle = plain.clone();
    let tokenizer = Tokenizer::from_folder(&Folder::open(folder.path()).unwrap()).unwrap();
    let cloze = Cloze::of_classes(&tokenizer, Recipe::Cb).unwrap();
    assert_eq!((cloze.mask, &cloze.words[..]), (0, &[0, 1, 2][..]));
    let choices: Vec<String> = ["", "", ""].map(String::from).into();
    for texts in [&["the cat sat on the mat"][..], &["the cat sat on the mat", "a cat sat"], &["a", "b cat sat"]] {
        let question = texts.iter().map(|text| (*text).to_string()).collect();
        let question = Question { prompt: String::new(), texts: question, choices: choices.clone(), answer: 1 };
        let mut whole = None;
        for longest in (6..40).rev() {
            oracle
                .with_truncation(Some(tokenizers::TruncationParams { max_length: longest, ..Default::default() }))
                .unwrap();
            // Whole texts, since `encode` stops once it has as many tokens as would be left of either.
            let mut encoded = texts.iter().map(|text| plain.encode(*text, false).unwrap());
            let expected = oracle.post_process(encoded.next().unwrap(), encoded.next(), true);
            let expected = expected.unwrap().get_ids().to_vec();
            let whole = *whole.get_or_insert(expected.len());
            let maker = ExampleMaker::new(&tokenizer, None, longest, Mask::All).with_cloze(Some(&cloze));
            for (class, example) in maker.choices(&question).into_iter().enumerate() {
                assert_eq!((example.ids[0], &example.ids[1..]), (class as u32, &expected[1..]), "{texts:?} {longest}");
                assert!(example.loss.iter().enumerate().all(|(at, &on)| on == (at == 0)));
                assert_eq!(example.cut_from, (longest < whole).then_some(whole));
            }
        }
    }
}
