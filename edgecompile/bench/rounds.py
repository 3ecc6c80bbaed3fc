"""Rounds: every baseline runs the same lengths, in turn, in an order that changes."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from edgecompile.bench.process import WorkerProcess
from edgecompile.bench.report import BenchSettings
from edgecompile.bench.timings import Round
from edgecompile.hosts.identity import CpuClock, read_clock
from edgecompile.progress import StepHandle

RUN_TIMEOUT = 600.0


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
) -> tuple[dict[str, tuple[Round, ...]], dict[str, float]]:
    """Warm-up rounds, which are dropped, and then those that count.

    Args:
        workers: the workers by name, all of them open.
        lengths: the lengths of a round; each round has another order, the same for all.
        settings: the number of rounds, the length of a pause.
        step: shows the number of the round.

    Returns:
        The rounds of each by name, in order; and what else the machine did meanwhile:
        ``foreign_cpus`` that others used, and ``stolen_cpus`` that the hypervisor took, empty where the
        system doesn't tell.

    Raises:
        BenchError: a process fails.
    """
    rounds: dict[str, list[Round]] = {name: [] for name in workers}
    total = settings.warmup_rounds + settings.rounds
    before: CpuClock | None = None
    processes = [worker.pid for worker in workers.values()]
    for number in range(total):
        if number == settings.warmup_rounds:
            before = read_clock(processes)
        step.update(number, total, f"round {number + 1} of {total}")
        order = list(lengths)
        random.Random(f"{settings.seed} {number}").shuffle(order)
        for name in shuffled(list(workers), settings.seed, number):
            times = _turn(workers[name], order, settings, number)
            if number >= settings.warmup_rounds:
                rounds[name].append(Round(tuple(order), tuple(times)))
    after = read_clock(processes)
    load = {}
    if before is not None and after is not None:
        load["foreign_cpus"] = after.foreign_since(before)
        load["stolen_cpus"] = after.stolen_since(before)
    return {name: tuple(items) for name, items in rounds.items()}, load


def _turn(
    worker: WorkerProcess, order: Sequence[int], settings: BenchSettings, number: int
) -> list[int]:
    """One process' part of a round; nanoseconds of each run."""
    time.sleep(settings.pause_s)
    lead_in = [order[i % len(order)] for i in range(settings.lead_in)]
    # Other inputs in each round, the same for all.
    seed = settings.seed + 1 + number
    answer = worker.run([*lead_in, *order], seed=seed, timeout=RUN_TIMEOUT)
    times: list[int] = answer["ns"][len(lead_in) :]
    return times
