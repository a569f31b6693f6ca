//! A record as tokens, so that a person sees what the loss is taken on: in colour on a terminal, else between marks. What could move the
//! cursor or change a colour is written as an escape.

use std::fmt::Write;

use pocketune_text::{Cloze, Example, Tokenizer};

/// Most tokens that are shown of a record.
const MOST: usize = 400;

/// What is shown of one example.
pub struct Shown<'a> {
    pub tokenizer: &'a Tokenizer,
    pub example: &'a Example,
    pub line: u64,
    pub colour: bool,
    /// How answers are asked for, of a model without a next token.
    pub cloze: Option<&'a Cloze>,
}

impl Shown<'_> {
    /// A line of figures, then the tokens.
    pub fn text(&self) -> String {
        let (ids, loss) = (&self.example.ids, &self.example.loss);
        let counted = loss.iter().filter(|&&on| on).count();
        let mut text = format!("line {}: {} tokens, loss on {counted}", self.line, ids.len());
        if let Some(whole) = self.example.cut_from {
            // Writing to a string does not fail, here and below.
            let _ = write!(text, ", cut from {whole}");
        }
        text.push('\n');
        let mut before = false;
        for (at, (&id, &on)) in ids.iter().zip(loss).take(MOST).enumerate() {
            let shown = |id: u32| visible(&self.tokenizer.decode(&[id], false));
            let piece = match self.cloze.filter(|_| on) {
                Some(cloze) if cloze.classes => format!("{}→{id}", shown(cloze.mask)),
                Some(cloze) => format!("{}→{}", shown(cloze.mask), shown(id)),
                None => shown(id),
            };
            let line_end = if piece.ends_with("\\n") { "\n" } else { "" };
            if self.colour {
                // Two shades of each, so that the borders of tokens are seen.
                let style = match (on, at % 2) {
                    (true, 0) => "30;42",
                    (true, _) => "30;102",
                    (false, 0) => "2",
                    (false, _) => "2;4",
                };
                let _ = write!(text, "\x1b[{style}m{piece}\x1b[0m{line_end}");
            } else {
                let mark = match (before, on) {
                    (false, true) => "⟦",
                    (true, false) => "⟧",
                    _ if at > 0 => "|",
                    _ => "",
                };
                let _ = write!(text, "{mark}{piece}{line_end}");
            }
            before = on;
        }
        if before && !self.colour {
            text.push('⟧');
        }
        if ids.len() > MOST {
            let _ = write!(text, " … and {} more tokens", ids.len() - MOST);
        }
        text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
        text
    }
}

/// Text with every control character, and every character that turns the direction of writing, as an escape.
fn visible(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200E}' | '\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if hidden(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::visible;

    #[test]
    fn nothing_that_is_shown_moves_the_cursor() {
        assert_eq!(visible("a\x1b[2J\n\u{202e}é"), "a\\u{1b}[2J\\n\\u{202e}é");
    }
}
