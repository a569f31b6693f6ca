//! Patterns of a tokenizer, run in linear time. A regular expression from a file goes to the `regex` engine, which never
//! backtracks. The one look-ahead that tokenizers rely on, `\s+(?!\S)|\s+` at the end of the pattern, is emulated: a run
//! of whitespace gives its last character back when a non-space follows. It refuses every other construct that the
//! engine lacks, and those that it would read differently from the tokenizer's own engine.

use crate::error::{Result, TextError};
use regex_automata::meta::Regex;
use regex_automata::{Input, util::syntax};

/// Bytes that a compiled pattern may take; the real ones need a few hundred kilobytes.
const MAX_COMPILED: usize = 2 << 20;

/// The longest pattern; the longest known has some 200 characters. A class of Unicode takes a thousand times its name.
const MAX_SOURCE: usize = 1 << 11;

/// Bytes that the engine may spend on states it caches while searching.
const MAX_CACHE: usize = 1 << 20;

/// The ways in which files spell "whitespace, but leave the last character to a word that follows".
const GIVE_BACK_TAILS: [&str; 2] = [r"\s+(?!\S)|\s+", r"\s+(?!\S)|\s"];

/// A compiled pattern.
pub(crate) struct Pattern {
    regex: Regex,
    /// Whether the second pattern of `regex` is whitespace that gives its last character back.
    gives_back: bool,
    /// Bytes of the shortest match; at least 1.
    shortest: usize,
}

impl Pattern {
    /// Compiles a regular expression of a tokenizer file.
    pub fn regex(source: &str) -> Result<Self> {
        for tail in GIVE_BACK_TAILS {
            let Some(head) = source.strip_suffix(tail) else { continue };
            return match head.strip_suffix('|') {
                Some(head) => Self::compile(source, &[head, r"\s+"], true),
                None if head.is_empty() => Self::compile(source, &[r"[^\s\S]", r"\s+"], true),
                None => Err(refused(source, "its look-ahead is not a branch of its own")),
            };
        }
        Self::compile(source, &[source], false)
    }

    /// Compiles a pattern that matches exactly this text.
    pub fn literal(text: &str) -> Result<Self> {
        let escaped: String = text.chars().map(|c| format!("\\x{{{:X}}}", u32::from(c))).collect();
        Self::compile(text, &[&escaped], false)
    }

    fn compile(source: &str, parts: &[&str], gives_back: bool) -> Result<Self> {
        let mut shortest = usize::MAX;
        if source.len() > MAX_SOURCE {
            return Err(refused(
                source,
                &format!("it has {} bytes, where at most {MAX_SOURCE} are read", source.len()),
            ));
        }
        for part in parts {
            refuse_other_dialects(source, part)?;
            let hir = syntax::parse(part).map_err(|error| refused(source, &last_line(&error.to_string())))?;
            // A part that matches nothing at all has no shortest match.
            shortest = shortest.min(hir.properties().minimum_len().unwrap_or(usize::MAX));
            if shortest == 0 {
                return Err(refused(source, "it matches the empty text"));
            }
        }
        let config = Regex::config().nfa_size_limit(Some(MAX_COMPILED)).hybrid_cache_capacity(MAX_CACHE);
        let regex = Regex::builder().configure(config).build_many(parts);
        let regex = regex.map_err(|error| refused(source, &last_line(&error.to_string())))?;
        Ok(Self { regex, gives_back, shortest })
    }

    /// The first match that begins at or after `at`, as (start, end).
    pub fn find(&self, text: &str, at: usize) -> Option<(usize, usize)> {
        let found = self.regex.find(Input::new(text).range(at..))?;
        let (start, mut end) = (found.start(), found.end());
        if self.gives_back && found.pattern().as_usize() == 1 && end < text.len() {
            // The run is as long as it can be, so what follows is not a space.
            let last = text[start..end].chars().next_back().map_or(0, char::len_utf8);
            if last < end - start {
                end -= last;
            }
        }
        Some((start, end))
    }

    /// Bytes of the shortest match; at least 1.
    pub fn shortest(&self) -> usize {
        self.shortest
    }

    /// Bytes of the compiled form.
    pub fn compiled_bytes(&self) -> usize {
        self.regex.memory_usage()
    }

    /// Bytes held on the heap, with the cache at its fullest.
    pub fn heap_bytes(&self) -> usize {
        self.regex.memory_usage() + MAX_CACHE
    }
}

fn refused(pattern: &str, reason: &str) -> TextError {
    const SHOWN: usize = 120;
    let mut shown: String = pattern.chars().take(SHOWN).collect();
    if shown.len() < pattern.len() {
        shown.push('…');
    }
    TextError::Pattern { pattern: shown, reason: reason.to_owned() }
}

/// Engine errors draw the pattern over several lines; the last one says what is wrong.
fn last_line(message: &str) -> String {
    message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// Constructs that parse here but mean something else in the engines tokenizers are written for.
fn refuse_other_dialects(source: &str, part: &str) -> Result<()> {
    let mut depth = 0usize;
    let mut before = ' ';
    let mut chars = part.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                // The braces of `\p{L}` or `\x{41}` belong to the escape.
                if matches!(chars.next(), Some('p' | 'P' | 'x' | 'u' | 'U')) && chars.peek() == Some(&'{') {
                    chars.find(|&c| c == '}');
                }
                before = '\\';
                continue;
            }
            '[' if depth > 0 && chars.peek() == Some(&':') => {
                return Err(refused(source, "POSIX classes differ between engines"));
            }
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            '+' if depth == 0 && matches!(before, '?' | '*' | '+' | '}') => {
                return Err(refused(source, "possessive repetition needs a backtracking engine"));
            }
            '^' | '$' if depth == 0 => return Err(refused(source, "line anchors differ between engines")),
            _ => {}
        }
        before = c;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pattern: &str, text: &str) -> Vec<String> {
        let pattern = Pattern::regex(pattern).unwrap();
        let (mut at, mut found) = (0, Vec::new());
        while let Some((start, end)) = pattern.find(text, at) {
            found.push(text[start..end].to_owned());
            at = end;
        }
        found
    }

    #[test]
    fn a_run_of_spaces_gives_its_last_one_to_the_word_that_follows() {
        let pattern = r" ?\p{L}+|\s+(?!\S)|\s+";
        assert_eq!(all(pattern, "a   b c  "), ["a", "  ", " b", " c", "  "]);
        assert_eq!(all(pattern, "a\n b\u{3000}\u{3000}1"), ["a", "\n", " b", "\u{3000}", "\u{3000}"]);
    }

    #[test]
    fn patterns_that_need_backtracking_or_mean_something_else_are_refused() {
        for pattern in
            [r"(?=a)b", r"(a)\1", r"\p{N}{1,3}+", r"[^\r\n]?+\p{L}+", r"x*", r"^a", r"[[:alpha:]]", r"a{1000}{1000}{9}"]
        {
            let line = Pattern::regex(pattern).err().map(|error| error.to_string());
            assert!(
                line.as_deref().is_some_and(|line| line.contains("not supported") && !line.contains('\n')),
                "{line:?}"
            );
        }
    }

    #[test]
    fn a_literal_is_taken_at_its_word() {
        let pattern = Pattern::literal(".*▁").unwrap();
        assert_eq!(pattern.find("abc.*▁", 0), Some((3, 8)));
        assert_eq!(pattern.find("abc▁", 0), None);
    }
}
