"""Times of interleaved rounds, and their statistics.

In every round each process runs the same lengths in the same order, so what disturbs a round
disturbs all of them alike: figures are medians over rounds, and a ratio is taken in each round
first.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgecompile.lengths.distribution import LengthDistribution


@dataclass(frozen=True)
class Round:
    """One process' runs in one round, in order: the length and the nanoseconds of each."""

    lengths: tuple[int, ...]
    ns: tuple[int, ...]

    @property
    def mean_ms(self) -> float:
        """Mean of the round's runs."""
        return sum(self.ns) / len(self.ns) / 1e6

    def percentile_ms(self, percent: float) -> float:
        """Percentile of the round's runs, linear between neighbours."""
        return float(np.percentile(self.ns, percent)) / 1e6


@dataclass(frozen=True)
class TimeSummary:
    """One process over all rounds; times in milliseconds.

    Attributes:
        mean_ms, p50, p90, p99: median over the rounds of each round's figure.
        spread: half the distance between the 10th and the 90th percentile of the rounds' means,
            relative to their median.
        round_means_ms: the rounds' means, in order.
    """

    mean_ms: float
    p50: float
    p90: float
    p99: float
    spread: float
    round_means_ms: tuple[float, ...]


@dataclass(frozen=True)
class Ratio:
    """One mean time over another: median, 10th and 90th percentile over rounds."""

    median: float
    p10: float
    p90: float


def stream(distribution: LengthDistribution, runs: int) -> tuple[int, ...]:
    """``runs`` lengths that stand for the traffic: the quantiles at (i + ½) / runs, ascending.

    Drawn at random they would differ from round to round and from benchmark to benchmark, and
    with them the mean time.
    """
    return tuple(distribution.quantile((i + 0.5) / runs) for i in range(runs))


def summarise(rounds: Sequence[Round]) -> TimeSummary:
    """Figures of one process' rounds, of which there must be one at least."""
    means = [item.mean_ms for item in rounds]
    median = statistics.median(means)
    low, high = np.percentile(means, [10, 90])

    def middle(percent: float) -> float:
        return statistics.median(item.percentile_ms(percent) for item in rounds)

    return TimeSummary(
        mean_ms=median,
        p50=middle(50),
        p90=middle(90),
        p99=middle(99),
        spread=float(high - low) / 2 / median,
        round_means_ms=tuple(means),
    )


def compare(rounds: Sequence[Round], others: Sequence[Round]) -> Ratio:
    """Mean time of ``rounds`` over that of ``others``, which were interleaved with them."""
    ratios = [a.mean_ms / b.mean_ms for a, b in zip(rounds, others, strict=True)]
    low, high = np.percentile(ratios, [10, 90])
    return Ratio(statistics.median(ratios), float(low), float(high))


def median_by_length(rounds: Sequence[Round]) -> Mapping[int, float]:
    """Median milliseconds of each length over all rounds, by ascending length."""
    times: dict[int, list[int]] = {}
    for item in rounds:
        for length, ns in zip(item.lengths, item.ns, strict=True):
            times.setdefault(length, []).append(ns)
    return {length: statistics.median(times[length]) / 1e6 for length in sorted(times)}
