"""Where the time of a bundle's runs goes, measured by its own runtime in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgecompile.bench.baselines import bundle_baseline
from edgecompile.bench.process import clean_environment
from edgecompile.bench.report import BenchSettings
from edgecompile.bundle.verify import runtime_command
from edgecompile.errors import BenchError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.units import format_ms, format_share

__all__ = ["COLUMNS", "KernelProfile", "profile_kernels"]

COLUMNS = ("kernel", "ms", "of the run", "calls", "GFLOP/s", "of peak", "GB/s", "of memory")
TIMEOUT_S = 1800


@dataclass(frozen=True)
class KernelProfile:
    """The report of the runtime's ``bench --profile`` (:mod:`edgecompile.runtime.measure.profile`)."""

    report: dict[str, Any]

    def rows(self) -> tuple[tuple[str, ...], ...]:
        """A line of text cells for each kernel, in the order of their time; see COLUMNS."""
        ceilings = self.report["ceilings"]
        return tuple(
            (
                row["kernel"],
                format_ms(row["ms"]),
                format_share(row["share"]),
                "" if row["calls"] is None else f"{row['calls']:.0f}",
                *_rate(row["gflops"], ceilings["gflops"]),
                *_rate(row["gb_per_s"], ceilings["gb_per_s"]),
            )
            for row in self.report["kernels"]
        )

    @property
    def caption(self) -> str:
        """The subject of the table, and the base of its shares."""
        ceilings = self.report["ceilings"]
        return (
            f"A mean run of {format_ms(self.report['run_ms'])} ms on {self.report['threads']} "
            f"threads. Peak: {ceilings['gflops']:.0f} GFLOP/s of float32 multiply-adds on "
            f"registers; memory: {ceilings['gb_per_s']:.1f} GB/s read, both measured with the same "
            "threads. Bytes count each operand and result once, so that weights that stay in a "
            "cache can be read faster than memory allows."
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """The kernels' names, in the rows' order."""
        return tuple(row["kernel"] for row in self.report["kernels"])

    @property
    def times(self) -> tuple[float, ...]:
        """Their milliseconds."""
        return tuple(row["ms"] for row in self.report["kernels"])


def profile_kernels(
    bundle: Path,
    settings: BenchSettings,
    *,
    lengths: LengthDistribution | None = None,
    seconds: float = 5.0,
    cache: Path,
) -> KernelProfile:
    """Runs ``bench --profile`` of the bundle's own runtime, without torch in the process.

    Args:
        bundle: the bundle.
        settings: threads, variant and seed.
        lengths: the traffic; None: the length that each bucket is tuned for.
        seconds: how long to run.
        cache: folder for compiled Python files.

    Raises:
        BenchError: the runtime refuses; its own words are in the error.
    """
    count = settings.threads
    baseline = bundle_baseline("edgecompile", bundle, settings, cache)
    command = [sys.executable, "-m", runtime_command(bundle), "bench", str(bundle.resolve())]
    command += ["--profile", "--json", "--threads", str(count), "--seconds", str(seconds)]
    command += ["--seed", str(settings.seed)]
    if settings.variant is not None:
        command += ["--variant", settings.variant]
    with tempfile.TemporaryDirectory(prefix="edgecompile-profile-") as folder:
        if lengths is not None:
            file = Path(folder) / "lengths.csv"
            pairs = zip(lengths.lengths, lengths.counts, strict=True)
            file.write_text("".join(f"{length},{n}\n" for length, n in pairs))
            command += ["--lengths", str(file)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=clean_environment(baseline, count),
                cwd=os.fspath(folder),
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise BenchError(f"the profile took more than {TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.startswith(("error", "hint"))]
        raise BenchError("the profile failed: " + ("\n".join(lines) or done.stderr.strip()))
    return KernelProfile(json.loads(done.stdout))


def _rate(value: float | None, ceiling: float) -> tuple[str, str]:
    return ("", "") if value is None else (f"{value:.1f}", format_share(value / ceiling))
