"""Rounds: every contender runs the same lengths, in turn, in an order that changes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from edgecompile.bench.contenders.process import WorkerProcess
from edgecompile.bench.report import BenchSettings
from edgecompile.bench.timings import Round
from edgecompile.machines.identity import CpuClock, read_clock
from edgecompile.progress import StepHandle

__all__ = ["Measured", "measure_rounds", "shuffled"]

RUN_TIMEOUT = 600.0


@dataclass(frozen=True)
class Measured:
    """Rounds by contender, in order, and what else the machine did meanwhile (None: unknown)."""

    rounds: Mapping[str, tuple[Round, ...]]
    foreign_cpus: float | None
    stolen_cpus: float | None


def shuffled(items: Sequence[str], *seed: object) -> list[str]:
    """The items in an order drawn from the seed."""
    order = list(items)
    random.Random(repr(seed)).shuffle(order)
    return order


def measure_rounds(
    workers: Mapping[str, WorkerProcess],
    lengths: Sequence[int],
    settings: BenchSettings,
    step: StepHandle,
) -> Measured:
    """Warm-up rounds, which are dropped, and then those that count.

    Args:
        workers: by name, all of them open.
        lengths: what a round runs; each round in another order, the same for all contenders.
        settings: how many rounds, how long a pause.
        step: told which round it is.

    Raises:
        BenchError: a contender fails.
    """
    found: dict[str, list[Round]] = {name: [] for name in workers}
    total = settings.warmup_rounds + settings.rounds
    before: CpuClock | None = None
    with _burners(settings.busy) as burners:
        processes = [worker.pid for worker in workers.values()] + burners
        for number in range(total):
            if number == settings.warmup_rounds:
                before = read_clock(processes)
            step.update(number, total, f"round {number + 1} of {total}")
            order = list(lengths)
            random.Random(f"{settings.seed} {number}").shuffle(order)
            for name in shuffled(list(workers), settings.seed, number):
                times = _turn(workers[name], order, settings, number)
                if number >= settings.warmup_rounds:
                    found[name].append(Round(tuple(order), tuple(times)))
        after = read_clock(processes)
    rounds = {name: tuple(items) for name, items in found.items()}
    if before is None or after is None:
        return Measured(rounds, None, None)
    return Measured(rounds, after.foreign_since(before), after.stolen_since(before))


def _turn(
    worker: WorkerProcess, order: Sequence[int], settings: BenchSettings, number: int
) -> list[int]:
    """One contender's part of a round; nanoseconds of each run."""
    time.sleep(settings.pause_s)
    lead_in = [order[i % len(order)] for i in range(settings.lead_in)]
    # Other inputs in each round, the same for all contenders.
    seed = settings.seed + 1 + number
    answer = worker.run([*lead_in, *order], seed=seed, timeout=RUN_TIMEOUT)
    times: list[int] = answer["ns"][len(lead_in) :]
    return times


@contextmanager
def _burners(count: int) -> Iterator[list[int]]:
    """Processes that keep a CPU each busy, the last CPUs first; gives their ids."""
    with ExitStack() as stack:
        ids = []
        cpus = sorted(os.sched_getaffinity(0)) if count else []
        for index in range(count):
            process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
            os.sched_setaffinity(process.pid, {cpus[-1 - index % len(cpus)]})
            ids.append(process.pid)
        yield ids
