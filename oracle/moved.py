"""Ten updates of all parameters of two golden cases by every method without gradients, and of the scales of one in Q8_0, in PyTorch and NumPy with the engine's own
random numbers.

Writes crates/engine/tests/golden/moved.safetensors: for each method and case `<method>.<case>.losses`, the loss that is reported of each update, and
`<method>.<case>.final.<name>`, every 13th number of each tensor after the last, under its name in GGUF; of qzo `qzo.<case>.scales.<name>`, all scales.

Tensors count as in the engine's graph: matrices first (the embedding, the linears block by block, the head where it is another), then vectors in the order in which a block
meets them. What sparse-mezo leaves where it is, is above a limit that the first model sets.
"""

import sys

import gguf
import numpy as np
import torch
import transformers as tf

import methods
from full import EVERY, UPDATES, Whole, numbers_of, save
from methods import normals, seed_of, signs, still_blocks

CASES = ["llama", "qwen2"]
EPS = 1e-3
# A direction of low rank is longer, and a normed step has no slope in it.
RATE = {"mezo": 2e-4, "sparse-mezo": 2e-4, "fzoo": 1e-3, "lozo": 5e-5, "lezo": 2e-4}
VECTORS = ["input_layernorm.weight", "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias", "post_attention_layernorm.weight"]


class Moved(Whole):
    """The parameters of a case in GGUF's form, and the loss with any others."""

    def __init__(self, case):
        super().__init__(case)
        blocks = range(self.config.num_hidden_layers)
        vectors = [f"model.layers.{block}.{name}" for block in blocks for name in VECTORS] + ["model.norm.weight"]
        matrices = [name for name in numbers_of(self.config) if name in self.theta]
        order = matrices + [name for name in vectors if name in self.theta]
        assert sorted(order) == sorted(self.theta)
        self.numbers = {name: at for at, name in enumerate(order)}

    def loss(self, theta):
        self.theta = theta
        return self.step(lambda name, p, g: p)


def direction(method, at, number, update, shape):
    seed, stream = seed_of(2 * update), at << 8 | number
    rows, cols = shape if len(shape) == 2 else (1, shape[0])
    if method == "fzoo":
        z = signs(seed, stream, rows * cols)
    elif method == "lozo":
        u = normals(seed, stream, rows * 2).reshape(rows, 2)
        v = normals(seed_of(2 * ((update - 1) // 50 * 50 + 1) + 1), at << 8 | 0xFF, cols * 2).reshape(cols, 2)
        z = u @ v.T
    else:
        z = normals(seed, stream, rows * cols)
    return z.reshape(shape)


def run(method, case, model):
    losses, count = [], 8 if method == "fzoo" else 1
    limits = {name: np.sort(np.abs(t).reshape(-1))[int(np.ceil(0.25 * t.size)) - 1] for name, t in model.theta.items()}
    for update in range(1, UPDATES + 1):
        theta = model.theta
        still = still_blocks(update, model.config.num_hidden_layers) if method == "lezo" else set()

        def along(name, number):
            t = theta[name]
            if model.block_of(name) in still:
                return 0.0 * t
            z = direction(method, model.numbers[name], number, update, t.shape)
            return np.where(np.abs(t) <= limits[name], z, 0.0) if method == "sparse-mezo" else z

        z = [{name: along(name, number) for name in theta} for number in range(count)]
        moved = lambda by, number: model.loss({name: t + by * z[number][name] for name, t in theta.items()})
        if method == "fzoo":
            at = model.loss(theta)
            found = np.array([moved(EPS, number) for number in range(count)])
            far = (found - at) / (count * found.std(ddof=1))
        else:
            forward, back = moved(EPS, 0), moved(-EPS, 0)
            at, far = (forward + back) / 2, [(forward - back) / (2 * EPS)]
        losses.append(at)
        model.theta = {n: t - RATE[method] * sum(c * z[d][n] for d, c in enumerate(far)) for n, t in theta.items()}
    print(f"{method} {case}: {losses[0]:.5f} -> {losses[-1]:.5f}")
    out = {f"{method}.{case}.losses": torch.tensor(losses)}
    for hf, theta in model.theta.items():
        out[f"{method}.{case}.final.{model.names[hf]}"] = torch.from_numpy(theta.reshape(-1)[::EVERY].copy())
    return out


def rounded(x, random):
    """One of the two half floats around each number, the nearer one more often, by 16 random bits."""
    near = x.astype(np.float16)
    below = near.view(np.uint16) - (np.abs(near.astype(np.float32)) > np.abs(x)).astype(np.uint16)
    low, high = (np.abs((below + k).astype(np.uint16).view(np.float16).astype(np.float32)) for k in (0, 1))
    up = random.astype(np.float32) < (np.abs(x) - low) / (high - low) * np.float32(65536)
    chosen = (below + up.astype(np.uint16)).astype(np.uint16).view(np.float16)
    return np.where(near.astype(np.float32) == x, near, chosen)


def qzo(case):
    """The scales of Q8_0: 32 integers under a half float."""
    model, losses, eps, rate, clip = Moved(case), [], 1e-3, 2e-6, 100.0
    scales, integers = {}, {}
    for name, t in model.theta.items():
        if t.ndim == 2:
            blocks = gguf.quants.quantize(t.astype(np.float32), gguf.GGMLQuantizationType.Q8_0).reshape(-1, 34)
            scales[name] = blocks[:, :2].copy().view(np.float16).reshape(-1)
            integers[name] = blocks[:, 2:].copy().view(np.int8).astype(np.float64)
    floats, shapes = model.theta, {name: t.shape for name, t in model.theta.items()}

    def loss(by, z):
        moved = lambda name: scales[name].astype(np.float64) + by * z[name]
        return model.loss(floats | {n: (moved(n)[:, None] * q).reshape(shapes[n]) for n, q in integers.items()})

    for update in range(1, UPDATES + 1):
        z = {name: normals(seed_of(2 * update), model.numbers[name] << 8, len(s)) for name, s in scales.items()}
        forward, back = loss(eps, z), loss(-eps, z)
        losses.append((forward + back) / 2)
        far = np.float32(rate * np.clip((forward - back) / (2 * eps), -clip, clip))
        for name, s in scales.items():
            before = s.astype(np.float32)
            moved = before - far * z[name].astype(np.float32)
            moved = np.where(before >= 0, np.maximum(moved, 0), np.minimum(moved, 0)).astype(np.float32)
            stream = 1 << 62 | update << 16 | model.numbers[name]
            words = methods.philox(methods.SEED, stream, np.arange((len(s) + 3) // 4)).reshape(-1)[: len(s)]
            scales[name] = rounded(moved, words >> np.uint64(16))
    print(f"qzo {case}: {losses[0]:.5f} -> {losses[-1]:.5f}")
    out = {f"qzo.{case}.losses": torch.tensor(losses)}
    return out | {f"qzo.{case}.scales.{model.names[n]}": torch.from_numpy(s.astype(np.float32)) for n, s in scales.items()}


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    assert methods.SEED == 3
    out = {}
    for method in RATE:
        for case in CASES:
            out |= run(method, case, Moved(case))
    out |= qzo("llama")
    save("moved", out)


if __name__ == "__main__":
    sys.exit(main())
