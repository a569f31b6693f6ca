//! Chat templates: the Jinja text that turns messages into the model's own format, run as `transformers` runs it. A
//! template is a stranger's program, so its steps, its depth and all that it makes are bounded, and it sees nothing but the
//! messages. It refuses to read the clock: `strftime_now` answers with a fixed day, because a training run must not
//! depend on the day it is started.

mod rewrite;
mod slices;
mod work;

use crate::error::{Result, TextError};
use crate::hf_folder;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, State, Value, context};
use pocketune_formats::Gguf;
use pocketune_formats::folder::Folder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::Path;

/// Steps that a template may take; the longest real ones take some hundred for each message.
const FUEL: u64 = 4_000_000;

/// How deep macros, loops and includes may nest.
const MAX_DEPTH: usize = 100;

/// The largest template text; the longest known have some 20 kilobytes.
const MAX_SOURCE: usize = 1 << 17;

/// The name under which the only template of an environment is kept.
const NAME: &str = "chat";

/// Around what a template says the assistant writes. They are no characters, so that a text that has them is refused.
const MARKS: [char; 2] = ['\u{FDD0}', '\u{FDD1}'];

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// As it was given.
    given: String,
    marks_assistant: bool,
}

/// The texts of the tokens that begin and end a text, empty where the model has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends<'a> {
    /// Begins.
    pub bos: &'a str,
    /// Ends.
    pub eos: &'a str,
}

/// What a template wrote.
#[derive(Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where the template itself says that the assistant's words are, by `{% generation %}`.
    pub marked: Vec<Range<usize>>,
}

/// The field of tokenizer_config.json, not yet parsed.
#[derive(Deserialize)]
struct ConfigJson<'a> {
    #[serde(borrow)]
    chat_template: Option<&'a RawValue>,
}

/// One template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
enum TemplatesJson {
    One(String),
    Named(Vec<NamedJson>),
}

#[derive(Deserialize)]
struct NamedJson {
    name: String,
    template: String,
}

impl ChatTemplate {
    /// Compiles a template.
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(TextError::TooLarge { what: "the chat template".into(), limit: MAX_SOURCE as u64 });
        }
        let mut environment = work::environment();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(template_error)?;
        let given = source.to_string();
        let (source, marks_assistant) = with_generation_calls(source);
        let template = rewrite::rewrite(&source, syntax).map_err(template_error)?;
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_function("marked_generation", marked_generation);
        work::add_filter(&mut environment, "tojson", Value::from_function(to_json), work::Price::Written);
        work::add_template(&mut environment, NAME, template).map_err(template_error)?;
        Ok(Self { environment, given, marks_assistant })
    }

    /// Looks for the template of a Hugging Face folder: chat_template.jinja, else tokenizer_config.json.
    pub fn from_folder(folder: &Folder) -> Result<Option<Self>> {
        Self::source_in(folder)?.map(|source| Self::new(&source)).transpose()
    }

    /// The text of the template of a Hugging Face folder.
    pub(crate) fn source_in(folder: &Folder) -> Result<Option<String>> {
        if let Some(source) = hf_folder::text(folder, "chat_template.jinja")? {
            return Ok(Some(source));
        }
        let Some(file) = hf_folder::tokenizer_config(folder)? else { return Ok(None) };
        let what = "tokenizer_config.json";
        let config: ConfigJson = hf_folder::parse(what, file.bytes())?;
        Ok(match hf_folder::field(what, config.chat_template)? {
            None => None,
            Some(TemplatesJson::One(source)) => Some(source),
            Some(TemplatesJson::Named(templates)) => {
                templates.into_iter().find(|named| named.name == "default").map(|named| named.template)
            }
        })
    }

    /// Takes the template of a GGUF file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>> {
        gguf.meta().get_str("tokenizer.chat_template")?.map(Self::new).transpose()
    }

    /// Reads a template from a file of its own.
    pub fn from_file(path: &Path) -> Result<Self> {
        let needed_for = "it was named as the chat template";
        // Opening a FIFO would wait for its writer forever.
        if !path.is_file() {
            return Err(TextError::MissingFile { path: path.into(), needed_for });
        }
        let file = std::fs::File::open(path).map_err(|error| TextError::io(path, error))?;
        let mut source = String::new();
        let read = file.take(MAX_SOURCE as u64 + 1).read_to_string(&mut source);
        read.map_err(|error| TextError::io(path, error))?;
        Self::new(&source)
    }

    /// The template's text, as it was given.
    pub fn into_source(self) -> String {
        self.given
    }

    /// Whether the template marks what the assistant writes.
    pub fn marks_assistant(&self) -> bool {
        self.marks_assistant
    }

    /// Renders messages and tools, as `apply_chat_template` does.
    pub fn render(
        &self,
        messages: &[serde_json::Value],
        tools: Option<&serde_json::Value>,
        add_generation_prompt: bool,
        ends: Ends,
    ) -> Result<Rendered> {
        if self.marks_assistant && messages.iter().chain(tools).any(has_marks) {
            return Err(forged());
        }
        let template = self.environment.get_template(NAME).map_err(template_error)?;
        let context = context! {
            messages => messages.iter().map(from_message).collect::<Value>(),
            tools => tools.map(from_json),
            documents => (),
            add_generation_prompt,
            bos_token => ends.bos,
            eos_token => ends.eos,
        };
        let bytes: usize = messages.iter().chain(tools).map(json_bytes).sum();
        work::begin(bytes + ends.bos.len() + ends.eos.len());
        let text = template.render(context).map_err(template_error)?;
        if self.marks_assistant { taken_out(&text) } else { Ok(Rendered { text, marked: Vec::new() }) }
    }
}

