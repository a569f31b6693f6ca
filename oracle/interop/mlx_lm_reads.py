"""What mlx-lm makes of a Hugging Face folder and perhaps an adapter folder of its own form, on the CPU.

    mlx_lm_reads.py MODEL TEXT TOKENS PROMPT LENGTH [ADAPTER]

Prints a line of JSON: the mean loss of the first TOKENS tokens of the file TEXT, and the LENGTH greedy tokens behind PROMPT as text.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_lm


def main():
    model, text, count, prompt, length, *adapter = sys.argv[1:]
    mx.set_default_device(mx.cpu)
    model, tokenizer = mlx_lm.load(model, adapter_path=adapter[0] if adapter else None)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    ids = encode(Path(text).read_text(encoding="utf-8"))[: int(count)]
    logits = model(mx.array(ids)[None])[0].astype(mx.float32)
    loss = nn.losses.cross_entropy(logits[:-1], mx.array(ids[1:])).mean().item()
    history = encode(prompt)
    start = len(history)
    while len(history) < start + int(length):
        token = mx.argmax(model(mx.array(history)[None])[0, -1]).item()
        if token in tokenizer.eos_token_ids:
            break
        history.append(token)
    greedy = tokenizer.decode(history[start:])
    print(json.dumps({"loss": loss, "tokens": len(ids), "greedy": greedy, "version": version("mlx-lm")}))


if __name__ == "__main__":
    main()
