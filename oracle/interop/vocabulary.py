"""Vocabularies in llama.cpp, through llama-cpp-python.

    vocabulary.py make TOKENIZER FOLDER   a Hugging Face folder with the tokenizer of the folder TOKENIZER and next to no model around it
    vocabulary.py ids MODEL [FORM] < lines   the token numbers of each line's text, by the vocabulary of a GGUF file, special tokens seen as such;
                                          the text is brought to the Unicode form FORM first, which llama.cpp leaves to its caller
"""

import json
import shutil
import sys
import unicodedata
from pathlib import Path

import numpy as np

HIDDEN = 32


def make(tokenizer, folder):
    from safetensors.numpy import save_file

    folder.mkdir()
    for file in tokenizer.glob("tokenizer*.json"):
        shutil.copy(file, folder)
    content = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = 1 + max([*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"])])
    config = dict(
        model_type="llama", hidden_size=HIDDEN, intermediate_size=HIDDEN, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, vocab_size=vocab, rms_norm_eps=1e-5, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    layer = "model.layers.0."
    square = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    tensors = {f"{layer}{name}.weight": np.zeros((HIDDEN, HIDDEN), np.float32) for name in square}
    norms = [f"{layer}input_layernorm", f"{layer}post_attention_layernorm", "model.norm"]
    tensors |= {f"{name}.weight": np.ones(HIDDEN, np.float32) for name in norms}
    tensors["model.embed_tokens.weight"] = np.zeros((vocab, HIDDEN), np.float32)
    save_file(tensors, folder / "model.safetensors")


def ids(model, form=None):
    import llama_cpp

    llama = llama_cpp.Llama(str(model), vocab_only=True, verbose=False)
    for line in sys.stdin:
        text = json.loads(line)["text"]
        if form:
            text = unicodedata.normalize(str(form), text)
        print(json.dumps(llama.tokenize(text.encode(), add_bos=False, special=True), separators=(",", ":")))


if __name__ == "__main__":
    {"make": make, "ids": ids}[sys.argv[1]](*map(Path, sys.argv[2:]))
