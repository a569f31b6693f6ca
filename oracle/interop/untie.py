"""Gives a Hugging Face folder a head of its own: the embedding with every row a little longer or shorter.

    untie.py FROM TO
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def main():
    source, to = map(Path, sys.argv[1:])
    shutil.copytree(source, to)
    tensors = load_file(to / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    rows = torch.arange(len(table)) % 7
    tensors["lm_head.weight"] = table * (1 + 0.01 * (rows[:, None] - 3))
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    config["tie_word_embeddings"] = False
    (to / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
