"""Golden blocks for crates/kernels/tests/quantize.rs: rows of floats and what the `gguf` package quantises them to.

Run: pip install gguf==0.19.0 numpy && python oracle/quantize.py

One file, crates/kernels/tests/golden/quantized.bin: the elements as little-endian f32, then the bytes of all of them in F16, BF16,
Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1, one type after the other. The package has no quantisers of the types with blocks of 256.
"""

import importlib.metadata
import pathlib

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

assert importlib.metadata.version("gguf") == "0.19.0", "the golden files are those of gguf 0.19.0"

OUT = pathlib.Path(__file__).parent.parent / "crates/kernels/tests/golden/quantized.bin"


def rows() -> np.ndarray:
    rng = np.random.default_rng(32)
    normal = rng.standard_normal((24, 32)) * np.logspace(-7, 3, 24)[:, None]
    heavy = rng.standard_t(2, (8, 32)) * 0.02
    ramp = np.linspace(-1, 1, 32)
    nasty = [
        np.zeros(32), np.full(32, 0.7), np.full(32, -0.7), -np.abs(rng.standard_normal(32)), np.abs(rng.standard_normal(32)),
        np.where(np.arange(32) % 2 == 0, 1.0, -1.0), np.where(np.arange(32) == 17, 60000.0, 1e-3), ramp, -ramp,
        np.round(ramp * 8) / 8 + 1 / 16, np.arange(32) - 16.0, np.arange(32) / 2.0 - 8, np.full(32, -0.0),
        ramp * 1e-30, np.where(np.arange(32) == 0, 1e-36, 0.0), rng.integers(-254, 255, 32) / 2.0,
    ]
    return np.concatenate([normal, heavy, np.stack(nasty)]).astype(np.float32)


def main() -> None:
    data = rows()
    types = (T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1)
    OUT.write_bytes(data.astype("<f4").tobytes() + b"".join(gguf.quantize(data, ty).tobytes() for ty in types))


if __name__ == "__main__":
    main()
