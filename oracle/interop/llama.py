"""What llama.cpp, through llama-cpp-python, makes of a GGUF model and perhaps a GGUF adapter.

    llama.py MODEL TEXT TOKENS PROMPT LENGTH [ADAPTER]

Prints a line of JSON: the mean loss of the first TOKENS tokens of the file TEXT, and the LENGTH greedy tokens behind PROMPT as text.
"""

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np


def main():
    model, text, count, prompt, length, *adapter = sys.argv[1:]
    weights_as_they_lie()
    count, length = int(count), int(length)
    llama = llama_cpp.Llama(
        model, lora_path=adapter[0] if adapter else None, n_ctx=1024, logits_all=True, verbose=False, n_threads=2
    )
    ids = llama.tokenize(Path(text).read_bytes(), add_bos=False)[:count]
    llama.eval(ids)
    logits = llama.scores[: len(ids)].astype(np.float64)
    top = logits.max(axis=1)
    likelihood = np.log(np.exp(logits - top[:, None]).sum(axis=1)) + top
    loss = np.mean(likelihood[:-1] - logits[np.arange(len(ids) - 1), ids[1:]])
    llama.reset()
    said = []
    new = llama.tokenize(prompt.encode(), add_bos=False)
    while len(said) < length:
        llama.eval(new)
        token = int(np.argmax(llama.scores[llama.n_tokens - 1]))
        if token == llama.token_eos():
            break
        said.append(token)
        new = [token]
    greedy = llama.detokenize(said).decode("utf-8", "replace")
    print(json.dumps({"loss": loss, "tokens": len(ids), "greedy": greedy, "version": llama_cpp.__version__}))


def weights_as_they_lie():
    """Asks for no repacked weights: llama.cpp's AMX kernels for these end in an illegal instruction on some virtual machines."""
    defaults = llama_cpp.llama_model_default_params

    def plain():
        params = defaults()
        params.use_extra_bufts = False
        return params

    llama_cpp.llama_cpp.llama_model_default_params = plain


if __name__ == "__main__":
    main()
