#!/usr/bin/env python3
"""Times the planner: ten million samples, 8192 distinct lengths, up to 32 buckets, one core.

Prints one JSON object; --output writes it to a file, too. The mark is under one second from the
raw samples to the plan. Run it with the Python that has numpy and edgecompile.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"  # before numpy is imported

import numpy as np  # noqa: E402

from edgecompile.buckets.costs.grid import CostGrid, CostPoint  # noqa: E402
from edgecompile.buckets.planner import plan_buckets  # noqa: E402
from edgecompile.lengths.distribution import LengthDistribution  # noqa: E402


def make_samples(n: int, distinct: int, seed: int) -> np.ndarray[Any, Any]:
    """Log-normal lengths of which every one from 1 to ``distinct`` occurs."""
    rng = np.random.default_rng(seed)
    drawn = np.clip(rng.lognormal(np.log(distinct / 20), 1.2, n - distinct), 1, distinct)
    return rng.permutation(np.concatenate([drawn.astype(np.int64), np.arange(1, distinct + 1)]))


def make_curve(distinct: int, seed: int, modes: str) -> CostGrid:
    """A noisy, non-monotone curve of 64 points: the case that needs the general recurrence."""
    rng = np.random.default_rng(seed)
    lengths = np.unique(np.geomspace(8, distinct, 64).astype(int))
    padded = (0.5 + 0.01 * lengths + 1e-6 * lengths**2) * rng.uniform(0.95, 1.05, len(lengths))
    exact = padded * rng.uniform(1.05, 1.4, len(lengths))
    points = (
        CostPoint(n, e if modes == "both" else None, p)
        for n, e, p in zip(lengths.tolist(), exact.tolist(), padded.tolist(), strict=True)
    )
    return CostGrid(tuple(points), "measured")


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call, and its seconds."""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--distinct", type=int, default=8192)
    parser.add_argument("--buckets", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the record here, too")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    samples = make_samples(options.samples, options.distinct, options.seed)
    cases = {}
    for modes in ("both", "pad"):
        curve = make_curve(options.distinct, options.seed, modes)
        counting, planning = [], []
        for _ in range(options.repeats):
            distribution, seconds = timed(lambda: LengthDistribution.from_samples(samples))
            counting.append(seconds)
            plan, seconds = timed(
                functools.partial(plan_buckets, distribution, curve, max_buckets=options.buckets)
            )
            planning.append(seconds)
        cases[modes] = {
            "distinct": len(distribution.lengths),
            "buckets": len(plan.buckets),
            "expected_ms": plan.expected_ms,
            "count_s": {"median": float(np.median(counting)), "max": max(counting)},
            "plan_s": {"median": float(np.median(planning)), "max": max(planning)},
        }
    record = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "options": {k: v for k, v in vars(options).items() if k != "output"},
        "cases": cases,
        "worst_s": max(c["count_s"]["max"] + c["plan_s"]["max"] for c in cases.values()),
    }
    text = json.dumps(record, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
