"""Ten updates of AdamW with derivatives that the engine computes otherwise, in PyTorch: custom autograd functions of a few lines each.

Writes crates/engine/tests/golden/derivatives.safetensors: for each option and golden case `<option>.<case>.losses` and
`<option>.<case>.final.<name>`, the adapter after the last update; and the case `llama_wide`, whose vocabulary has several strips. It refuses to write what could hide a fault: an adapter that the option
hardly changes.
"""

import math
import shutil

import torch
import transformers as tf
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers.models.roberta import modeling_roberta

from families import DEFAULT_ROPE, GOLDEN, LENGTHS, LINEARS, NO_LABEL, SEED, Record, padded, randomise, save_adapter, shape

UPDATES = 10
# Entries of the vocabulary that the loss handles at a time.
STRIP = 1024
# Where each step of the slope is, and how much it adds: 2406.16282.
STEPS = {
    "gelu": ((-3.1858810036855245, -0.001178821281161997, 3.190832613414926),
             (-0.04922261145617846, 1.0979632065417297, -0.048740595085551286)),
    "silu": ((-6.3050461001646445, -0.0008684942046214787, 6.325815242089708),
             (-0.04060357190528599, 1.080925428529668, -0.040321856624382146)),
}  # fmt: skip


class Stepped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        ctx.save_for_backward(x)
        return getattr(torch.nn.functional, name)(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * sum(a * (x > c) for c, a in zip(*STEPS[ctx.name])), None


class Activation(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return Stepped.apply(x, self.name)


def approx_act(model, case):
    for module in list(model.modules()):
        if case == "llama" and hasattr(module, "act_fn"):
            module.act_fn = Activation("silu")
        if case == "roberta" and hasattr(module, "intermediate_act_fn"):
            module.intermediate_act_fn = Activation("gelu")
    if case == "roberta":  # its head calls the function itself
        modeling_roberta.gelu = Activation("gelu")


class WithoutFaint(torch.autograd.Function):
    """The gradient of logits without the strips of a row whose softmax is below 2^-12 by the sum so far."""

    @staticmethod
    def forward(ctx, logits):
        ctx.save_for_backward(logits)
        return logits

    @staticmethod
    def backward(ctx, g):
        (logits,) = ctx.saved_tensors
        labelled = g.abs().sum(-1, keepdim=True) > 0
        softmax = logits.softmax(-1) * labelled / labelled.sum()
        g = g.clone()
        for first in range(0, logits.shape[-1], STRIP):
            strip = slice(first, first + STRIP)
            so_far = logits[..., : first + STRIP].logsumexp(-1, keepdim=True)
            faint = logits[..., strip].amax(-1, keepdim=True) < so_far - 12 * math.log(2)
            g[..., strip] -= softmax[..., strip] * faint
        return g


def ce_skip(model, case):
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, logits: WithoutFaint.apply(logits))


def wide():
    """A llama whose vocabulary has four strips, two of them of entries that are much alike and about as likely as a 4,096th."""
    rng = torch.Generator().manual_seed(SEED + 100)
    config = tf.LlamaConfig(**shape(16, 24, 1, 2, 1, 8, 3200, tie_word_embeddings=True, rope_parameters=DEFAULT_ROPE))
    model = tf.LlamaForCausalLM(config).float().eval()
    randomise(model, rng)
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        alike = 0.1 * torch.randn(16, generator=rng)
        table[STRIP : 3 * STRIP] = alike + 0.02 * torch.randn(2 * STRIP, 16, generator=rng)
    folder = GOLDEN / "llama_wide"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    records = {f"ids.{i}": torch.randint(0, config.vocab_size, (n,), generator=rng) for i, n in enumerate(LENGTHS)}
    save_file(records, folder / "expected.safetensors")
    model = get_peft_model(model, LoraConfig(r=2, lora_alpha=8, target_modules=LINEARS, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape, generator=rng) * 0.15)
    save_adapter(model, folder / "adapter")


def updates(option, case):
    modeling_roberta.gelu = torch.nn.functional.gelu
    kind = tf.AutoModelForMaskedLM if case == "roberta" else tf.AutoModelForCausalLM
    base = kind.from_pretrained(GOLDEN / case, attn_implementation="eager").double().eval()
    model = PeftModel.from_pretrained(base, GOLDEN / case / "adapter", is_trainable=True).double()
    if option:
        option(model, case)
    expected = load_file(GOLDEN / case / "expected.safetensors")
    labels = [expected.get(f"labels.{i}") for i in range(len(LENGTHS))]
    labels = [None if label is None else torch.where(label == -1, NO_LABEL, label) for label in labels]
    batch = padded([Record(expected[f"ids.{i}"], labels[i]) for i in range(len(LENGTHS))])
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    step = torch.optim.AdamW(trained.values(), lr=1e-2, weight_decay=0.01)
    losses = []
    for _ in range(UPDATES):
        step.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        losses.append(loss.item())
        step.step()
    return losses, {n.replace(".default", ""): p.detach().float().clone().contiguous() for n, p in trained.items()}


def main():
    torch.set_num_threads(1)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    wide()
    out = {}
    for name, option, cases in [("approx-act", approx_act, ["llama", "roberta"]), ("ce-skip", ce_skip, ["llama_wide"])]:
        for case in cases:
            (_, exact), (losses, final) = updates(None, case), updates(option, case)
            moved = max((final[n] - exact[n]).abs().max().item() for n in final)
            print(f"{name} {case}: {losses[0]:.5f} -> {losses[-1]:.5f}, {moved:.4f} from the exact adapter")
            assert moved > 1e-2, "the option hardly changes anything"
            out |= {f"{name}.{case}.losses": torch.tensor(losses)} | {f"{name}.{case}.final.{n}": p for n, p in final.items()}
    path = GOLDEN / "derivatives.safetensors"
    save_file(out, path)
    path.chmod(0o644)
    print(f"{path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
