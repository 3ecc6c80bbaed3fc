"""Measuring what a length costs, through the runtime that ships.

A bundle with one dynamic program is timed by its own ``bench`` command in a process without torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgecompile.costs import CostCurve, CostPoint, Mode
from edgecompile.errors import VerificationError
from edgecompile.lengths import LengthDistribution
from edgecompile.verify import device_environment


def choose_lengths(distribution: LengthDistribution, lo: int, hi: int, count: int = 9) -> list[int]:
    """Lengths at which to measure: both edges of ``[lo, hi]``, the quantiles where traffic lies,
    and a geometric ladder for the rest, so that interpolation is never far from a point.

    Args:
        distribution: the traffic.
        lo, hi: the range that will be served.
        count: about how many lengths to choose.
    """
    chosen = {lo, hi}
    for quantile in (0.1, 0.5, 0.9):
        chosen.add(min(hi, max(lo, int(distribution.quantile(quantile)))))
    steps = max(2, count - len(chosen))
    for step in range(1, steps):
        chosen.add(max(lo, min(hi, round(lo * (hi / lo) ** (step / steps)))))
    return sorted(chosen)


def run_bench(
    bundle: Path,
    lengths: Sequence[int],
    *,
    threads: int | None = None,
    variant: str | None = None,
    seconds: float = 10.0,
    python: str = sys.executable,
) -> dict[str, Any]:
    """Runs the bundle's ``bench`` command on ``lengths`` and returns its JSON.

    Raises:
        VerificationError: the runtime could not run the bundle.
    """
    environment = device_environment(bundle)
    with tempfile.TemporaryDirectory(prefix="edgecompile-bench-") as folder:
        listing = Path(folder) / "lengths.txt"
        listing.write_text("".join(f"{n}\n" for n in lengths))
        command = [python, "-m", "edgecompile.runtime", "bench", str(bundle.resolve()), "--json"]
        command += ["--lengths", str(listing), "--cold-runs", "0", "--seconds", str(seconds)]
        if threads is not None:
            command += ["--threads", str(threads)]
        if variant is not None:
            command += ["--variant", variant]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode != 0:
        raise VerificationError(
            f"the bundle's runtime failed with exit code {done.returncode}:\n{done.stderr.strip()}"
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def measure_curve(
    bundle: Path, lengths: Sequence[int], mode: Mode, *, threads: int | None = None
) -> CostCurve:
    """The measured cost of each length in ``mode``.

    Args:
        bundle: runs ``lengths`` unpadded for ``exact``; has a static program of each for ``pad``.
        lengths: where to measure.
        mode: what the times are the cost of.
        threads: None: all that the process may use.

    Returns:
        A curve with the median of each length in milliseconds; its spread is the distance from
        the median to the 90th percentile.
    """
    answer = run_bench(bundle, lengths, threads=threads)
    points = []
    for row in answer["lengths"]:
        median = float(row["p50_ms"])
        spread = max(0.0, float(row["p90_ms"]) - median)
        if mode == "exact":
            point = CostPoint(int(row["length"]), median, None, exact_spread_ms=spread)
        else:
            point = CostPoint(int(row["length"]), None, median, pad_spread_ms=spread)
        points.append(point)
    provenance = {
        "how": "the bundle's own runtime on the build host",
        "variant": str(answer.get("variant", "")),
        "threads": str(answer.get("threads", "")),
    }
    return CostCurve(tuple(points), "measured", provenance)
