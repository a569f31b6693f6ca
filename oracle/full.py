"""Ten updates of all parameters of four golden cases by every method that trains a model itself, in PyTorch and NumPy.

Writes crates/engine/tests/golden/full.safetensors: for each method and case `<method>.<case>.losses`, the loss before each update, and
`<method>.<case>.final.<name>`, every 13th number of each tensor after the last, under its name in GGUF.

What is trained is the model in GGUF's form, as the engine stores it: llama's query and key rows in llama.cpp's order, gemma's norms with their 1 added and
what GGUF has no key for inside its query norms. Vectors are not decayed.
"""

import math
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

from families import GOLDEN, LENGTHS, Record, padded
from gguf_files import ARCH, permute, unpermute
from methods import normals, philox

CASES = ["llama", "qwen2", "qwen3", "gemma3_text"]
SEED, UPDATES, EVERY = 3, 10, 13


class Whole:
    """The parameters of a case in GGUF's form, and their gradients."""

    def __init__(self, case):
        folder = GOLDEN / case
        self.model = tf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double().train()
        self.config = self.model.config
        expected = load_file(folder / "expected.safetensors")
        self.batch = padded([Record(expected[f"ids.{i}"]) for i in range(len(LENGTHS))])
        names = gguf.get_tensor_name_map(ARCH[self.config.model_type], self.config.num_hidden_layers)
        self.named = dict(self.model.named_parameters())
        self.names = {hf: names.get_name(hf, try_suffixes=(".weight", ".bias")) for hf in self.named}
        self.numbers = numbers_of(self.config)
        self.theta = {hf: self.form(hf, p.detach().numpy()) for hf, p in self.named.items()}

    def loss_of(self):
        return self.model(**self.batch).loss

    @staticmethod
    def block_of(name):
        block = re.match(r"model\.layers\.(\d+)\.", name)
        return int(block[1]) if block else None

    def heads(self, hf):
        if self.config.model_type != "llama":
            return None
        if hf.endswith("q_proj.weight"):
            return self.config.num_attention_heads
        return self.config.num_key_value_heads if hf.endswith("k_proj.weight") else None

    def shifted(self, hf):
        """What GGUF multiplies a norm's weight with after it added 1, or None."""
        if self.config.model_type != "gemma3_text" or not hf.endswith("norm.weight"):
            return None
        return math.sqrt(self.config.head_dim / self.config.query_pre_attn_scalar) if hf.endswith("q_norm.weight") else 1.0

    def form(self, hf, w):
        heads, scale = self.heads(hf), self.shifted(hf)
        w = permute(w, heads) if heads else w
        return (w + 1) * scale if scale else w.copy()

    def step(self, update):
        """Puts the parameters into the model, and moves them by what `update(name, theta, gradient)` gives back."""
        for hf, p in self.named.items():
            heads, scale, w = self.heads(hf), self.shifted(hf), self.theta[hf]
            w = w / scale - 1 if scale else unpermute(w, heads) if heads else w
            p.data.copy_(torch.from_numpy(np.ascontiguousarray(w)))
        self.model.zero_grad()
        loss = self.loss_of()
        loss.backward()
        gradients = {hf: self.gradient(hf, p.grad.numpy()) for hf, p in self.named.items()}
        norm = math.sqrt(sum((g * g).sum() for g in gradients.values()))
        scale = min(1, getattr(update, "limit", math.inf) / (norm + 1e-6))
        for hf, g in gradients.items():
            self.theta[hf] = update(hf, self.theta[hf], scale * g)
        return loss.item()

    def gradient(self, hf, g):
        heads, scale = self.heads(hf), self.shifted(hf)
        return g / scale if scale else permute(g, heads) if heads else g


class AdamW:
    def __init__(self, lr=1e-3, decay=0.01):
        self.lr, self.decay, self.t, self.state = lr, decay, 0, {}

    def __call__(self, name, p, g):
        m, v = self.state.get(name, (0 * p, 0 * p))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        self.state[name] = m, v
        p = p * (1 - self.lr * self.decay * (p.ndim == 2))
        return p - self.lr / (1 - 0.9**self.t) * m / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-8)


class Sgd:
    """Gradients whose norm together is above `limit` are scaled down to it, as PyTorch does."""

    def __init__(self, lr=0.1, decay=0.01, limit=math.inf):
        self.lr, self.decay, self.limit, self.t = lr, decay, limit, 0

    def __call__(self, name, p, g):
        return p - self.lr * (g + self.decay * (p.ndim == 2) * p)


