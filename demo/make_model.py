"""Makes the model that travels inside the program: demo/model.gguf.

A llama of under two million parameters, trained from scratch on the text of corpus.py and written in 4 bits with its tokenizer, so
that `pocketune train` has something to teach before anybody downloads anything. It trains for a fixed number of steps from a fixed
seed on one thread (about ten minutes) and prints what quantisation costs. It refuses, by stopping with an error, a corpus that leaves
tokens of the fine-tuning data untrained, a file over 2 MB, and one that reads back as another model. It is not meant to be a good
model: it knows a few hundred words.
"""

import argparse
import json
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import gguf
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

import corpus

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "oracle"))
import gguf_files  # noqa: E402

END = "<|endoftext|>"
VOCAB, CONTEXT = 1024, 256
TEXTS, HELD_OUT = 30_000, 300
BATCH, WARMUP, PEAK_LR = 8, 50, 3e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1150)
    parser.add_argument("--out", default=HERE / "model.gguf")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(corpus.SEED)

    tokenizer = train_tokenizer(corpus.base(10_000, corpus.SEED + 1))
    texts = [e.ids + [0] for e in tokenizer.encode_batch(list(corpus.base(TEXTS)))]
    print(f"{TEXTS} texts, {sum(map(len, texts))} tokens")
    held_out, texts = texts[:HELD_OUT], texts[HELD_OUT:]

    check_coverage(tokenizer, texts)

    model = LlamaForCausalLM(config())
    print(f"{sum(p.numel() for p in model.parameters())} parameters")
    train(model, texts, args.steps)
    print(f"loss on held-out base text: {mean_loss(model, held_out):.4f} in f32")
    for kind in ("Q4_0", "Q4_1", "Q8_0"):
        write(args.out, model, tokenizer, kind)
        again, _ = gguf_files.read_llama(args.out)
        off = weight_error(model, again)
        print(f"  {mean_loss(again, held_out):.4f} in {kind}, {Path(args.out).stat().st_size} bytes, weights off by {100 * off:.2f} %")
        assert off < 0.1
    write(args.out, model, tokenizer, "Q4_1")
    assert Path(args.out).stat().st_size <= 2_000_000


def config():
    return LlamaConfig(
        hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=2, head_dim=32,
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip


def train_tokenizer(texts):
    """GPT-2's kind: byte-level BPE after GPT-2's pattern. Token 0 ends a text; every byte has a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[END], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    return tokenizer


def check_coverage(tokenizer, texts):
    """A token that the base never saw has an untrained embedding, and LoRA leaves the embedding as it is."""
    seen = Counter(i for ids in texts for i in ids)
    for record in sum(corpus.owner(corpus.TRAIN, corpus.VALID), []):
        for i in tokenizer.encode(record).ids:
            assert seen[i] >= 100, f"token {tokenizer.id_to_token(i)!r} of the owner's text: {seen[i]} times in the base text"


def train(model, texts, steps):
    """Windows of CONTEXT tokens, each starting where a text starts and filled with the texts after it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LR, betas=(0.9, 0.95), weight_decay=0.1)
    rng, began = random.Random(corpus.SEED), time.time()
    model.train()
    for step in range(steps):
        progress = max(0, step - WARMUP) / (steps - WARMUP)
        lr = PEAK_LR * min(1, (step + 1) / WARMUP) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        optimizer.param_groups[0]["lr"] = lr
        ids = torch.tensor([window(texts, rng) for _ in range(BATCH)])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.4f}, {time.time() - began:.0f} s", flush=True)
    model.eval()


def window(texts, rng):
    ids, at = [], rng.randrange(len(texts))
    while len(ids) < CONTEXT:
        ids += texts[at % len(texts)]
        at += 1
    return ids[:CONTEXT]


@torch.no_grad()
def mean_loss(model, texts):
    """Mean over all tokens of all texts, each text alone, its first token given."""
    total = count = 0
    for ids in texts:
        ids = torch.tensor([ids[:CONTEXT]])
        total += model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    return total / count


def weight_error(model, again):
    """Of the matrices, relative, root mean square: what tells a quantised file from one that only says so."""
    pairs = [(p, again.get_parameter(n)) for n, p in model.named_parameters() if p.ndim == 2]
    return math.sqrt(sum(((a - b) ** 2).sum().item() for a, b in pairs) / sum((a**2).sum().item() for a, _ in pairs))


def write(path, model, tokenizer, kind):
    quantised = gguf.GGMLQuantizationType[kind]

    def tensor_type(name, w):
        if w.ndim == 1:
            return gguf.GGMLQuantizationType.F32
        return gguf.GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else quantised

    def add_tokenizer(writer):
        tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list([t for t, _ in tokens])
        writer.add_token_types([gguf.TokenType.CONTROL if t == END else gguf.TokenType.NORMAL for t, _ in tokens])
        writer.add_token_merges(merges(tokenizer))
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(0)
        writer.add_add_bos_token(False)

    gguf_files.write(
        path, "pocketune-demo", model.config, model.state_dict(), gguf.LlamaFileType[f"MOSTLY_{kind}"], tensor_type, add_tokenizer
    )


def merges(tokenizer):
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


if __name__ == "__main__":
    main()
