"""Times bundles made of ONNX files against ONNX Runtime on the same files.

One process measures both in interleaved rounds, in an order that is drawn. Needs numpy, onnxruntime and the
runtime alone, so it also runs on machines without torch.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from edgecompile.runtime import open_bundle

_MILLISECONDS = 1e3


def draw(specs: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """Random inputs of a bundle by name; axes that ``sizes`` doesn't have are 1."""
    source = np.random.default_rng(0)
    inputs = {}
    for spec in specs:
        shape = [size if isinstance(size, int) else sizes.get(size, 1) for size in spec.shape]
        if spec.name.endswith("mask"):
            inputs[spec.name] = np.ones(shape, spec.dtype)
        elif np.dtype(spec.dtype).kind == "f":
            inputs[spec.name] = source.standard_normal(shape).astype(spec.dtype)
        else:
            inputs[spec.name] = source.integers(0, 100, shape).astype(spec.dtype)
    return inputs


def median_times(
    runs: dict[str, Callable[[], Any]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Median seconds of a run, by name, for every round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):  # the first one warms up
        for name in random.sample(list(runs), len(runs)):
            times, begin = [], time.perf_counter()
            while time.perf_counter() - begin < seconds:
                start = time.perf_counter()
                runs[name]()
                times.append(time.perf_counter() - start)
            if number:
                found[name].append(statistics.median(times))
            time.sleep(0.2)
    return found


def measure(file: Path, bundle: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each length."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = options.threads, 4
    session = onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    rows = []
    with open_bundle(bundle, threads=options.threads) as model:
        specs = model.manifest.inputs
        varies = any(isinstance(size, str) and size != "batch" for s in specs for size in s.shape)
        for length in options.lengths if varies else [None]:
            axes = {str(size) for spec in specs for size in spec.shape if isinstance(size, str)}
            inputs = draw(specs, dict.fromkeys(axes - {"batch"}, length or 1))
            feeds = dict(zip(names, inputs.values(), strict=False))
            feeds.update((name, np.array(16000)) for name in names[len(inputs) :])
            ours = list(model.run(inputs).values())
            theirs = session.run(None, feeds)
            apart = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
            runs = {"bundle": partial(model.run, inputs), "ort": partial(session.run, None, feeds)}
            times = median_times(runs, options.rounds, options.seconds)
            ratios = [a / b for a, b in zip(times["bundle"], times["ort"], strict=True)]
            rows.append(
                {
                    "file": file.name,
                    "length": length,
                    "ratio": statistics.median(ratios),
                    "ratios": ratios,
                    "bundle_ms": statistics.median(times["bundle"]) * _MILLISECONDS,
                    "onnxruntime_ms": statistics.median(times["ort"]) * _MILLISECONDS,
                    "largest_difference": apart,
                }
            )
            print(json.dumps({k: v for k, v in rows[-1].items() if k != "ratios"}), flush=True)
    return rows


def main() -> None:
    """Runs."""
    parser = argparse.ArgumentParser(prog="benchmarks/run onnx-files", description=__doc__)
    parser.add_argument("--pair", nargs=2, type=Path, action="append", required=True,
                        metavar=("FILE", "BUNDLE"), help="ONNX file, and its bundle")  # fmt: skip
    parser.add_argument("--lengths", type=lambda text: [int(n) for n in text.split(",")],
                        default=[64, 256], help="sizes of the varying axes (default 64,256)")  # fmt: skip
    parser.add_argument("--threads", type=int, default=2, help="of each (default 2)")
    parser.add_argument(
        "--rounds", type=int, default=9, help="of which medians are taken (default 9)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.5, help="of each in a round (default 0.5)"
    )
    parser.add_argument("--output", type=Path, help="file of the figures, as JSON")
    options = parser.parse_args()
    rows = [row for file, bundle in options.pair for row in measure(file, bundle, options)]
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
