"""Compares outputs with eager's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgecompile.bench.process import WorkerProcess
from edgecompile.errors import BenchError

SAVE_TIMEOUT = 600.0


@dataclass(frozen=True)
class Agreement:
    """Over all lengths and outputs: the least cosine, and the largest absolute difference."""

    cosine: float
    max_abs_error: float


def measure_agreement(
    reference: WorkerProcess,
    workers: Mapping[str, WorkerProcess],
    lengths: Sequence[int],
    folder: Path,
    *,
    seed: int,
) -> dict[str, Agreement]:
    """Runs every length once with the same inputs everywhere, and compares the outputs.

    Args:
        reference: the worker that is right by definition: eager.
        workers: the workers by name; the reference may be among them.
        lengths: each once.
        folder: the folder for the outputs.
        seed: the seed of the inputs.

    Raises:
        BenchError: a process fails, or gives other outputs or shapes.
    """
    reference_file = folder / "reference.npz"
    reference.save(lengths, reference_file, seed=seed, timeout=SAVE_TIMEOUT)
    agreement = {}
    with np.load(reference_file, allow_pickle=False) as expected:
        for index, (name, worker) in enumerate(workers.items()):
            path = folder / f"{index}.npz"
            worker.save(lengths, path, seed=seed, timeout=SAVE_TIMEOUT)
            with np.load(path, allow_pickle=False) as outputs:
                agreement[name] = compare_outputs(name, outputs, expected)
            path.unlink()
    return agreement


def compare_outputs(
    name: str,
    got: Mapping[str, npt.NDArray[Any]],
    expected: Mapping[str, npt.NDArray[Any]],
) -> Agreement:
    """Compares arrays by name, in float64.

    Raises:
        BenchError: arrays are missing or have other shapes; lists all of them.
    """
    problems = []
    cosine, error = 1.0, 0.0
    for key in expected:
        if key not in got:
            problems.append(f"{key} is missing")
            continue
        a, b = (np.asarray(item[key], np.float64).reshape(-1) for item in (got, expected))
        if got[key].shape != expected[key].shape:
            problems.append(f"{key} has shape {got[key].shape}, not {expected[key].shape}")
            continue
        if a.size == 0:
            continue
        # fmin and fmax would drop a NaN, which must be seen.
        cosine = float(np.minimum(cosine, _cosine(a, b)))
        error = float(np.maximum(error, np.abs(a - b).max()))
    if problems:
        raise BenchError(f"{name} doesn't give what eager gives: " + "; ".join(problems[:20]))
    return Agreement(cosine, error)


def _cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    scale = float(np.linalg.norm(a) * np.linalg.norm(b))
    if scale == 0.0:
        return 1.0 if np.array_equal(a, b) else 0.0
    # Rounding can carry it past one.
    return float(np.minimum(1.0, np.dot(a, b) / scale))
