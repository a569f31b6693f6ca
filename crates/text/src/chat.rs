//! Chat templates: the Jinja text that turns messages into the model's own format, run as `transformers` runs it. A
//! template is a stranger's program, so its steps, its depth and all that it makes are bounded, and it sees nothing but the
//! messages. It refuses to read the clock: `strftime_now` answers with a fixed day, because a training run must not
//! depend on the day it is started.

mod rewrite;
mod work;

use crate::error::{Result, TextError};
use crate::hf_folder;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, ErrorKind, Value, context};
use pocketune_formats::Gguf;
use pocketune_formats::folder::Folder;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::{self, Write};

/// Steps that a template may take; the longest real ones take some hundred for each message.
const FUEL: u64 = 4_000_000;

/// How deep macros, loops and includes may nest.
const MAX_DEPTH: usize = 100;

/// The largest template text; the longest known have some 20 kilobytes.
const MAX_SOURCE: usize = 1 << 17;

/// The name under which the only template of an environment is kept.
const NAME: &str = "chat";

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
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
        let template = rewrite::rewrite(&without_generation_tags(source), syntax).map_err(template_error)?;
        environment.set_fuel(Some(FUEL));
        environment.set_recursion_limit(MAX_DEPTH);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        work::add_filter(&mut environment, "tojson", Value::from_function(to_json), work::Price::Written);
        work::add_template(&mut environment, NAME, template).map_err(template_error)?;
        Ok(Self { environment })
    }

    /// Looks for the template of a Hugging Face folder: chat_template.jinja, else tokenizer_config.json.
    pub fn from_folder(folder: &Folder) -> Result<Option<Self>> {
        if let Some(source) = hf_folder::text(folder, "chat_template.jinja")? {
            return Self::new(&source).map(Some);
        }
        let Some(file) = hf_folder::tokenizer_config(folder)? else { return Ok(None) };
        let what = "tokenizer_config.json";
        let config: ConfigJson = hf_folder::parse(what, file.bytes())?;
        match hf_folder::field(what, config.chat_template)? {
            None => Ok(None),
            Some(TemplatesJson::One(source)) => Self::new(&source).map(Some),
            Some(TemplatesJson::Named(templates)) => {
                let default = templates.into_iter().find(|named| named.name == "default");
                default.map(|named| Self::new(&named.template)).transpose()
            }
        }
    }

    /// Takes the template of a GGUF file.
    pub fn from_gguf(gguf: &Gguf) -> Result<Option<Self>> {
        gguf.meta().get_str("tokenizer.chat_template")?.map(Self::new).transpose()
    }

    /// Renders messages, as `apply_chat_template` does. `bos` and `eos` are the texts of the tokens that begin and end a
    /// text, empty where the model has none.
    pub fn render(
        &self,
        messages: &serde_json::Value,
        add_generation_prompt: bool,
        bos: &str,
        eos: &str,
    ) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(template_error)?;
        let context = context! {
            messages => from_json(messages),
            tools => (),
            documents => (),
            add_generation_prompt,
            bos_token => bos,
            eos_token => eos,
        };
        work::begin(json_bytes(messages) + bos.len() + eos.len());
        template.render(context).map_err(template_error)
    }
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

/// Turns `{% generation %}` … `{% endgeneration %}`, by which `transformers` marks the assistant's words, into blocks that
/// change nothing.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (tag, after) = rest[start..].split_at(len);
        out.push_str(&rest[..start]);
        match tag.trim_start_matches("{%").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
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
        let messages = json!([{"role": "user", "content": "<a> é"}]);
        ChatTemplate::new(source)?.render(&messages, true, "<s>", "</s>")
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
    fn generation_marks_change_nothing() {
        assert_eq!(render("a{%- generation -%} b {% endgeneration %}c").unwrap(), "ab c");
    }
}
