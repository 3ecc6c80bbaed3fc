"""Times the zoo's bundles on a GPU beside eager PyTorch and torch.compile, as gpu.py does.

    python -m benchmarks.gpu.zoo BUNDLES --json FILE [--compile] [--shard I/N] [--seconds S]

BUNDLES is the folder that ``tests.zoo.gpu_coverage --run`` left. Each architecture is run at its bucket's hint, in
float16, inputs and outputs on the GPU, each run waited for; all engines take turns, figures are medians in microseconds.
With --compile, ``torch.compile(dynamic=True)`` takes part, which compiles for a while: shards may do so side
by side, and wait for each other before they measure. Needs torch with CUDA and transformers.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.engines import own_engines, take_turns, waiting
from benchmarks.gpu.single import open_single
from edgecompile.runtime.call.inputs import make_inputs
from tests.zoo.catalogue import ENTRIES, in_order


def measure(path: Path, compiled: bool, lock: Path, rounds: int) -> dict[str, Any]:
    """Medians of one architecture by engine, in microseconds."""
    row: dict[str, Any] = {}
    with open_single(str(path)) as model:
        (bucket,) = model.manifest.buckets
        sizes = {axis: extent.hint or extent.hi for axis, extent in bucket.axes.items()}
        row["sizes"] = sizes
        engines, close = own_engines({}, model, sizes)
        try:
            engines = {name: call for name, call in engines.items() if name.startswith("device")}
            arrays = make_inputs(model.manifest, sizes, 7)
            try:
                engines.update(torch_engines(path.stem, arrays, compiled))
            except Exception as error:  # what half precision or torch.compile can't do
                row["torch"] = f"{type(error).__name__}: {error}"[:300]
            with lock.open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                row["us"] = take_turns(engines, rounds, waiting(model))
        finally:
            close()
    return row


def torch_engines(name: str, arrays: dict[str, np.ndarray], compiled: bool) -> dict[str, Any]:
    """torch's ways to run an architecture, warmed up."""
    spec = ENTRIES[name].make()
    module = spec.module.half().cuda().eval()
    tensors = {key: torch.from_numpy(array).cuda() for key, array in arrays.items()}
    inputs = {key: x.half() if x.is_floating_point() else x for key, x in tensors.items()}
    named = isinstance(spec.inputs, Mapping)
    models = {"eager": module}
    if compiled:
        torch._dynamo.reset()
        models["compile"] = torch.compile(module, dynamic=True)
    engines = {}
    for label, model in models.items():

        def run(model: Any = model) -> None:
            with torch.no_grad():
                model(**inputs) if named else model(*inputs.values())
            torch.cuda.synchronize()

        for _ in range(3):
            run()
        engines[f"torch device: {label}"] = run
    return engines


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.zoo", description=__doc__)
    parser.add_argument("bundles", type=Path)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--compile", action="store_true", help="time torch.compile, too")
    parser.add_argument(
        "--shard", default="0/1", metavar="I/N", help="every N-th, from the I-th on"
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="start none after so long")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    index, count = map(int, options.shard.split("/"))
    names = [name for name in in_order() if (options.bundles / f"{name}.ecb").is_dir()]
    rows: dict[str, Any] = {}
    start = time.perf_counter()
    for name in names[index::count]:
        if time.perf_counter() - start > options.seconds:
            break
        try:
            rows[name] = measure(
                options.bundles / f"{name}.ecb",
                options.compile,
                options.bundles / "lock",
                options.rounds,
            )
        except Exception as error:
            rows[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(name, rows[name], file=sys.stderr, flush=True)
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
