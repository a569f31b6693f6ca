//! Templates that were written to take a machine down are refused in one line, in little time; what they abuse works in moderation.
//! Template injection (CVE-2024-34359) and template bombs (minijinja#924) are among them.

use pocketune_text::{ChatTemplate, Ends};
use serde_json::json;
use std::time::{Duration, Instant};

fn render(source: &str) -> Result<String, String> {
    let messages = json!([{"role": "user", "content": "abc"}, {"role": "assistant", "content": "d\ne"}]);
    let template = ChatTemplate::new(source).map_err(|error| error.to_string())?;
    let (messages, ends) = (messages.as_array().unwrap(), Ends { bos: "<s>", eos: "</s>" });
    template.render(messages, None, true, ends).map(|rendered| rendered.text).map_err(|error| error.to_string())
}

const TOO_MUCH: &str = "it makes more of these messages than any chat template has a use for";

/// A loop around `body`, in which `ns.x` is kept from turn to turn.
fn each_turn(turns: usize, body: &str) -> String {
    format!("{{% set ns = namespace(x='ab', l=[1]) %}}{{% for i in range({turns}) %}}{body}{{% endfor %}}")
}

#[test]
fn bombs_are_stopped_in_little_time() {
    let cases = [
        (each_turn(60, "{% set ns.x = ns.x ~ ns.x %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.x = ns.x + ns.x %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.x = ns.x * 8 %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.x = ns.x | replace('a', 'aaaaaaaaab') %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.x = ns.x.replace('a', 'aaaaaaaaab') %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.x = [ns.x, ns.x, ns.x] | join(ns.x) %}"), TOO_MUCH),
        (each_turn(60, "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}"), TOO_MUCH),
        (each_turn(60, "{% set ns.l = [ns.l, ns.l] %}") + "{{ ns.l }}", TOO_MUCH),
        (each_turn(60, "{% set ns.l = ns.l + ns.l %}") + "{{ ns.l | list | length }}", TOO_MUCH),
        (each_turn(60, "{% set ns.l = ns.l + ns.l %}") + "{{ ns.l == ns.l }}", TOO_MUCH),
        (each_turn(99_999, "{% set ns.l = [ns.l] %}"), "a value in it nests too deep"),
        (each_turn(99_999, "{% set ns.l = {'a': ns.l} %}"), "a value in it nests too deep"),
        (each_turn(2, "{% set ns.l = ns %}"), "a namespace is kept in a namespace"),
        (each_turn(2, "{% set ns.l = [[ns]] %}"), "a namespace is kept in a namespace"),
        ("{{ 'x' * 99999999 }}".into(), TOO_MUCH),
        ("{{ 99999999 * 'x' }}".into(), TOO_MUCH),
        ("{{ [1] * 99999999 }}".into(), "only numbers and texts can be multiplied"),
        ("{% for a in range(99999) %}0123456789012345678901234567890123456789012345678901234567890123{% endfor %}".into(), TOO_MUCH),
        ("{% set x %}{% for a in range(99999) %}012345678901234567890123456789012345678901234567890123{% endfor %}{% endset %}".into(), TOO_MUCH),
        (each_turn(99_999, &"{% set x = i %}".repeat(50)), "out of fuel"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(), "recursion limit"),
        ("{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(), "recursion limit"),
        ("{{ 'a\nb' | indent(99999999) }}".into(), "indent takes at most 64 columns"),
        ("{{ messages | batch(99999999, 'x') }}".into(), "unknown filter: filter batch is unknown"),
        ("{{ '%99999999s' | format('x') }}".into(), "unknown filter: filter format is unknown"),
        ("{{ 'x'.format(1) }}".into(), "unknown method"),
        ("{{ 'x'.center(99999999) }}".into(), "unknown method"),
        ("{{ range(999999999) }}".into(), "range has too many elements"),
        ("{{ 9999999999999 * 9999999999999 * 9999999999999 * 9999999999999 }}".into(), "a product is too large"),
        ("{{ 9 ** 999999999 }}".into(), "unable to calculate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}".into(), "undefined"),
        ("{% macro __joined(a, b) %}{% endmacro %}".into(), "a name in it begins with two underscores"),
        ("{% set __weighed = 1 %}".into(), "a name in it begins with two underscores"),
        ("{{ __text(0) }}".into(), "a name in it begins with two underscores"),
        ("{% include 'chat' %}".into(), "it has a tag for web pages"),
        ("{% extends 'chat' %}".into(), "it has a tag for web pages"),
        ("{% import 'chat' as c %}".into(), "it has a tag for web pages"),
        ("{{ lipsum(9999) }}".into(), "unknown function"),
        ("{{ strftime_now('%Q') }}".into(), "strftime_now does not know %Q"),
        (format!("{}1{}", "{{ ".to_owned() + &"(".repeat(9999), ")".repeat(9999)), "template exceeds maximum recursion"),
        ("{% if %}".into(), "syntax error"),
        (" ".repeat((1 << 17) + 1), "the chat template is larger than the limit of 131072 bytes"),
    ];
    let mut faults = Vec::new();
    for (source, sentence) in cases {
        let start = Instant::now();
        let line = render(&source).expect_err(&source);
        assert!(start.elapsed() < Duration::from_secs(5), "{source}: {:?}", start.elapsed());
        if !line.contains(sentence) || line.contains('\n') {
            faults.push(format!("{}: {line}", source.chars().take(100).collect::<String>()));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn what_bombs_abuse_works_in_moderation() {
    let cases = [
        (each_turn(3, "{% set ns.x = ns.x ~ i %}") + "{{ ns.x }}", "ab012"),
        (each_turn(3, "{% set ns.l = ns.l + [i] %}") + "{{ ns.l }}", "[1, 0, 1, 2]"),
        ("{{ 'ab' * 2 }}{{ 2 * 3 }}{{ 1.5 * 2 }}{{ -3 * 2 }}".into(), "abab63.0-6"),
        ("{{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ 6 / 4 }} {{ 5 - 7 }} {{ 1 < 2 <= 2 }}".into(), "3 3 8 1.5 -2 True"),
        ("{{ messages | map(attribute='role') | join(', ') }}".into(), "user, assistant"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}".into(), "1"),
        ("{% for m in messages[::-1] %}{{ loop.index0 ~ m.role[:2] ~ m['content'].split('\\n')[-1] }};{% endfor %}".into(), "0ase;1usabc;"),
        ("{{ ''[::-1] ~ 'abc'[::-1] ~ [][::-1] ~ 'abc'[::-9223372036854775807] ~ ''[::-9223372036854775807] }}".into(), "cba[]c"),
        ("{% set t %}x{{ messages[0].content | upper }}{% endset %}{{ t | trim | replace('X', 'y') }}".into(), "xABC"),
        ("{% macro f(a, b='z') %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}{{ f(1) }}{% call f(2, b=3) %}!{% endcall %}".into(), "1z23!"),
        ("{{ 'in' if 'b' in messages[0].content and messages[0].x is not defined else 'out' }}".into(), "in"),
        ("{%- if not tools %} a {%- elif 1 %}b{% else %}c{% endif -%}\n d".into(), " ad"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}{% set a, b = (1, 2) %}{{ b }}{{ {'k': [True, None, 'q\"\\'\\n']}['k'] }}".into(), "AB2[True, None, 'q\"\\'\\n']"),
        ("{{ 'a\nb' | indent(2) }}|{{ messages[1].content.splitlines() | length }}|{{ messages[0].get('role', 1) }}".into(), "a\n  b|2|user"),
    ];
    let wrong = cases.into_iter().filter_map(|(source, expected)| {
        let found = render(&source);
        let wrong = found.as_deref() != Ok(expected);
        wrong.then_some((source, expected, found))
    });
    assert_eq!(wrong.collect::<Vec<_>>(), []);
}

#[test]
fn a_long_conversation_is_no_bomb() {
    let golden: serde_json::Value = serde_json::from_str(include_str!("templates/qwen2_5.json")).unwrap();
    let template = ChatTemplate::new(golden["template"].as_str().unwrap()).unwrap();
    for (turns, words) in [(2_000, 10), (2, 100_000), (300, 1_000)] {
        let content = "word ".repeat(words);
        let messages: Vec<_> = (0..turns)
            .map(|i| json!({"role": if i % 2 == 0 { "user" } else { "assistant" }, "content": content}))
            .collect();
        let text = template.render(&messages, None, false, Ends { bos: "", eos: "" }).unwrap().text;
        assert!(text.len() > turns * words * 5);
    }
}
