"""Golden 8-bit maps for crates/kernels/tests/adamw_8bit.rs: what bitsandbytes' `create_dynamic_map` makes, signed and unsigned.

Run: pip install bitsandbytes==0.48.2 && python oracle/dynamic_maps.py

Two files in crates/kernels/tests/golden, each 256 little-endian f32 in ascending order.
"""

import importlib.metadata
import pathlib

from bitsandbytes.functional import create_dynamic_map

assert importlib.metadata.version("bitsandbytes") == "0.48.2", "the golden files are those of bitsandbytes 0.48.2"

OUT = pathlib.Path(__file__).parent.parent / "crates/kernels/tests/golden"


def main() -> None:
    for name, signed in (("dynamic_signed", True), ("dynamic_unsigned", False)):
        values = create_dynamic_map(signed=signed).numpy()
        assert values.shape == (256,) and (values[:-1] < values[1:]).all()
        (OUT / f"{name}.bin").write_bytes(values.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
