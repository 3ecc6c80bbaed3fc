"""Timing of several things in turn, in rounds."""

import math
import random
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..base.errors import InputError
from ..stats.counters import median_ms, percentile

MAX_SECONDS = 1e6
MAX_COLD_RUNS = 1000
#: The standard error of a median that is small enough where runs spread, as a share of the distance of their
#: quartiles. The least saving that a plan tells from noise is an eighth of that distance.
SPREAD_SHARE = 1 / 16


def check_budget(
    seconds: float, cold_runs: int, error: float = 0.0, most_error: Optional[float] = None
) -> None:
    """Checks how long to measure, how many processes to start and how exact is enough.

    Raises:
        InputError: out of its range.
    """
    if not 0 <= seconds <= MAX_SECONDS:  # so that a NaN isn't within
        text = "seconds is {:g}, must be from 0 to {:g}"
        raise InputError(text.format(seconds, MAX_SECONDS))
    if not 0 <= cold_runs <= MAX_COLD_RUNS:
        text = "cold-runs is {}, must be from 0 to {}"
        raise InputError(text.format(cold_runs, MAX_COLD_RUNS))
    if not 0 <= error < 1:
        raise InputError("error is {:g}, must be from 0 to under 1".format(error))
    if most_error is not None and not error:
        raise InputError("most_error goes with error, which is 0", "give error, too")
    if most_error is not None and not error <= most_error < 1:
        text = "most-error is {:g}, must be from error, {:g}, to under 1"
        raise InputError(text.format(most_error, error))


def what_ran(info: Mapping[str, Any]) -> Dict[str, Any]:
    """The entries of ``Model.info`` that times depend on: "backend", "mode"; on a GPU also "gpu",
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
    error: float = 0.0,
    most_error: float = 0.0,
    progress: Callable[[int, float], None] = lambda rounds, elapsed: None,
) -> List[List[float]]:
    """Milliseconds of every run of each of ``count`` things, in rounds over all in random order.

    Interleaved, so that a machine that grows slower or faster meanwhile doesn't favour one.

    Args:
        count: the number of things.
        prepare: a function that makes the input of thing number i; not timed.
        run: runs thing number i with it; timed.
        seconds: the time after which to stop; a round that has begun by then isn't finished.
        least: but not before so many rounds.
        seed: the seed of the order.
        error: the share of a median that its standard error may be: where all are as small, measuring
            stops before the time is up. 0: it takes all of the time.
        most_error: the error that is allowed at most where the runs spread; see :func:`_known`.
        progress: a function that gets the number of rounds done and the seconds passed, after every
            round.
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
        # After 16, 20, 24, 28, 32, 40, 48, ... rounds, so that looking takes next to no time.
        step = max(1, (1 << rounds.bit_length()) // 8)
        if (
            error
            and rounds >= max(least, 16)
            and not rounds % step
            and _known(samples, error, most_error)
        ):
            break
    return samples


def _known(samples: Sequence[Sequence[float]], error: float, most_error: float) -> bool:
    """Whether the standard error of every median is at most this share of it.

    Where the runs spread, the share is :data:`SPREAD_SHARE` of the median distance of their quartiles, but at most
    ``most_error``. A plan takes smaller savings for noise, however exact the medians are.
    """
    spreads, errors = [], []
    for times in samples:
        ordered = sorted(round(ms * 1e6) for ms in times)
        quarter, median, three = [percentile(ordered, p) for p in (25, 50, 75)]
        spreads.append((three - quarter) / max(1, median))
        errors.append(median_error(spreads[-1], len(ordered)))
    usual = sorted(spreads)[len(spreads) // 2]
    return max(errors) <= max(error, min(most_error, SPREAD_SHARE * usual))


def median_error(spread: float, count: int) -> float:
    """The standard error of the median of ``count`` samples whose quartiles are ``spread`` apart.

    Of normal samples the quartiles are 1.35 standard deviations apart, and the median's standard error
    is 1.25 of them, over the square root of the count.
    """
    return 1.25 / 1.35 * spread / math.sqrt(count)


def measure_medians(
    runs: Sequence[Callable[[Any], object]],
    inputs: Sequence[Any],
    *,
    before: Callable[[Callable[[Any], object], Any], object] = lambda run, item: None,
    seconds: float,
    least: int,
    seed: int,
) -> List[List[float]]:
    """Median milliseconds of each run on each of the inputs, from rounds over all of them.

    Args:
        runs: Functions of one of the inputs.
        inputs: Arguments of every function.
        before: Call before each timed one, with the function and its argument.
        seconds, least, seed: Arguments of ``measure_rounds``.
    """
    things = [(run, item) for run in runs for item in inputs]

    def prepare(index: int) -> Tuple[Callable[[Any], object], Any]:
        before(*things[index])
        return things[index]

    samples = measure_rounds(
        len(things),
        prepare,
        lambda _, thing: thing[0](thing[1]),
        seconds=seconds,
        least=least,
        seed=seed,
    )
    medians = [median_ms(times) for times in samples]
    size = len(inputs)
    return [medians[start : start + size] for start in range(0, len(medians), size)]
