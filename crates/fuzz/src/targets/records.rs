//! JSON Lines of records.

use pocketune_text::Records;

use super::{JSON, Target, accepted};
use crate::seeds::Seed;

pub const TARGET: Target = Target { name: "records", run, seeds, words: JSON };

fn run(bytes: &[u8]) -> bool {
    // Reading goes on after a bad line.
    Records::new(bytes).map(accepted).filter(Option::is_none).count() == 0
}

fn seeds() -> Vec<Seed> {
    vec![
        Seed::common("{\"text\": \"a b\"}\n{\"text\": \"\\u00e9\\n\"}\n"),
        Seed::common(
            "\u{FEFF}{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\r\n\n",
        ),
        Seed::common(
            r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}], "n": [1, -2.5, null, true]}]}"#,
        ),
    ]
}
