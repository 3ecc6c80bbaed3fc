"""The findings of a benchmark, as values that leave a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgecompile.bench.timings import Ratio, TimeSummary
from edgecompile.errors import BenchError
from edgecompile.hosts.identity import usable_cpus
from edgecompile.precision import base_name

REPORT_VERSION = 1

_LEAST = {
    **{"threads": 1, "rounds": 1, "runs": 1},
    **{"warmup_rounds": 0, "cold_runs": 0, "pause_s": 0},
}


@dataclass(frozen=True)
class BenchSettings:
    """The settings of a measurement.

    Attributes:
        threads: the threads that each process may use.
        rounds: the rounds that count.
        warmup_rounds: before them, dropped.
        runs: the runs of each baseline in each round.
        lead_in: runs after each change of process, dropped.
        pause_s: rest after each change, until the last one's threads have stopped spinning.
        cold_runs: fresh processes for the cold start.
        seed: the seed of orders and inputs.
        variant: the variant of the bundles; None: the best that this CPU can run.

    Raises:
        BenchError: a number makes no sense; names all of them.
    """

    threads: int = field(default_factory=usable_cpus)
    rounds: int = 12
    warmup_rounds: int = 2
    runs: int = 100
    lead_in: int = 5
    pause_s: float = 0.3
    cold_runs: int = 7
    seed: int = 0
    variant: str | None = None

    def __post_init__(self) -> None:
        problems = [
            f"{name.replace('_', ' ')}: {getattr(self, name)}, at least {low} is needed"
            for name, low in _LEAST.items()
            if getattr(self, name) < low
        ]
        if problems:
            raise BenchError("; ".join(problems))


@dataclass(frozen=True)
class ColdStart:
    """From the start of a process to its first output, page cache warm; seconds, medians.

    Attributes:
        total_s: all of it.
        python_s: the part until the interpreter runs and numpy is imported.
        open_s: the part for importing and loading.
        run_s: the part for the first run.
        all_total_s: the total seconds of every process.
    """

    total_s: float
    python_s: float
    open_s: float
    run_s: float
    all_total_s: tuple[float, ...]


@dataclass(frozen=True)
class Memory:
    """Resident memory in MB (10**6 bytes).

    Attributes:
        resident: all of it, after the rounds.
        private: the part that is the process' own.
        shared: the part of mapped files (weights, libraries), of which processes share one copy.
        start: resident before anything else was imported: Python and numpy.
    """

    resident: float
    private: float
    shared: float
    start: float


@dataclass(frozen=True)
class BaselineResult:
    """The bundle or a baseline: its figures.

    Attributes:
        name: the name in reports.
        precision: the data type of matmuls with weights: a bundle's label, ``fp32``, ``bf16``,
            ``int8``.
        times: the times of its runs.
        cold: its cold start; None: not measured.
        memory: the memory of its process; None: the system doesn't tell.
        cosine: least cosine between its outputs and eager's over all lengths; None: no eager.
        max_abs_error: largest absolute difference to eager's outputs; None: no eager.
        parts: bytes that a device needs beside Python and numpy, by what they are.
        facts: the facts that its process reported: versions, threads.
        notes: choices a reader should know.
    """

    name: str
    precision: str
    times: TimeSummary
    cold: ColdStart | None
    memory: Memory | None
    cosine: float | None
    max_abs_error: float | None
    parts: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def precision_class(self) -> str:
        """``fp32``, ``bf16`` or ``int8``: what a mixed label begins with."""
        return base_name(self.precision)

    @property
    def bytes(self) -> int:
        """Bytes that a device needs beside Python and numpy."""
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        """Plain values; times in ms and s, memory in MB, sizes in bytes."""
        return {
            "precision": self.precision,
            **asdict(self.times),
            "cold_s": None if self.cold is None else self.cold.total_s,
            "rss_mb": None if self.memory is None else self.memory.resident,
            "cosine": _finite(self.cosine),
            "max_abs_error": _finite(self.max_abs_error),
            "bytes": self.bytes if self.parts else None,
            "bytes_by_part": dict(self.parts),
            "memory_mb": None if self.memory is None else asdict(self.memory),
            "cold_start": None if self.cold is None else asdict(self.cold),
            "facts": dict(self.facts),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class BenchReport:
    """A benchmark: a bundle first, then those it was measured against.

    Attributes:
        bundle: name of the bundle.
        manifest_sha256: the SHA-256 of its manifest, which names every file's hash.
        model: the model that eager was made from; None: there was only the bundle.
        model_sha256: the SHA-256 of the model's files, by name, where its form has such.
        started: UTC, ISO 8601.
        command: the command line, without folders.
        settings: the settings of the measurement.
        lengths: figures of the stream that was run, and where it comes from.
        results: the bundle's figures, then the baselines'.
        ratios: name -> other name -> mean time of the first over that of the second.
        by_length: name -> length -> median milliseconds.
        machine: the machine that it ran on.
        versions: the versions of the software.
        load: load average at the start; CPUs that others used, and that the hypervisor took,
            during the rounds.
        warnings: reasons to doubt the figures.
        notes: remarks for the reader.
    """

    bundle: str
    manifest_sha256: str
    model: str | None
    started: str
    command: tuple[str, ...]
    settings: BenchSettings
    lengths: Mapping[str, Any]
    results: tuple[BaselineResult, ...]
    ratios: Mapping[str, Mapping[str, Ratio]]
    by_length: Mapping[str, Mapping[int, float]]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    load: Mapping[str, float]
    model_sha256: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def subject(self) -> BaselineResult:
        """The bundle that was asked about."""
        return self.results[0]

    @property
    def best_other(self) -> BaselineResult | None:
        """The baseline with the least mean time beside the bundle; None: it ran alone."""
        return min(self.results[1:], key=lambda item: item.times.mean_ms, default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without NaN or infinities."""
        document = asdict(self)
        del document["results"]
        best = self.best_other
        return {
            "version": REPORT_VERSION,
            **document,
            "contenders": {item.name: item.to_json() for item in self.results},
            "best_other": None if best is None else best.name,
        }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
