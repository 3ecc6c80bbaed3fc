"""Cold starts: from the start of a process to its first output, with a warm page cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from edgecompile.bench.process import Baseline, WorkerProcess
from edgecompile.bench.report import BenchSettings, ColdStart
from edgecompile.bench.rounds import shuffled
from edgecompile.progress import StepHandle

START_TIMEOUT = 1800.0
#: Seconds after which what starts slowly is started no more.
BUDGET = 60.0

_Start = tuple[float, float, float, float]


def measure_cold_starts(
    baselines: Sequence[Baseline],
    workload: Mapping[str, Any],
    length: int,
    settings: BenchSettings,
    step: StepHandle,
) -> dict[str, ColdStart]:
    """Starts every baseline ``settings.cold_runs`` times, in turn; medians over them.

    What a process reads should have been read before: the page cache is warm then.

    Args:
        baselines: each in a process of its own.
        workload: the workload of the inputs; see :meth:`WorkerProcess.open`.
        length: the length of the first run.
        settings: the number of repetitions, the length of a pause.
        step: told how far it is.

    Raises:
        BenchError: a process fails.
    """
    starts: dict[str, list[_Start]] = {item.name: [] for item in baselines}
    by_name = {item.name: item for item in baselines}
    for number in range(settings.cold_runs):
        step.update(number, settings.cold_runs, f"start {number + 1} of {settings.cold_runs}")
        for name in shuffled(list(by_name), settings.seed, "cold", number):
            if sum(item[0] for item in starts[name]) < BUDGET:
                time.sleep(settings.pause_s)
                starts[name].append(_start(by_name[name], workload, length, settings))
    return {name: _median(items) for name, items in starts.items() if items}


def _median(items: list[_Start]) -> ColdStart:
    total, python, loading, running = map(statistics.median, zip(*items, strict=True))
    return ColdStart(total, python, loading, running, tuple(item[0] for item in items))


def _start(
    baseline: Baseline, workload: Mapping[str, Any], length: int, settings: BenchSettings
) -> _Start:
    """Seconds: in all, until Python and numpy are there, until it is open, its first run."""
    with WorkerProcess(baseline, settings.threads) as worker:
        opened = worker.open(workload, timeout=START_TIMEOUT)
        ran = worker.run([length], seed=settings.seed, timeout=START_TIMEOUT)
    marks = (worker.spawned_ns, opened["begun_ns"], opened["opened_ns"], ran["done_ns"])
    python, loading, running = ((b - a) / 1e9 for a, b in pairwise(marks))
    return (marks[-1] - marks[0]) / 1e9, python, loading, running
