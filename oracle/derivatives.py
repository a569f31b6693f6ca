"""Ten updates of AdamW with derivatives that the engine computes otherwise, in PyTorch: custom autograd functions of a few lines each.

Writes crates/engine/tests/golden/derivatives.safetensors: for each option and golden case `<option>.<case>.losses` and
`<option>.<case>.final.<name>`, the adapter after the last update. It refuses to write what could hide a fault: an adapter that the option
hardly changes.
"""

import torch
import transformers as tf
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers.models.roberta import modeling_roberta

from families import GOLDEN, LENGTHS, NO_LABEL, Record, padded

UPDATES = 10
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
    out = {}
    for name, option, cases in [("approx-act", approx_act, ["llama", "roberta"])]:
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
