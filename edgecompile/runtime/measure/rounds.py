"""Timing of several things in turn, in rounds."""

import random
import time
from typing import Any, Callable, Dict, List, Mapping

from ..errors import InputError

MAX_SECONDS = 1e6
MAX_COLD_RUNS = 1000


def check_budget(seconds: float, cold_runs: int) -> None:
    """Checks how long to measure and how many processes to start.

    Raises:
        InputError: out of its range.
    """
    if not 0 <= seconds <= MAX_SECONDS:  # so that a NaN isn't within
        text = "seconds is {:g}, must be from 0 to {:g}"
        raise InputError(text.format(seconds, MAX_SECONDS))
    if not 0 <= cold_runs <= MAX_COLD_RUNS:
        text = "cold-runs is {}, must be from 0 to {}"
        raise InputError(text.format(cold_runs, MAX_COLD_RUNS))


def what_ran(info: Mapping[str, Any]) -> Dict[str, Any]:
    """Of ``Model.info`` what times depend on: "backend", "mode"; on a GPU also "gpu",
    "gpu_precision", "tensorrt" and "engine"."""
    keys = ("backend", "mode", "gpu", "gpu_precision", "tensorrt", "engine")
    return {key: info[key] for key in keys if key in info}


def measure_rounds(
    count: int,
    prepare: Callable[[int], Any],
    run: Callable[[int, Any], object],
    *,
    seconds: float,
    least: int,
    seed: int,
    progress: Callable[[int, float], None] = lambda rounds, elapsed: None,
) -> List[List[float]]:
    """Milliseconds of every run of each of ``count`` things, in rounds over all in random order.

    Interleaved, so that a machine that grows slower or faster meanwhile doesn't favour one.

    Args:
        count: how many things.
        prepare: makes what thing number i is run with; not timed.
        run: runs thing number i with it; timed.
        seconds: when to stop; a round that has begun by then isn't finished.
        least: but not before so many rounds.
        seed: of the order.
        progress: gets the number of rounds done and the seconds passed, after every round.
    """
    order = random.Random(seed)
    samples: List[List[float]] = [[] for _ in range(count)]
    indices = list(range(count))
    began = time.perf_counter()
    rounds = 0
    while rounds < least or time.perf_counter() - began < seconds:
        order.shuffle(indices)
        for index in indices:
            prepared = prepare(index)
            started = time.perf_counter_ns()
            run(index, prepared)
            samples[index].append((time.perf_counter_ns() - started) / 1e6)
            if rounds >= least and time.perf_counter() - began >= seconds:
                break
        rounds += 1
        progress(rounds, time.perf_counter() - began)
    return samples