def rms(x):
    return math.sqrt((x * x).mean())


class AdaLomo:
    def __init__(self, lr=1e-2, decay=0.01):
        self.lr, self.decay, self.t, self.state = lr, decay, 0, {}

    def __call__(self, name, p, g):
        b, u = 1 - self.t**-0.8, g * g + 1e-30
        if p.ndim == 2:
            r, c = self.state.get(name, (0, 0))
            r, c = b * r + (1 - b) * u.mean(1), b * c + (1 - b) * u.mean(0)
            self.state[name] = r, c
            step = g / np.sqrt(r / r.mean())[:, None] / np.sqrt(c)[None, :]
        else:
            self.state[name] = b * self.state.get(name, 0) + (1 - b) * u
            step = g / np.sqrt(self.state[name])
        lr = self.lr * max(1e-3, rms(p))
        return p * (1 - lr * self.decay * (p.ndim == 2)) - lr * step / max(1, rms(step))


class Apollo(AdamW):
    """Projections are the engine's: Philox by seed, two hundreds of updates, and the tensor's number in its graph."""

    def __init__(self, rank=16, scale=16, mini=False):
        super().__init__(lr=1e-3)
        self.rank, self.scale, self.mini, self.kept = rank, scale, mini, {}

    def __call__(self, name, p, g):
        if p.ndim == 1:
            m, v = self.state.get(name, (0 * p, 0 * p))
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            self.state[name] = m, v
            return p - self.lr / (1 - 0.9**self.t) * m / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-6)
        rows, cols = p.shape
        stream = 1 << 61 | (self.t - 1) // 200 << 16 | self.numbers[name]
        numbers = normals(SEED, stream, self.rank * min(rows, cols)) / math.sqrt(self.rank)
        tall = rows >= cols
        r = g @ numbers.reshape(self.rank, cols).T if tall else numbers.reshape(rows, self.rank).T @ g
        m, v = self.kept.get(name, (0 * r, 0 * r))
        m, v = 0.9 * m + 0.1 * r, 0.999 * v + 0.001 * r * r
        self.kept[name] = m, v
        n = m / (np.sqrt(v) + 1e-6)
        along = None if self.mini else 1 if tall else 0
        s = np.sqrt((n * n).sum(along, keepdims=True)) / (np.sqrt((r * r).sum(along, keepdims=True)) + 1e-8)
        u = g * s
        size = math.sqrt((u * u).sum())
        before = self.state.get(name, 0)
        limit = 1.01 * before / size if before and size > 1.01 * before else 1
        self.state[name] = size * limit
        rate = self.lr * math.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        return p * (1 - self.lr * self.decay) - rate * math.sqrt(self.scale) * limit * u


class Mlorc(AdamW):
    """Moments as products of rank 4, compressed with the engine's random matrices: Philox by seed, update, and the tensor's number. Where a second moment is rebuilt close to
    zero, rounding is carried far: with the rate that AdamW has here, by 2e-4."""

    def __init__(self):
        super().__init__(lr=1e-4)

    def __call__(self, name, p, g):
        if p.ndim == 1:
            return super().__call__(name, p, g)
        cols = p.shape[1]
        m, v = (left @ right for left, right in self.state.get(name, ((0 * p[:, :1], 0 * p[:1]),) * 2))
        if (v < 0).any():
            v = np.where(v < 0, -v[v < 0].mean(), v)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        omega = normals(SEED, 1 << 60 | self.t << 16 | self.numbers[name], 4 * cols).reshape(4, cols).T
        bases = [np.linalg.qr(x @ omega)[0] for x in (m, v)]
        self.state[name] = [(q, q.T @ x) for q, x in zip(bases, (m, v))]
        step = m / (1 - 0.9**self.t) / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-8)
        return p * (1 - self.lr * self.decay) - self.lr * step


