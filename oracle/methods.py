"""Ten updates of every training method on the golden case `llama`, in PyTorch and NumPy with the engine's own random numbers.

Writes crates/engine/tests/golden/methods.safetensors: for each method `<method>.losses`, the loss that is reported of each update, and
`<method>.final.<name>`, the adapter after the last, under the names of its file.

Philox 4x32-10 is written out here, after Salmon et al.; so are the laws of the directions. The order of random numbers is the engine's:
matrices count A and B of every adapted linear in the order of a block, and B is held transposed, `[rank, out]`.
"""

from pathlib import Path

import numpy as np
import torch
import transformers as tf
from peft import PeftModel
from safetensors.torch import save_file

from families import GOLDEN, LENGTHS, Record, padded  # noqa: F401
from safetensors.torch import load_file

CASE = GOLDEN / "llama"
SEED, UPDATES = 3, 10
# A direction of low rank is longer, and so are its slopes: a step as long as the others' would carry rounding far.
RATE = {"mezo": 2e-3, "sparse-mezo": 2e-3, "fzoo": 2e-3, "lozo": 5e-4, "lezo": 2e-3}
LINEARS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
EPS = {"mezo": 1e-2, "sparse-mezo": 1e-2, "fzoo": 1e-2, "lozo": 1e-2, "lezo": 1e-2}
MASK = np.uint64(0xFFFFFFFF)


def philox(seed, stream, positions):
    """The four words at each position, as `[positions, 4]`."""
    positions = np.asarray(positions, dtype=np.uint64)
    high = np.uint64(32)
    counter = [positions & MASK, positions >> high, np.full_like(positions, stream & 0xFFFFFFFF), np.full_like(positions, stream >> 32)]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    for _ in range(10):
        a, b = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [(b >> high) ^ counter[1] ^ key[0], b & MASK, (a >> high) ^ counter[3] ^ key[1], a & MASK]
        key = [(key[0] + np.uint64(0x9E3779B9)) & MASK, (key[1] + np.uint64(0xBB67AE85)) & MASK]
    return np.stack(counter, axis=1)


