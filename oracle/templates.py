"""Makes the goldens of crates/text/tests/templates: what transformers' apply_chat_template writes for real templates.

    python oracle/templates.py FOLDER crates/text/tests/templates

FOLDER holds one folder for each model with its tokenizer_config.json. Each golden has the template itself, the texts of
the two ends, and for each conversation the output or the refusal. The day is fixed to 26 July 2024, as in the engine.

Beside it, `assistant` has what transformers' assistant mask covers in the output, in characters, and as tokens of a small tokenizer.
The models' own templates do not mark the assistant's words; MARKED says how each is changed so that it does: what the assistant
says, up to and with the token that ends its turn. The changed template must write the very same text.
"""

import datetime
import json
import pathlib
import sys

import transformers
import transformers.utils.chat_template_utils as templates

CONVERSATIONS = {
    "one question": [{"role": "user", "content": "What is 2 + 2?"}],
    "system and turns": [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": "Hi <b>there</b> & \"you\"\n"},
        {"role": "assistant", "content": " Hello!  "},
        {"role": "user", "content": "Größe? 東京 😀"},
        {"role": "assistant", "content": "Ja."},
    ],
    "two from the user": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    "empty answer": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}],
    "empty answers and questions": [
        {"role": "user", "content": ""},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": " "},
        {"role": "assistant", "content": "\n\n x \n"},
    ],
    "the same words again": [
        {"role": "user", "content": "yes"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "yes<|im_end|>"},
        {"role": "assistant", "content": "yes"},
    ],
    "emoji and right-to-left": [
        {"role": "system", "content": "עברית ו‏عربي"},
        {"role": "user", "content": "👩‍👩‍👧‍👦 e\u0301 שלום?"},
        {"role": "assistant", "content": "e\u0301🏳️‍🌈 مرحبا \u202eabc\u202c"},
        {"role": "user", "content": "😀"},
        {"role": "assistant", "content": "\u0301 combining first"},
    ],
    "thoughts": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>\nfirst\n</think>\n\none"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "two", "reasoning": "second"},
    ],
    "a very long answer": [
        {"role": "user", "content": "the quick brown fox " * 40},
        {"role": "assistant", "content": "jumps over the lazy dog\n" * 100},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "no"},
    ],
    "tools": [
        {"role": "system", "content": "Use tools."},
        {"role": "user", "content": "Weather in 東京?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "東京", "days": 1}}}
            ],
        },
        {"role": "tool", "name": "weather", "content": "{\"sky\": \"clear\"}", "tool_call_id": "abcdefghi"},
        {"role": "assistant", "content": "Clear."},
        {"role": "user", "content": "Thanks"},
        {"role": "assistant", "content": "Any time."},
    ],
}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city, \"now\" & later",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]

IS_ASSISTANT = "{%- if message.role == 'assistant' %}"


def marked_chatml(writes, before="", after=""):
    """The branch that writes any message, with the assistant's apart."""
    return (
        before
        + IS_ASSISTANT
        + "{{- '<|im_start|>assistant\\n' }}{%- generation %}{{- message.content + '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}"
        + "{%- else %}"
        + writes
        + "{%- endif %}"
        + after
    )


SMOLLM2 = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
QWEN2_5 = "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n    {%- elif message.role == \"assistant\" %}"
QWEN2_5_CALLS = "        {{- '<|im_start|>' + message.role }}\n        {%- if message.content %}\n            {{- '\\n' + message.content }}\n        {%- endif %}"
QWEN_END = "        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}"
QWEN_END_MARKED = "        {{- '<|im_end|>' }}{%- endgeneration %}{{- '\\n' }}\n    {%- elif message.role == \"tool\" %}"
LLAMA = "        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}"
LLAMA_CALL = "        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}\n        {{- '{\"name\": \"' + tool_call.name + '\", ' }}"
LLAMA_CALL_END = "        {{- \"}\" }}\n        {{- \"<|eot_id|>\" }}"

