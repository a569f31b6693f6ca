"""Ten updates of all parameters of the golden cases `opt` and `roberta`, which have learned positions, by every method that trains a model itself and by every one without
gradients, in PyTorch and NumPy. What roberta learns from are the masked prompts of `cloze.py`, and, as the case `classes`, the same reviews under the head of `classifier.py`.

Writes crates/engine/tests/golden/learned.safetensors: for each method and case `<method>.<case>.losses`, the loss of each update, and `<method>.<case>.final.<name>`, every 13th
number of each tensor after the last, under its name in the folder.

A key's bias adds the same to all scores of a query, and so changes nothing: its gradient is zero but for rounding, of which rules that divide by a gradient's size make steps
of full length. It is compared where a rule doesn't.
"""

import sys

import numpy as np
import tokenizers
import torch
import transformers as tf
from safetensors.torch import load_file

import classifier
import cloze
import moved
from families import GOLDEN, LENGTHS, Record, padded
from full import METHODS, Whole, run, save

LAYER = {"opt": "model.decoder.layers", "roberta": "roberta.encoder.layer", "classes": "roberta.encoder.layer"}
LINEARS = {
    "opt": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2"],
    "roberta": cloze.LINEARS,
}
TABLES = {
    "opt": ["model.decoder.embed_tokens", "model.decoder.embed_positions"],
    "roberta": [f"roberta.embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type")],
}
LINEARS["classes"], TABLES["classes"] = LINEARS["roberta"], TABLES["roberta"]
# Noise of 3e-7 in the gradients moves tensors by 2e-4 and 3e-4 in the first two: see `full.py`. Gradients of four prompts have rank 4 at most: what the other twelve of the vectors
# are that galore projects onto, rounding decides, and the same noise moves tensors by 1e-2.
TOO_FINE = {("mlorc", "opt"), ("mlorc", "roberta"), ("galore", "roberta"), ("mlorc", "classes"), ("galore", "classes")}
NO_SIZE = ("lomo", "lomo-clipped", *moved.RATE)


class Learned(Whole):
    """The parameters of a case as they are, and their numbers in the engine's graph: matrices first, in the order in which they are met, then vectors likewise."""

    def __init__(self, case):
        folder, self.case = GOLDEN / case, case
        if case == "classes":
            self.model = classifier.base(2).double()
        else:
            kind = tf.AutoModelForCausalLM if case == "opt" else tf.AutoModelForMaskedLM
            self.model = kind.from_pretrained(folder, attn_implementation="eager").double().eval()
        self.config = self.model.config
        self.named = dict(self.model.named_parameters())
        self.theta = {hf: p.detach().numpy().copy() for hf, p in self.named.items()}
        order = self.order()
        assert sorted(order) == sorted(self.named), set(order) ^ set(self.named)
        order.sort(key=lambda name: self.theta[name].ndim == 1)
        self.numbers = {name: at for at, name in enumerate(order)}
        if case == "opt":
            expected = load_file(folder / "expected.safetensors")
            self.batch = padded([Record(expected[f"ids.{i}"]) for i in range(len(LENGTHS))])
        elif case == "classes":
            self.prompts = classifier.Reviews(self.model)
        else:
            tok = tokenizers.Tokenizer.from_file(str(cloze.FOLDER / "tokenizer.json"))
            self.prompts = cloze.Cloze(tok)
            self.prompts.model = self.model

    def order(self):
        """All names, as the engine's graph meets them: a block of roberta begins with the norm that ends the one before."""
        both = lambda module: [f"{module}.weight", f"{module}.bias"]  # noqa: E731
        names = [f"{table}.weight" for table in TABLES[self.case]]
        for block in range(self.config.num_hidden_layers):
            q, k, v, o, up, down = (both(f"{LAYER[self.case]}.{block}.{linear}") for linear in LINEARS[self.case])
            first, second = (both(norm) for norm in self.norms(block))
            names += first + q + k + v + o + second + up + down
        if self.case == "opt":
            return names + both("model.decoder.final_layer_norm")
        last = both(self.norms(self.config.num_hidden_layers)[0])
        if self.case == "classes":
            return names + last + classifier.HEAD
        return names + last + both("lm_head.dense") + both("lm_head.layer_norm") + ["lm_head.bias"]

    def norms(self, block):
        layer = f"{LAYER[self.case]}.{block}"
        if self.case == "opt":
            return f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"
        before = f"{LAYER[self.case]}.{block - 1}.output" if block else "roberta.embeddings"
        return f"{before}.LayerNorm", f"{layer}.attention.output.LayerNorm"

    def block_of(self, name):
        for block in range(self.config.num_hidden_layers):
            modules = [f"{LAYER[self.case]}.{block}.{linear}" for linear in LINEARS[self.case]] + list(self.norms(block))
            if name.rsplit(".", 1)[0] in modules:
                return block
        return None

    @property
    def names(self):
        return {hf: hf for hf in self.named}

    def loss_of(self):
        return super().loss_of() if self.case == "opt" else self.prompts.loss()

    def heads(self, hf):
        return None

    def shifted(self, hf):
        return None

    def loss(self, theta):
        self.theta = theta
        return self.step(lambda name, p, g: p)


def main():
    torch.set_num_threads(1)
    tf.utils.logging.set_verbosity_error()
    tf.utils.logging.disable_progress_bar()
    out = {}
    for case in LAYER:
        for method in METHODS:
            if (method, case) not in TOO_FINE:
                out |= run(method, case, Learned(case))
        for method in moved.RATE:
            out |= moved.run(method, case, Learned(case))
    no_gradient = (".k_proj.bias", ".key.bias")
    kept = {n: t for n, t in out.items() if not n.endswith(no_gradient) or n.split(".")[0] in NO_SIZE}
    assert all(np.isfinite(t.numpy()).all() for t in kept.values())
    save("learned", kept)


if __name__ == "__main__":
    sys.exit(main())
