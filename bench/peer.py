"""PyTorch + PEFT as `bench/peers` measures it: LoRA on a model of random bf16 weights, steps on request.

It gets its best: weights and adapters in bf16 (PEFT's default of f32 adapters under a bf16 base costs casts), no autocast, sdpa
attention, no cache of keys, the fused AdamW. It downloads nothing and times nothing: whoever asks for steps measures from outside. One
line of JSON says what was built, then each line read, a number of steps, is answered by one with the last loss.
"""

import argparse
import json
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path


def main():
    # Libraries print; what is answered goes to a pipe of its own.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    args = arguments()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)

    import torch

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = build(json.loads(args.config), args)
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(0, 250, (1, args.seq))

    def step():
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        if step.first:
            check_gradients(model)
            step.first = False
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step.first = True

    def answer(**fields):
        print(json.dumps(fields), file=answers, flush=True)

    everything = sum(p.numel() for p in model.parameters())
    count = sum(p.numel() for p in trainable)
    answer(trainable=count, frozen=everything - count, about=about(torch))
    for line in sys.stdin:
        loss = math.nan
        for _ in range(int(line)):
            loss = step()
        answer(loss=loss if math.isfinite(loss) else None)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="the model's numbers as JSON, with Hugging Face's names")
    parser.add_argument("--seq", type=int, required=True, help="tokens of the one record of a step")
    parser.add_argument("--rank", type=int, required=True, help="rank of the adapters")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16", help="of weights, adapters and what is computed")
    parser.add_argument("--checkpointing", action="store_true", help="with gradient checkpointing of every layer")
    return parser.parse_args()


def build(numbers, args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(numbers.pop("model_type"), **numbers)
    model = AutoModelForCausalLM.from_config(config, dtype={"bf16": torch.bfloat16, "f32": torch.float32}[args.precision])
    linears = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    lora = LoraConfig(r=args.rank, lora_alpha=2 * args.rank, lora_dropout=0.0, target_modules=linears, task_type="CAUSAL_LM")
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    if args.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    return model


def check_gradients(model):
    """Checkpointing under LoRA can silently train nothing."""
    for name, p in model.named_parameters():
        if p.requires_grad and (p.grad is None or not p.grad.isfinite().all()):
            raise SystemExit(f"{name} got no finite gradient")
        # B is zero at first, so A has none yet.
        if p.requires_grad and "lora_B" in name and not p.grad.any():
            raise SystemExit(f"no gradient reached {name}")


def about(torch):
    """The versions, and whether they are the pinned ones."""
    pinned = {}
    for line in (Path(__file__).parent / "peers-requirements.txt").read_text().splitlines():
        if "==" in line:
            name, number = line.split("==")
            pinned[name] = number
    names = ["torch", "transformers", "peft"]
    words = ", ".join(f"{name} {version(name)}" for name in names)
    differing = [name for name in names if version(name).split("+")[0] != pinned[name]]
    if differing:
        words += f" (not the pinned {', '.join(f'{name} {pinned[name]}' for name in differing)})"
    if torch.backends.mkldnn.is_available():
        words += ", oneDNN"
    return words


if __name__ == "__main__":
    main()
