//! The part of YAML that a configuration needs: `key: value` lines at the margin or one step inside another key, comments, quoted texts, and
//! lists as `[a, b]` or as lines with dashes. It refuses everything else (deeper nesting, anchors, several documents) with its line, so that
//! nothing is read otherwise than a full YAML reader would read it.

/// The most keys, and the most values of all of them; no command has a tenth of it.
const MOST: usize = 1024;

/// A value: one word or text, or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The line, from 1.
    pub line: usize,
    /// The key; `outer.inner` where it stands inside another.
    pub key: String,
    /// The value or values; none where nothing, `null` or `~` stands there.
    pub values: Vec<String>,
}

/// What begins something that is no plain word.
const SIGNS: [char; 12] = ['{', '}', '&', '*', '!', '|', '>', '%', '@', '`', '[', ']'];
const NOT_PLAIN: &str =
    "a mapping, an anchor, a tag or a block; only words, numbers, quoted texts and lists of them are understood here";
const TOO_MANY: &str = "more values than any command has";

/// Reads a configuration; the error is its fault in words, with its line.
pub fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries: Vec<Entry> = Vec::new();
    // Whether the last entry may still get values from lines with dashes.
    let mut open = false;
    // The key that the lines indented so far belong to.
    let mut outer: Option<(String, Option<usize>)> = None;
    let mut values_left = MOST;
    for (number, line) in (1..).zip(text.trim_start_matches('\u{FEFF}').lines()) {
        let fault = |reason: &str| format!("line {number}: {reason}");
        if line.trim().is_empty() || line.trim_start().starts_with('#') || (number == 1 && line.trim_end() == "---") {
            continue;
        }
        if line.contains('\t') && line.trim_start_matches([' ', '\t']).len() < line.len() {
            return Err(fault("YAML is indented with blanks, not with tabs"));
        }
        let content = line.trim_start();
        if let Some(item) = content.strip_prefix("- ") {
            let entry = entries.last_mut().filter(|_| open).ok_or_else(|| fault("a dash without a key before it"))?;
            entry.values.extend(scalar(item).map_err(fault)?);
            values_left = values_left.checked_sub(1).ok_or_else(|| fault(TOO_MANY))?;
            continue;
        }
        let indent = line.len() - content.len();
        let inside = match (&mut outer, indent) {
            (_, 0) => false,
            // The first line inside a key that has no value of its own.
            (Some((key, place @ None)), _) if open && entries.last().is_some_and(|last| last.key == *key) => {
                *place = Some(indent);
                entries.pop();
                true
            }
            (Some((_, Some(place))), _) if *place == indent => true,
            _ => return Err(fault("something indented; options stand at the margin, one a line")),
        };
        let (key, rest) = content.split_once(':').ok_or_else(|| fault("no `key: value`"))?;
        if !(rest.is_empty() || rest.starts_with(' ')) {
            return Err(fault("no blank behind the colon"));
        }
        if key.starts_with(SIGNS) || key.starts_with('?') {
            return Err(fault(NOT_PLAIN));
        }
        let mut key = key.trim_matches(['"', '\'']).to_owned();
        match &outer {
            Some((outer, _)) if inside => key = format!("{outer}.{key}"),
            _ => outer = Some((key.clone(), None)),
        }
        if let Some(before) = entries.iter().find(|entry| entry.key == key) {
            return Err(fault(&format!("`{key}` is there already, in line {}", before.line)));
        }
        if entries.len() == MOST {
            return Err(fault("more keys than any command has"));
        }
        let values = match rest.trim().strip_prefix('[') {
            Some(list) => list_of(list, values_left).map_err(fault)?,
            None => scalar(rest).map_err(fault)?.into_iter().collect(),
        };
        values_left = values_left.saturating_sub(values.len());
        open = values.is_empty();
        entries.push(Entry { line: number, key, values });
    }
    Ok(entries)
}

