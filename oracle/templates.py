"""Makes the goldens of crates/text/tests/templates: what transformers' apply_chat_template writes for real templates.

    python oracle/templates.py FOLDER crates/text/tests/templates

FOLDER holds one folder for each model with its tokenizer_config.json. Each golden has the template itself, the texts of
the two ends, and for each conversation the output or the refusal. The day is fixed to 26 July 2024, as in the engine.
"""

import datetime
import json
import pathlib
import sys

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
}


class FixedDay(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def token_text(token):
    return (token["content"] if isinstance(token, dict) else token) or ""


def golden(config):
    bos, eos = token_text(config.get("bos_token")), token_text(config.get("eos_token"))
    cases = []
    for name, messages in CONVERSATIONS.items():
        for prompt in (True, False):
            case = {"name": name, "messages": messages, "add_generation_prompt": prompt}
            try:
                rendered, _ = templates.render_jinja_template(
                    [messages], chat_template=config["chat_template"], add_generation_prompt=prompt, bos_token=bos, eos_token=eos
                )
                case["output"] = rendered[0]
            except Exception as error:  # raise_exception in the template
                case["refusal"] = str(error)
            cases.append(case)
    return {"template": config["chat_template"], "bos": bos, "eos": eos, "cases": cases}


def main():
    templates.datetime = FixedDay
    source, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*/tokenizer_config.json")):
        config = json.loads(path.read_text(encoding="utf-8"))
        if "chat_template" in config:
            text = json.dumps(golden(config), ensure_ascii=False, indent=1)
            (out / f"{path.parent.name}.json").write_text(text + "\n", encoding="utf-8")
            print(path.parent.name, len(text))


if __name__ == "__main__":
    main()
