//! Chat templates: compiling one, and rendering a conversation with it.

use pocketune_text::{ChatTemplate, Ends};
use serde_json::json;

use super::{Target, accepted};
use crate::seeds::Seed;

pub const TARGET: Target = Target {
    name: "chat_template",
    run,
    seeds,
    words: &[
        b"{{",
        b"}}",
        b"{%",
        b"%}",
        b"{%- ",
        b" -%}",
        b"{# ",
        b" #}",
        b" ~ ",
        b" * ",
        b" + ",
        b" % ",
        b" ** ",
        b" // ",
        b" - ",
        b"'a'",
        b"[1, 2]",
        b"{'k': 1}",
        b"none",
        b"true",
        b"x",
        b"ns.x",
        b"ns.x ~ ns.x",
        b"namespace(x='a')",
        b"{% set ns = namespace(x='ab') %}",
        b"{% set ns.x = ns.x ~ ns.x %}",
        b"{% set x = [x, x] %}",
        b"{% set x %}",
        b"{% endset %}",
        b"{% for i in range(99999) %}",
        b"{% endfor %}",
        b"{% if x %}",
        b"{% else %}",
        b"{% elif 1 %}",
        b"{% endif %}",
        b"{% macro m(a) %}",
        b"{% endmacro %}",
        b"{{ m(1) }}",
        b"{% call m(1) %}",
        b"{% endcall %}",
        b"{% filter upper %}",
        b"{% endfilter %}",
        b" | tojson(indent=4)",
        b" | trim",
        b" | join('abc')",
        b" | length",
        b" | list",
        b" | map(attribute='role')",
        b" | selectattr('role', 'equalto', 'user')",
        b" | replace('a', 'aaaaaaaa')",
        b" | indent(99999999)",
        b" | default('d')",
        b" | string",
        b" | items",
        b" | dictsort",
        b" | first",
        b" | last",
        b" | safe",
        b" | sort",
        b" | unique",
        b" | batch(99999999, 'x')",
        b".strip()",
        b".split('a')",
        b".replace('a', 'aaaa')",
        b".join(['a', 'b'])",
        b".upper()",
        b".items()",
        b".center(99999999)",
        b"messages",
        b"message.content",
        b"loop.index0",
        b"[::-1]",
        b"[1:]",
        b"[-1]",
        b" in ",
        b" is defined",
        b" is string",
        b" == ",
        b" not ",
        b" and ",
        b"raise_exception('no')",
        b"strftime_now('%d %b %Y')",
        b"999999999999",
        b"recursive",
        b"{{ loop(messages) }}",
        b"{% break %}",
        b"{% continue %}",
        b"{% generation %}",
        b"{% endgeneration %}",
        b"{% include 'chat' %}",
    ],
};

/// Renders a conversation of three messages, with and without a place for the answer.
pub fn exercise(template: &ChatTemplate) {
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is <b>this</b>?\n\n  two", "extra": [1, 2.5, null, {"k": true}]},
        {"role": "assistant", "content": "A test — é.", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
    ]);
    let tools =
        json!([{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "int"}}}}}]);
    for prompt in [true, false] {
        let (tools, ends) = (prompt.then_some(&tools), Ends { bos: "<s>", eos: "</s>" });
        accepted(template.render(messages.as_array().map_or(&[], Vec::as_slice), tools, prompt, ends));
    }
}

fn run(bytes: &[u8]) -> bool {
    let Ok(source) = std::str::from_utf8(bytes) else { return false };
    let Some(template) = accepted(ChatTemplate::new(source)) else { return false };
    exercise(&template);
    true
}

fn seeds() -> Vec<Seed> {
    let golden = |golden: &str| {
        let golden: serde_json::Value = serde_json::from_str(golden).expect("a golden file");
        Seed::common(golden["template"].as_str().unwrap_or_default())
    };
    let mut seeds = vec![
        golden(include_str!("../../../text/tests/templates/smollm2.json")),
        golden(include_str!("../../../text/tests/templates/gemma3.json")),
    ];
    let long = [
        golden(include_str!("../../../text/tests/templates/qwen2_5.json")),
        golden(include_str!("../../../text/tests/templates/llama3_2.json")),
    ];
    seeds.extend(long.map(|seed| Seed::rare(seed.bytes)));
    seeds.extend(
        [
            "{% for m in messages %}<|{{ m.role }}|>{{ m['content'] | trim }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
            "{% set ns = namespace(x='a', n=0) %}{% for m in messages %}{% set ns.x = ns.x ~ m.content %}{% endfor %}{{ ns.x }}",
            "{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{% set t %}{{ f(1) }}{{ f(2, b=3) }}{% endset %}{{ t|upper }}",
            "{{ messages | tojson(indent=2) }}{% for k, v in messages[0].items() %}{{ k ~ '=' ~ v }}{% endfor %}{{ [1, 'a', (2, 3)] }}",
            "{%- for m in messages[1:] | reverse -%}{{ loop.index0 * 2 + 1 }}{{ 'u' if m.role == 'user' else 'o' }}{%- endfor %}",
        ]
        .map(Seed::common),
    );
    seeds
}
