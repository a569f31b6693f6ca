"""`torch.mm` as `bench/products` measures it: products with a matrix of ready floats, on request.

One line of JSON says what this is; then each line read, a product as JSON, is answered by the seconds of its shortest run. Operands stay
from one request to the next of the same product, and outputs are written where the last ones were, as in ours.
"""

import argparse
import json
import os
import sys
import time


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", choices=["bf16", "f32"], required=True)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)

    import torch

    torch.set_num_threads(args.threads)
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[args.precision]
    torch.manual_seed(0)

    def operands(tokens, rows, cols, forward):
        """Both operands and the output, of a linear as PyTorch holds it."""
        weight = torch.randn(rows, cols, dtype=dtype)
        if forward:
            return torch.randn(tokens, cols, dtype=dtype), weight.t(), torch.empty(tokens, rows, dtype=dtype)
        return torch.randn(tokens, rows, dtype=dtype), weight, torch.empty(tokens, cols, dtype=dtype)

    def answer(**fields):
        print(json.dumps(fields), flush=True)

    answer(about=f"torch {torch.__version__}")
    last = None
    for line in sys.stdin:
        asked = json.loads(line)
        seconds = asked.pop("seconds")
        if asked != last:
            last, (left, right, out) = asked, operands(**asked)
        least, begin = float("inf"), time.perf_counter()
        while least == float("inf") or time.perf_counter() - begin < seconds:
            start = time.perf_counter()
            torch.mm(left, right, out=out)
            least = min(least, time.perf_counter() - start)
        answer(seconds=least)


if __name__ == "__main__":
    main()