def normals(seed, stream, count):
    words = (philox(seed, stream, np.arange((count + 3) // 4)) >> np.uint64(8)).astype(np.float64) / 2**24
    far = np.sqrt(-2 * np.log(words[:, ::2] + 2.0**-24))
    angle = 2 * np.pi * words[:, 1::2]
    return np.stack([far * np.cos(angle), far * np.sin(angle)], axis=2).reshape(-1)[:count]


def signs(seed, stream, count):
    words = philox(seed, stream, np.arange((count + 127) // 128)).reshape(-1)
    bits = (words[:, None] >> np.arange(32, dtype=np.uint64)) & np.uint64(1)
    return 1.0 - 2.0 * bits.reshape(-1)[:count].astype(np.float64)


def seed_of(number):
    words = philox(SEED, 1 << 40, [number])[0]
    return int(words[0]) | int(words[1]) << 32


def direction(method, at, number, update, theta):
    """Direction `number` of matrix `at` in this update, where `theta` is `[rank, cols]` as the engine holds it."""
    rows, cols = theta.shape
    seed, stream = seed_of(2 * update), at << 8 | number
    if method == "fzoo":
        z = signs(seed, stream, rows * cols).reshape(rows, cols)
    elif method == "lozo":
        first = (update - 1) // 50 * 50 + 1
        u = normals(seed, stream, rows * 2).reshape(rows, 2)
        v = normals(seed_of(2 * first + 1), at << 8 | 0xFF, cols * 2).reshape(cols, 2)
        z = u @ v.T
    else:
        z = normals(seed, stream, rows * cols).reshape(rows, cols)
    if method == "sparse-mezo":
        limit = np.sort(np.abs(theta).reshape(-1))[int(np.ceil(0.25 * theta.size)) - 1]
        z = np.where(np.abs(theta) <= limit, z, 0.0)
    return z


def still_blocks(update, blocks):
    """LeZO: the blocks with the highest numbers stay, three quarters of them rounded down."""
    numbers = philox(seed_of(2 * update), 2**64 - 1, np.arange(blocks))[:, 0]
    order = sorted(range(blocks), key=lambda block: (numbers[block], block))
    return set(order[blocks - int(0.75 * blocks) :])


class Adapter:
    """The matrices of the golden adapter in the engine's order, and the loss of the golden records."""

    def __init__(self):
        base = tf.AutoModelForCausalLM.from_pretrained(CASE, attn_implementation="eager").double().eval()
        self.model = PeftModel.from_pretrained(base, CASE / "adapter", is_trainable=True).double()
        expected = load_file(CASE / "expected.safetensors")
        self.batch = padded([Record(expected[f"ids.{i}"]) for i in range(len(LENGTHS))])
        named = dict(self.model.named_parameters())
        self.blocks = base.config.num_hidden_layers
        self.matrices = []  # (name in the file, block, parameter, whether it is a B)
        for block in range(self.blocks):
            for linear in LINEARS:
                for factor in "AB":
                    name = f"base_model.model.model.layers.{block}.{linear}.lora_{factor}"
                    self.matrices.append((f"{name}.weight", block, named[f"{name}.default.weight"], factor == "B"))

    def loss(self):
        with torch.no_grad():
            return self.model(**self.batch).loss.item()

    def held(self):
        return [(p.detach().T if b else p.detach()).numpy().copy() for _, _, p, b in self.matrices]

    def put(self, held):
        for (_, _, p, b), values in zip(self.matrices, held):
            p.data.copy_(torch.from_numpy(values.T if b else values))

    def final(self, method):
        return {f"{method}.final.{name}": p.detach().float().contiguous().clone() for name, _, p, _ in self.matrices}


def without_gradients(method):
    adapter, eps, losses = Adapter(), EPS[method], []
    count = 8 if method == "fzoo" else 1
    for update in range(1, UPDATES + 1):
        theta = adapter.held()
        still = still_blocks(update, adapter.blocks) if method == "lezo" else set()
        z = [[0.0 * t if adapter.matrices[at][1] in still else direction(method, at, d, update, t) for at, t in enumerate(theta)]
             for d in range(count)]

        def moved(by, d):
            adapter.put([t + by * z for t, z in zip(theta, z[d])])
            return adapter.loss()

        if method == "fzoo":
            adapter.put(theta)
            at = adapter.loss()
            found = np.array([moved(eps, d) for d in range(count)])
            far = (found - at) / (count * found.std(ddof=1))
        else:
            forward, back = moved(eps, 0), moved(-eps, 0)
            at, far = (forward + back) / 2, [(forward - back) / (2 * eps)]
        losses.append(at)
        adapter.put([t - RATE[method] * sum(c * z[d][i] for d, c in enumerate(far)) for i, t in enumerate(theta)])
    print(f"{method}: {losses[0]:.5f} -> {losses[-1]:.5f}")
    return {f"{method}.losses": torch.tensor(losses)} | adapter.final(method)


def drop_backward():
    """SGD where the gradient passes by half of the blocks: there a block is the identity in the backward pass, and its adapters stay."""
    adapter, losses = Adapter(), []
    step = torch.optim.SGD([p for _, _, p, _ in adapter.matrices], lr=0.1, weight_decay=0.01)
    layers = adapter.model.base_model.model.model.layers
    whole, passed = [layer.forward for layer in layers], set()

    def forward(block):
        def run(x, *args, **more):
            out = whole[block](x, *args, **more)
            return x + (out - x).detach() if block in passed else out

        return run

    for block, layer in enumerate(layers):
        layer.forward = forward(block)
    for update in range(1, UPDATES + 1):
        numbers = philox(SEED, 1 << 41, [update << 32 | block for block in range(adapter.blocks)])[:, 0]
        order = sorted(range(adapter.blocks), key=lambda block: (numbers[block], block))
        passed = set(order[: adapter.blocks // 2])
        step.zero_grad(set_to_none=True)
        loss = adapter.model(**adapter.batch).loss
        loss.backward()
        losses.append(loss.item())
        step.step()  # what has no gradient stays
    print(f"drop-backward: {losses[0]:.5f} -> {losses[-1]:.5f}")
    return {"drop-backward.losses": torch.tensor(losses)} | adapter.final("drop-backward")


def lora_fa():
    """AdamW on second factors alone."""
    adapter, losses = Adapter(), []
    step = torch.optim.AdamW([p for _, _, p, b in adapter.matrices if b], lr=1e-2, weight_decay=0.01)
    for _ in range(UPDATES):
        adapter.model.zero_grad()
        loss = adapter.model(**adapter.batch).loss
        loss.backward()
        losses.append(loss.item())
        step.step()
    print(f"lora-fa: {losses[0]:.5f} -> {losses[-1]:.5f}")
    return {"lora-fa.losses": torch.tensor(losses)} | adapter.final("lora-fa")


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    # Known answers of Random123.
    assert [hex(x) for x in philox(0, 0, [0])[0]] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]
    out = lora_fa() | drop_backward()
    for method in EPS:
        out |= without_gradients(method)
    path = Path(GOLDEN) / "methods.safetensors"
    save_file({name: tensor.float() for name, tensor in out.items()}, path)
    path.chmod(0o644)
    print(f"{path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