/// A list that began with `[`, of at most so many values.
fn list_of(text: &str, most: usize) -> Result<Vec<String>, &'static str> {
    let text = without_comment(text);
    let inside = text.trim_end().strip_suffix(']').ok_or("a list ends with `]` on its line")?;
    let items = inside.split(',').filter(|item| !item.trim().is_empty());
    if items.clone().nth(most).is_some() {
        return Err(TOO_MANY);
    }
    Ok(items.map(scalar).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// A word or a quoted text; `None` where there is nothing.
fn scalar(text: &str) -> Result<Option<String>, &'static str> {
    let text = text.trim();
    for quote in ['"', '\''] {
        let Some(inside) = text.strip_prefix(quote) else { continue };
        let end = inside.find(quote).ok_or("a quote without its other end")?;
        let doubled = inside[end + 1..].starts_with(quote);
        if doubled || (quote == '"' && inside[..end].contains('\\')) {
            return Err("quotes and escapes inside a quoted text are not understood here");
        }
        if !without_comment(&inside[end + 1..]).trim().is_empty() {
            return Err("something behind a quoted text");
        }
        return Ok(Some(inside[..end].to_owned()));
    }
    let word = without_comment(text).trim();
    match word {
        "" | "~" | "null" => Ok(None),
        _ if word.starts_with(SIGNS) => Err(NOT_PLAIN),
        _ if word.contains(": ") || word.ends_with(':') => Err("a mapping inside a value"),
        _ => Ok(Some(word.to_owned())),
    }
}

/// A comment begins with ` #`, or with `#` where nothing is before it.
fn without_comment(text: &str) -> &str {
    if text.starts_with('#') { "" } else { text.split(" #").next().unwrap_or_default() }
}

