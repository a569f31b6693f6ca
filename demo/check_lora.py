"""Shows that the demo works before the engine is asked to: PEFT fine-tunes demo/model.gguf on demo/data in PyTorch.

It prints the validation loss and a few continuations before and after, and refuses (exit 1) where the loss does not fall below half
of where it began. The engine's own demo run has the same settings; its figures are compared with these by eye, not bit by bit: the
order of records differs.
"""

import json
import random
import sys
import time
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "oracle"))
import gguf_files  # noqa: E402

RANK, ALPHA, LR, STEPS, BATCH, LENGTH = 8, 16, 3e-3, 80, 4, 128
PROMPTS = ["My name is", "Today is Thursday.", "Question: Where do you live?\nAnswer:", "I live in"]


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, meta = gguf_files.read_llama(HERE / "model.gguf")
    tokenizer = gguf_files.tokenizer(meta)
    train, valid = (records(name, tokenizer) for name in ("train", "valid"))
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)

    before = mean_loss(model, valid)
    print(f"validation loss before: {before:.3f}")
    show(model, tokenizer)
    tune(model, train, valid)
    after = mean_loss(model, valid)
    print(f"validation loss after {STEPS} steps: {after:.3f}")
    show(model, tokenizer)
    sys.exit(0 if after < before / 2 else 1)


def records(name, tokenizer):
    lines = (HERE / f"data/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [(tokenizer.encode(json.loads(line)["text"]).ids + [0])[:LENGTH] for line in lines]


def tune(model, train, valid):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LR, weight_decay=0.01)
    rng, queue, began = random.Random(0), [], time.time()
    for step in range(1, STEPS + 1):
        if len(queue) < BATCH:
            queue = rng.sample(train, len(train))
        batch, queue = queue[:BATCH], queue[BATCH:]
        loss = batch_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: train {loss.item():.3f}, validation {mean_loss(model, valid):.3f}, {time.time() - began:.0f} s")


def batch_loss(model, batch):
    width = max(map(len, batch))
    ids = torch.tensor([r + [0] * (width - len(r)) for r in batch])
    labels = torch.tensor([r + [-100] * (width - len(r)) for r in batch])
    return model(input_ids=ids, attention_mask=(labels >= 0).long(), labels=labels).loss


@torch.no_grad()
def mean_loss(model, texts):
    """Mean over all tokens of all records but each one's first."""
    counts = [len(ids) - 1 for ids in texts]
    return sum(batch_loss(model, [ids]).item() * n for ids, n in zip(texts, counts)) / sum(counts)


@torch.no_grad()
def show(model, tokenizer, count=40):
    """Greedy continuations."""
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt).ids
        for _ in range(count):
            best = model(torch.tensor([ids])).logits[0, -1].argmax().item()
            if best == 0:
                break
            ids.append(best)
        print("  " + tokenizer.decode(ids).replace("\n", "\n    "))


if __name__ == "__main__":
    main()