/// Takes the marks out of a text and says where they were.
fn taken_out(text: &str) -> Result<Rendered> {
    let mut rendered = Rendered { text: String::with_capacity(text.len()), marked: Vec::new() };
    let mut open = None;
    for piece in text.split_inclusive(MARKS) {
        let mark = piece.chars().next_back().filter(|c| MARKS.contains(c));
        rendered.text.push_str(mark.map_or(piece, |mark| &piece[..piece.len() - mark.len_utf8()]));
        let at = rendered.text.len();
        match (mark, open) {
            (None, _) => {}
            (Some(mark), None) if mark == MARKS[0] => open = Some(at),
            (Some(mark), Some(start)) if mark == MARKS[1] => {
                rendered.marked.push(start..at);
                open = None;
            }
            _ => return Err(forged()),
        }
    }
    Ok(rendered)
}

/// Whether any text in a value has a character in it that is a mark.
fn has_marks(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains(MARKS),
        serde_json::Value::Array(list) => list.iter().any(has_marks),
        serde_json::Value::Object(map) => map.iter().any(|(key, value)| key.contains(MARKS) || has_marks(value)),
        _ => false,
    }
}

fn forged() -> TextError {
    TextError::Template("a text has U+FDD0 or U+FDD1 in it, by which the assistant's words are marked".into())
}

/// About how many bytes a JSON value has.
fn json_bytes(json: &serde_json::Value) -> usize {
    match json {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(list) => list.iter().map(json_bytes).sum(),
        serde_json::Value::Object(map) => map.iter().map(|(key, value)| key.len() + json_bytes(value)).sum(),
        _ => 8,
    }
}

fn template_error(error: minijinja::Error) -> TextError {
    let mut line = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    TextError::Template(line.replace('\n', " "))
}

/// Turns `{% generation %}` … `{% endgeneration %}`, by which `transformers` marks the assistant's words, into calls that put
/// marks around them; and whether there were any.
fn with_generation_calls(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let (mut rest, mut any) = (source, false);
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (tag, after) = rest[start..].split_at(len);
        out.push_str(&rest[..start]);
        match tag.trim_start_matches("{%").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "call marked_generation()", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endcall", 1)),
            _ => {
                out.push_str(tag);
                rest = after;
                continue;
            }
        }
        (rest, any) = (after, true);
    }
    out.push_str(rest);
    (out, any)
}

/// What a `{% generation %}` block wrote, between marks.
fn marked_generation(state: &mut State, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let caller: Value = options.get("caller")?;
    let text = caller.call(state, &[])?;
    Ok(format!("{}{text}{}", MARKS[0], MARKS[1]))
}

fn raise_exception(message: String) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
}