/// A text as YAML: bare where that reads back as the same text, else in quotes.
pub fn written(text: &str) -> String {
    let bare = |c: char| c.is_alphanumeric() || "_./+-%,=".contains(c);
    let plain = !text.is_empty() && text.chars().all(bare) && !text.starts_with(['-', ',', '%', '=']);
    let number = text.parse::<f64>().is_ok();
    match text {
        "~" | "null" | "true" | "false" | "yes" | "no" | "on" | "off" => format!("\"{text}\""),
        _ if plain || number => text.into(),
        _ if text.contains('"') => format!("'{text}'"),
        _ => format!("\"{text}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_texts_and_lists_are_read() {
        let text = "---\n# all\nmodel: m.gguf # here\niters: 5\nsample: \"a # b: c\"\n\nlora_targets: [q_proj, 'v_proj']\nkeys:\n  - a\n- b\nnone: ~\n";
        let found: Vec<(usize, String, Vec<String>)> =
            parse(text).unwrap().into_iter().map(|entry| (entry.line, entry.key, entry.values)).collect();
        let want = [
            (3, "model", vec!["m.gguf"]),
            (4, "iters", vec!["5"]),
            (5, "sample", vec!["a # b: c"]),
            (7, "lora_targets", vec!["q_proj", "v_proj"]),
            (8, "keys", vec!["a", "b"]),
            (11, "none", vec![]),
        ];
        assert_eq!(found.len(), want.len());
        for ((line, key, values), want) in found.iter().zip(want) {
            assert_eq!((*line, key.as_str(), values.iter().map(String::as_str).collect()), want);
        }
    }

    #[test]
    fn keys_inside_a_key_are_read_with_it() {
        let text = "a: 1\nlora:\n  rank: 8\n  keys:\n    - q\n    - v\n  list: [x, y]\nb: 2\n";
        let found: Vec<(String, Vec<String>)> =
            parse(text).unwrap().into_iter().map(|entry| (entry.key, entry.values)).collect();
        let want = [
            ("a", vec!["1"]),
            ("lora.rank", vec!["8"]),
            ("lora.keys", vec!["q", "v"]),
            ("lora.list", vec!["x", "y"]),
            ("b", vec!["2"]),
        ];
        let want: Vec<(String, Vec<String>)> = want
            .into_iter()
            .map(|(key, values)| (key.into(), values.into_iter().map(String::from).collect()))
            .collect();
        assert_eq!(found, want);
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for (text, words) in [
            ("iters 5", "line 1: no `key: value`"),
            ("iters:5", "line 1: no blank"),
            ("a: 1\na: 2", "line 2: `a` is there already, in line 1"),
            ("a: 1\n  b: 8", "line 2: something indented"),
            ("a:\n  b: 8\n    c: 9", "line 3: something indented"),
            ("a:\n  b: 8\n c: 9", "line 3: something indented"),
            ("a:\n  b:\n    c: 9", "line 3: something indented"),
            ("a:\n  b: 8\n  b: 9", "line 3: `a.b` is there already, in line 2"),
            ("a: {b: 1}", "line 1: a mapping"),
            ("a: b: c", "line 1: a mapping"),
            ("a: [1, 2", "line 1: a list ends"),
            ("a: \"b", "line 1: a quote"),
            ("a: \"b\" c", "line 1: something behind"),
            ("a: \"b\\n\"", "line 1: quotes and escapes"),
            ("- a", "line 1: a dash"),
            ("a: *b", "line 1: a mapping, an anchor"),
            ("\ta: b", "line 1: YAML is indented"),
            ("a: [b, [c]]", "line 1: a mapping, an anchor"),
            ("a: [\"b, c]", "line 1: a quote"),
            ("a: |", "line 1: a mapping, an anchor"),
            ("a: >-\n  b", "line 1: a mapping, an anchor"),
            ("a: !!int 5", "line 1: a mapping, an anchor"),
            ("a: &b c", "line 1: a mapping, an anchor"),
            ("%YAML 1.2", "line 1: no `key: value`"),
            ("a: 1\n---\nb: 2", "line 2: no `key: value`"),
            ("a: 1\n...", "line 2: no `key: value`"),
            ("? a\n: b", "line 1: no `key: value`"),
            ("a: 'it''s'", "line 1: quotes and escapes"),
            ("a: @b", "line 1: a mapping, an anchor"),
            ("a: `b`", "line 1: a mapping, an anchor"),
            ("a: b:", "line 1: a mapping inside"),
            ("a: 1\n- b", "line 2: a dash without a key"),
            ("a:\n- b: c", "line 2: a mapping inside"),
            ("a:\n- b\nc: 1\n- d", "line 4: a dash without a key"),
            ("{a: 1}", "line 1: a mapping, an anchor"),
            ("? a: 1", "line 1: a mapping, an anchor"),
            ("[a]: 1", "line 1: a mapping, an anchor"),
            ("a: ]", "line 1: a mapping, an anchor"),
        ] {
            assert!(parse(text).is_err_and(|fault| fault.starts_with(words)), "{text}: {:?}", parse(text));
        }
    }

    #[test]
    fn more_than_any_command_has_is_refused() {
        let keys = |count: usize| (0..count).map(|key| format!("k{key}:\n")).collect::<String>();
        assert_eq!(parse(&keys(MOST)).unwrap().len(), MOST);
        assert_eq!(parse(&keys(MOST + 1)).unwrap_err(), "line 1025: more keys than any command has");
        let list = |count: usize| format!("a: [{}]\n", "b,".repeat(count));
        assert_eq!(parse(&list(MOST)).unwrap()[0].values.len(), MOST);
        assert_eq!(parse(&list(MOST + 1)).unwrap_err(), "line 1: more values than any command has");
        let dashes = |count: usize| format!("a:\n{}", "- b\n".repeat(count));
        assert_eq!(parse(&dashes(MOST)).unwrap()[0].values.len(), MOST);
        assert_eq!(parse(&dashes(MOST + 1)).unwrap_err(), "line 1026: more values than any command has");
    }

    #[test]
    fn what_is_written_reads_back() {
        for text in
            ["5", "1e-4", "-1", "a b", "q,v", "m.gguf", "true", "null", "a: b", "# x", "50%", "say \"hi\"", "-x"]
        {
            let read = parse(&format!("key: {}\n", written(text))).unwrap();
            assert_eq!(read[0].values, [text], "{}", written(text));
        }
    }
}
