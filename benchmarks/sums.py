"""Times norms, softmaxes and means over rows in a bundle beside torch.

    benchmarks/run sums                            every operator and width, about five minutes
    benchmarks/run sums --only softmax --widths 1024
    benchmarks/run sums --bundles FOLDER           keeps the bundles, or times those that are there

Sums are compensated in generated code (docs/architecture.md). To see what that costs, keep the bundles of two
commits in two folders, and time each with this script on quiet cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import edgecompile
from edgecompile.runtime import open_bundle

ROWS = 64
OPERATORS: dict[str, Callable[[int], nn.Module]] = {
    "layer_norm": lambda width: nn.LayerNorm(width),
    "softmax": lambda width: nn.Softmax(-1),
    "mean": lambda width: Mean(),
}


class Mean(nn.Module):
    """The mean of each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(-1, keepdim=True)


def built(name: str, width: int, folder: Path, target: str) -> Path:
    """The bundle of an operator over rows of a width, built if it isn't there."""
    path = folder / f"{name}-{width}.ecb"
    if not path.exists():
        model = {
            "module": OPERATORS[name](width).eval(),
            "inputs": {"x": torch.randn(1, ROWS, width)},
            "axes": {"x": {1: "length"}},
            "max_length": ROWS,
        }
        edgecompile.build(model, lengths=[ROWS], target=target, output=str(path), quick=True)
    return path


def microseconds(run: Callable[[], object], other: Callable[[], object], turns: int) -> list[float]:
    """Medians of both, which take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 3):
        for kept, call in zip(times, (run, other), strict=True):
            started = time.perf_counter()
            for _ in range(50):
                call()
            if turn >= 3:  # warm
                kept.append((time.perf_counter() - started) / 50 * 1e6)
    return [statistics.median(items) for items in times]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=OPERATORS, help="one operator")
    parser.add_argument("--widths", default="128,384,768,4096,65536", help="default: %(default)s")
    parser.add_argument("--target", default="cpu-x86-64-v3", help="default: %(default)s")
    parser.add_argument("--turns", type=int, default=30, help="timings of 50 runs; default: 30")
    parser.add_argument("--bundles", type=Path, help="folder of the bundles; default: none is kept")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        folder = options.bundles or Path(made)
        folder.mkdir(exist_ok=True)
        for name in [options.only] if options.only else OPERATORS:
            for width in map(int, options.widths.split(",")):
                path = built(name, width, folder, options.target)
                module = OPERATORS[name](width).eval()
                x = np.random.default_rng(0).standard_normal((1, ROWS, width)).astype(np.float32)
                tensor = torch.from_numpy(x)
                with open_bundle(str(path), threads=1) as model, torch.inference_mode():
                    ours, theirs = microseconds(
                        lambda model=model, x=x: model.run({"x": x}),  # type: ignore[misc]
                        lambda module=module, x=tensor: module(x),  # type: ignore[misc]
                        options.turns,
                    )
                result = {"operator": name, "width": width, "us": ours, "torch_us": theirs}
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
