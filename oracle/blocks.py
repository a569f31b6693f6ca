"""Golden blocks for crates/kernels/tests/blocks.rs: random block bytes and what the `gguf` package makes of them.

Run: pip install gguf==0.19.0 numpy && python oracle/blocks.py

One file per type in crates/kernels/tests/golden: the blocks' bytes, then the expected elements as little-endian f32. Scales are
kept finite, for a NaN's bits are nobody's promise.
"""

import importlib.metadata
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

assert importlib.metadata.version("gguf") == "0.19.0", "the golden files are those of gguf 0.19.0"

OUT = pathlib.Path(__file__).parent.parent / "crates/kernels/tests/golden"
BLOCKS = {1: 96, 32: 12, 256: 5}  # by block length
HALVES = {  # byte offsets of f16 values in a block
    T.F16: [0], T.Q8_0: [0], T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def random_blocks(rng: np.random.Generator, ty: T, count: int, block_bytes: int) -> np.ndarray:
    blocks = rng.integers(0, 256, (count, block_bytes), dtype=np.uint8)
    for at in HALVES.get(ty, []):
        bits = rng.integers(0, 1 << 16, count, dtype=np.uint16)  # subnormals and zeros included
        bits[(bits & 0x7C00) == 0x7C00] ^= 0x4000
        blocks[:, at : at + 2] = bits.view(np.uint8).reshape(count, 2)
    if ty in (T.F32, T.BF16):
        top = blocks[:, -1]
        top[(top & 0x7F) == 0x7F] ^= 0x40
    return blocks


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for ty in (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q4_K, T.Q5_K, T.Q6_K):
        length, block_bytes = gguf.GGML_QUANT_SIZES[ty]
        rng = np.random.default_rng(int(ty))
        data = random_blocks(rng, ty, BLOCKS[length], block_bytes)
        want = gguf.dequantize(data, ty).astype(np.float32)
        assert np.isfinite(want).all() and want.size == BLOCKS[length] * length
        (OUT / f"{ty.name.lower()}.bin").write_bytes(data.tobytes() + want.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