class Galore(AdamW):
    """The leading singular vectors by three products with `G Gᵀ` from the engine's random start, and a turn to the singular directions."""

    def __init__(self, rank=16):
        super().__init__(lr=1e-3)
        self.rank, self.projections = rank, {}

    def __call__(self, name, p, g):
        if p.ndim == 1:
            m, v = self.state.get(name, (0 * p, 0 * p))
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            self.state[name] = m, v
            return p - self.lr / (1 - 0.9**self.t) * m / (np.sqrt(v / (1 - 0.999**self.t)) + 1e-6)
        tall = p.shape[0] >= p.shape[1]
        wide = g.T if tall else g
        small = len(wide)
        if self.t % 200 == 1:
            tried = min(self.rank + 8, small)
            y = normals(SEED, 1 << 59 | (self.t - 1) // 200 << 16 | self.numbers[name], small * tried)
            y = y.reshape(tried, small).T if tall else y.reshape(small, tried)
            for _ in range(2):
                y = np.linalg.qr(wide @ (wide.T @ y))[0]
            sizes, turned = np.linalg.eigh(y.T @ wide @ (wide.T @ y))
            self.projections[name] = (y @ turned)[:, np.argsort(-sizes)[: self.rank]]
        projection = self.projections[name]
        r = projection.T @ wide
        m, v = self.state.get(name, (0 * r, 0 * r))
        m, v = 0.9 * m + 0.1 * r, 0.999 * v + 0.001 * r * r
        self.state[name] = m, v
        rate = self.lr * math.sqrt(1 - 0.999**self.t) / (1 - 0.9**self.t)
        step = projection @ (m / (np.sqrt(v) + 1e-6))
        return p * (1 - self.lr * self.decay) - rate * 0.25 * (step.T if tall else step)


class InTurns(AdamW):
    """Blocks that take turns of three updates, each with fresh moments: one at a time in a random order (BAdam), or some that are drawn, and the ends always (LISA)."""

    def __init__(self, at_once=0):
        super().__init__()
        self.at_once = at_once

    def learns(self, block):
        turn = (self.t - 1) // 3
        order = turn if self.at_once else turn // self.blocks
        numbers = philox(SEED, 1 << 42, (order << 32) + np.arange(self.blocks, dtype=np.uint64))[:, 0]
        place = sorted(range(self.blocks), key=lambda block: (numbers[block], block)).index(block)
        return place < self.at_once if self.at_once else place == turn % self.blocks

    def __call__(self, name, p, g):
        block = self.block_of(name)
        if block is None:
            return super().__call__(name, p, g) if self.at_once else p
        if not self.learns(block):
            return p
        t, self.t = self.t, (self.t - 1) % 3 + 1
        if self.t == 1:
            self.state.pop(name, None)
        p = super().__call__(name, p, g)
        self.t = t
        return p


METHODS = {
    "full": AdamW,
    "lomo": Sgd,
    "lomo-clipped": lambda: Sgd(limit=1),
    "adalomo": AdaLomo,
    "apollo": Apollo,
    "apollo-mini": lambda: Apollo(1, 128, True),
    "mlorc": Mlorc,
    "galore": Galore,
    "badam": InTurns,
    "lisa": lambda: InTurns(2),
}
# A second moment that is rebuilt close to zero goes to one side or the other by rounding: noise of 3e-7 in the gradients moves tensors of this case by 5e-3.
TOO_FINE = {("mlorc", "llama")}
BLOCK = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]


def numbers_of(config):
    """The numbers of matrices in the engine's graph: the embedding, the linears block by block, and the head."""
    linears = [f"model.layers.{block}.{name}.weight" for block in range(config.num_hidden_layers) for name in BLOCK]
    return {name: at for at, name in enumerate(["model.embed_tokens.weight"] + linears + ["lm_head.weight"])}


def run(method, case, whole):
    rule, losses = METHODS[method](), []
    rule.numbers, rule.blocks, rule.block_of = whole.numbers, whole.config.num_hidden_layers, whole.block_of
    for rule.t in range(1, UPDATES + 1):
        losses.append(whole.step(rule))
    print(f"{method} {case}: {losses[0]:.5f} -> {losses[-1]:.5f}")
    out = {f"{method}.{case}.losses": torch.tensor(losses)}
    for hf, theta in whole.theta.items():
        out[f"{method}.{case}.final.{whole.names[hf]}"] = torch.from_numpy(theta.reshape(-1)[::EVERY].copy())
    return out


def save(name, tensors):
    path = Path(GOLDEN) / f"{name}.safetensors"
    save_file({name: tensor.float().contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(0o644)
    print(f"{path.stat().st_size / 1e6:.2f} MB")


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    out = {}
    for method in METHODS:
        for case in CASES:
            if (method, case) not in TOO_FINE:
                out |= run(method, case, Whole(case))
    save("full", out)


if __name__ == "__main__":
    sys.exit(main())
