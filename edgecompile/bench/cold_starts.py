"""Cold starts: from the start of a process to its first output, with a warm page cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

from edgecompile.bench.contenders.base import Launch
from edgecompile.bench.contenders.process import WorkerProcess
from edgecompile.bench.report import BenchSettings, ColdStart
from edgecompile.bench.rounds import shuffled
from edgecompile.progress import StepHandle

__all__ = ["measure_cold_starts"]

START_TIMEOUT = 1800.0
#: Seconds after which a contender that starts slowly is started no more.
BUDGET = 60.0


def measure_cold_starts(
    launches: Mapping[str, Launch],
    workload: Mapping[str, Any],
    length: int,
    settings: BenchSettings,
    step: StepHandle,
) -> dict[str, ColdStart]:
    """Starts every contender ``settings.cold_runs`` times, in turn; medians over them.

    What a process reads should have been read before: the page cache is warm then.

    Args:
        launches: how to start each.
        workload: of the inputs; see :meth:`WorkerProcess.open`.
        length: of the first run.
        settings: how often, how long a pause.
        step: told how far it is.

    Raises:
        BenchError: a contender fails.
    """
    found: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in launches}
    for number in range(settings.cold_runs):
        step.update(number, settings.cold_runs, f"start {number + 1} of {settings.cold_runs}")
        for name in shuffled(list(launches), settings.seed, "cold", number):
            if sum(item[0] for item in found[name]) < BUDGET:
                time.sleep(settings.pause_s)
                found[name].append(_start(name, launches[name], workload, length, settings))
    return {name: _summary(items) for name, items in found.items() if items}


def _start(
    name: str, launch: Launch, workload: Mapping[str, Any], length: int, settings: BenchSettings
) -> tuple[float, float, float, float]:
    """Seconds: in all, until Python and numpy are there, until it is open, its first run."""
    with WorkerProcess(name, launch, settings.threads) as worker:
        opened = worker.open(launch, workload, timeout=START_TIMEOUT)
        ran = worker.run([length], seed=settings.seed, timeout=START_TIMEOUT)
    python = opened["begun_ns"] - worker.spawned_ns
    loading = opened["opened_ns"] - opened["begun_ns"]
    running = ran["done_ns"] - opened["opened_ns"]
    total = ran["done_ns"] - worker.spawned_ns
    return total / 1e9, python / 1e9, loading / 1e9, running / 1e9


def _summary(items: list[tuple[float, float, float, float]]) -> ColdStart:
    total, python, loading, running = (
        statistics.median(column) for column in zip(*items, strict=True)
    )
    return ColdStart(total, python, loading, running, tuple(item[0] for item in items))
