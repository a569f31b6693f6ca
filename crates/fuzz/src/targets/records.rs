//! Records of every form: JSON Lines, an array, a table, plain text.

use pocketune_text::{Form, Reading, Records};

use super::{JSON, Target, accepted};
use crate::seeds::Seed;

pub const TARGET: Target = Target { name: "records", run, seeds, words: JSON };

fn run(bytes: &[u8]) -> bool {
    let forms = [Form::Lines, Form::Array, Form::Table(b','), Form::Table(b'\t'), Form::Plain];
    // Reading goes on after a bad line.
    let good = |form| Records::new(bytes, form, Reading::default()).map(accepted).filter(Option::is_none).count() == 0;
    forms.into_iter().filter(|&form| good(form)).count() > 0
}

fn seeds() -> Vec<Seed> {
    vec![
        Seed::common("[{\"prompt\": \"a\", \"completion\": \"b\"},\n {\"instruction\": \"c\", \"output\": \"d\"}]"),
        Seed::common("prompt,completion\r\n\"a \"\"b\"\",\nc\",d\n"),
        Seed::common(
            "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}], \"tools\": \"[]\"}",
        ),
        Seed::common("{\"text\": \"a b\"}\n{\"text\": \"\\u00e9\\n\"}\n"),
        Seed::common(
            "\u{FEFF}{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\r\n\n",
        ),
        Seed::common(
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}], "n": [1, -2.5, null, true]}]}"#,
        ),
    ]
}