# For each model, what is replaced by what.
MARKED = {
    "smollm2": [
        (
            SMOLLM2,
            "{% if message['role'] == 'assistant' %}{{ '<|im_start|>assistant\n' }}{% generation %}"
            "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}{% else %}" + SMOLLM2 + "{% endif %}",
        )
    ],
    "qwen2_5": [
        (QWEN2_5, marked_chatml(QWEN2_5.split("\n")[0], after="\n" + QWEN2_5.split("\n")[1])),
        (
            QWEN2_5_CALLS,
            "{{- '<|im_start|>assistant\\n' }}{%- generation %}{%- if message.content %}{{- message.content + '\\n' }}{%- endif %}",
        ),
        # The line end before the first call belongs to the prompt for an answer.
        ("{{- '\\n<tool_call>\\n{\"name\": \"' }}", "{%- if not loop.first %}{{- '\\n' }}{%- endif %}{{- '<tool_call>\\n{\"name\": \"' }}"),
        (QWEN_END, QWEN_END_MARKED),
    ],
    "qwen3": [
        (
            "{{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content",
            "{{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{{- '<think>\\n' + reasoning_content",
        ),
        (
            "content.lstrip('\\n') }}\n            {%- else %}",
            "content.lstrip('\\n') }}{{- calls() }}{{- '<|im_end|>' }}{%- endgeneration %}\n            {%- else %}",
        ),
        (
            "                {{- '<|im_start|>' + message.role + '\\n' + content }}",
            "                {{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{{- content }}{{- calls() }}{{- '<|im_end|>' }}{%- endgeneration %}",
        ),
        (
            "            {{- '<|im_start|>' + message.role + '\\n' + content }}",
            "            {{- '<|im_start|>' + message.role + '\\n' }}{%- generation %}{{- content }}{{- calls() }}{{- '<|im_end|>' }}{%- endgeneration %}",
        ),
        ("        {%- if loop.index0 > ns.last_query_index %}", "        {%- macro calls() %}CALLS{%- endmacro %}\n        {%- if loop.index0 > ns.last_query_index %}"),
        ("        {{- '<|im_end|>\\n' }}\n    {%- elif message.role == \"tool\" %}", "        {{- '\\n' }}\n    {%- elif message.role == \"tool\" %}"),
    ],
    "llama3_2": [
        (
            LLAMA,
            IS_ASSISTANT
            + "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}"
            + "{%- endgeneration %}{%- else %}\n"
            + LLAMA
            + "\n{%- endif %}",
        ),
        (LLAMA_CALL, LLAMA_CALL.replace("-}}\n", "-}}{%- generation %}\n", 1)),
        (LLAMA_CALL_END, LLAMA_CALL_END + "{%- endgeneration %}"),
    ],
    "gemma3": [
        (
            "{%- if message['content'] is string -%}\n        {{ message['content'] | trim }}",
            "{%- if role == 'model' -%}{%- generation -%}{{ message['content'] | trim + '<end_of_turn>' }}{%- endgeneration -%}{{ '\n' }}\n"
            "    {%- elif message['content'] is string -%}\n        {{ message['content'] | trim }}",
        ),
        ("    {{ '<end_of_turn>\n' }}", "    {%- if role != 'model' -%}{{ '<end_of_turn>\n' }}{%- endif -%}"),
    ],
    "mistral_nemo": [
        ("        {{- message[\"content\"] + eos_token}}", "        {%- generation %}{{- message[\"content\"] + eos_token}}{%- endgeneration %}"),
        ("        {{- \"[TOOL_CALLS][\" }}", "        {%- generation %}{{- \"[TOOL_CALLS][\" }}"),
        ("        {%- endfor %}\n    {%- elif message[\"role\"] == \"assistant\" %}", "        {%- endfor %}{%- endgeneration %}\n    {%- elif message[\"role\"] == \"assistant\" %}"),
    ],
}


class FixedDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def token_text(token):
    return (token["content"] if isinstance(token, dict) else token) or ""


def marked(name, template):
    """The template with the assistant's words marked."""
    if name == "qwen3":
        # The calls are written inside the marks: their text moves into a macro.
        start = template.index("        {%- if message.tool_calls %}")
        end = template.index("        {{- '<|im_end|>\\n' }}", start)
        calls, template = template[start:end].strip("\n"), template[:start] + template[end:]
    for before, after in MARKED[name]:
        assert template.count(before) == 1 or name == "qwen3", (name, before, template.count(before))
        template = template.replace(before, after, 1)
    return template.replace("CALLS", calls) if name == "qwen3" else template


def render(template, messages, prompt, bos, eos, mask):
    tools = TOOLS if any("tool_calls" in message for message in messages) else None
    rendered, places = templates.render_jinja_template(
        [messages],
        tools=tools,
        chat_template=template,
        add_generation_prompt=prompt,
        return_assistant_tokens_mask=mask,
        bos_token=bos,
        eos_token=eos,
    )
    return rendered[0], places[0] if mask else None


def mask_of(tokenizer, text, places):
    """The tokens that transformers' assistant mask covers, as PreTrainedTokenizerBase.apply_chat_template finds them, in runs."""
    encoded = tokenizer(text, add_special_tokens=False)
    mask = [False] * len(encoded["input_ids"])
    for start, end in places:
        first, last = encoded.char_to_token(0, start), encoded.char_to_token(0, end - 1)
        if first is not None:
            mask[first : last + 1] = [True] * (last + 1 - first)
    edges = [at for at, (a, b) in enumerate(zip([False] + mask, mask + [False])) if a != b]
    return [edges[at : at + 2] for at in range(0, len(edges), 2)], len(mask)


def golden(name, config, tokenizer):
    bos, eos = token_text(config.get("bos_token")), token_text(config.get("eos_token"))
    template = config["chat_template"]
    with_marks = marked(name, template)
    cases = []
    for title, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            case = {"name": title, "messages": messages, "add_generation_prompt": prompt}
            if any("tool_calls" in message for message in messages):
                case["tools"] = TOOLS
            try:
                case["output"], _ = render(template, messages, prompt, bos, eos, False)
            except Exception as error:  # raise_exception in the template
                case["refusal"] = str(error)
            if not prompt and "output" in case:
                text, places = render(with_marks, messages, prompt, bos, eos, True)
                assert text == case["output"], (name, title, text, case["output"])
                case["assistant"] = [text[start:end] for start, end in places]
                case["tokens"], case["count"] = mask_of(tokenizer, text, places)
            cases.append(case)
    return {"template": template, "marked": with_marks, "bos": bos, "eos": eos, "cases": cases}


def main():
    templates.datetime = FixedDay
    source, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    fixtures = out.parent / "fixtures"
    tokenizer_of = {"smollm2": "smollm_like", "qwen2_5": "qwen_like", "qwen3": "qwen_like"}
    tokenizer_of |= {"llama3_2": "llama3_like", "gemma3": "gemma_like", "mistral_nemo": "mistral_like"}
    for name, fixture in tokenizer_of.items():
        config = json.loads((source / name / "tokenizer_config.json").read_text(encoding="utf-8"))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(fixtures / f"{fixture}.json"))
        text = json.dumps(golden(name, config, tokenizer) | {"tokenizer": fixture}, ensure_ascii=False, indent=1)
        (out / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(name, len(text))


if __name__ == "__main__":
    main()