/// The fixed day, which is also the one that Llama 3's templates fall back to: 26 July 2024, midnight.
fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out.push_str(match chars.next() {
            Some('Y') => "2024",
            Some('y') => "24",
            Some('m') => "07",
            Some('B') => "July",
            Some('b') => "Jul",
            Some('d') => "26",
            Some('A') => "Friday",
            Some('a') => "Fri",
            Some('H' | 'M' | 'S') => "00",
            Some('%') => "%",
            other => {
                let reason = format!("strftime_now does not know %{}", other.unwrap_or(' '));
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, reason));
            }
        });
    }
    Ok(out)
}

/// A message as templates see it. Like `transformers`, thoughts are there by each of the names that templates know them by.
fn from_message(message: &serde_json::Value) -> Value {
    const THOUGHTS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
    let thoughts = THOUGHTS.iter().find_map(|name| message.get(name).filter(|thoughts| !thoughts.is_null()));
    let (Some(thoughts), Some(fields)) = (thoughts, message.as_object()) else { return from_json(message) };
    let mut named = serde_json::Map::new();
    named.insert("thinking".into(), thoughts.clone());
    named.extend(fields.iter().map(|(key, value)| (key.clone(), value.clone())));
    named.insert("reasoning_content".into(), thoughts.clone());
    from_json(&serde_json::Value::Object(named))
}

/// A JSON value as templates see it; a key keeps its place.
fn from_json(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(list) => list.iter().map(from_json).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, json)| (key.as_str(), from_json(json))))
        }
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64()),
        },
    }
}

/// Like `json.dumps(value, ensure_ascii=False, indent=indent)`: a space after each comma and colon, nothing escaped for HTML.
fn to_json(value: &Value, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    options.get::<Option<bool>>("ensure_ascii")?;
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let indent = " ".repeat(width.min(8));
            let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
            value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, OneLine)),
    };
    let failed = |reason: String| minijinja::Error::new(ErrorKind::BadSerialization, reason);
    written.map_err(|error| failed(error.to_string()))?;
    String::from_utf8(out).map_err(|error| failed(error.to_string()))
}

/// Python's default layout of JSON.
struct OneLine;

impl serde_json::ser::Formatter for OneLine {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn render(source: &str) -> Result<String> {
        Ok(rendered(source, "<a> é")?.text)
    }

    fn rendered(source: &str, content: &str) -> Result<Rendered> {
        let messages = [json!({"role": "user", "content": content})];
        ChatTemplate::new(source)?.render(&messages, None, true, Ends { bos: "<s>", eos: "</s>" })
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        assert_eq!(render("{{ messages | tojson }}").unwrap(), r#"[{"role": "user", "content": "<a> é"}]"#);
        assert_eq!(render("{{ [1, {}] | tojson(indent=2) }}").unwrap(), "[\n  1,\n  {}\n]");
    }

    #[test]
    fn a_template_says_in_its_own_words_why_it_refuses() {
        let line = render("{{ raise_exception('roles must alternate') }}").unwrap_err().to_string();
        assert!(line.contains("roles must alternate"), "{line}");
    }

    #[test]
    fn endless_work_and_endless_output_are_stopped() {
        for bomb in [
            "{% for a in range(9999) %}{% for b in range(9999) %}{% set x = a * b %}{% endfor %}{% endfor %}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% for a in range(900) %}{{ 'x' * 1000000 }}{% endfor %}",
        ] {
            assert!(render(bomb).is_err(), "{bomb}");
        }
    }

    #[test]
    fn generation_marks_say_where_they_were_and_change_nothing() {
        let found = rendered("a{%- generation -%} é {% endgeneration %}\nc{% generation %}{% endgeneration %}", "");
        assert_eq!(found.unwrap(), Rendered { text: "aé c".into(), marked: vec![1..4, 5..5] });
        let source = "{% for m in messages %}{% generation %}{{ m.content }}{% if loop.last %}!{% endif %}{% endgeneration %}{% endfor %}";
        let found = rendered(source, "hi").unwrap();
        assert_eq!((found.text.as_str(), found.marked.len(), found.marked[0].clone()), ("hi!", 1, 0..3));
        for forged in ["\u{FDD0}", "a\u{FDD1}b", "\u{FDD1}\u{FDD0}"] {
            assert!(rendered(source, forged).is_err(), "{forged:?}");
        }
    }
}
