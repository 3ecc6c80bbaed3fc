"""What rounds of a measurement say together."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

#: Student's t for 95 % of both sides, by rounds: three, four, …
_STUDENT = (4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)

_OUTSIDE = 0.05

#: Rounds: an interval of two is as wide as to say nothing.
_LEAST = 3


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of rounds, and half of its 95 % interval; nan of fewer than three."""
    if len(values) < _LEAST:
        return statistics.mean(values), float("nan")
    student = _STUDENT[min(len(values) - _LEAST, len(_STUDENT) - 1)]
    return statistics.mean(values), student * statistics.stdev(values) / len(values) ** 0.5


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The median of rounds and the ends of its interval of at least 95 %; nan of fewer than six.

    Whatever rounds are like, as many of them as heads of coins are below their true median.
    """
    ordered, count = sorted(values), len(values)
    beyond, outside = 0.0, 0
    while (beyond := beyond + math.comb(count, outside) / 2**count) <= _OUTSIDE / 2:
        outside += 1
    if not outside:
        return statistics.median(ordered), float("nan"), float("nan")
    return statistics.median(ordered), ordered[outside - 1], ordered[-outside]


def tell_ratios(ours: Sequence[float], others: Sequence[float]) -> str:
    """The median of each round's ratio, with its interval where there are enough rounds."""
    middle, low, high = median_interval([a / b for a, b in zip(ours, others, strict=True)])
    return f"{middle:.2f}" if math.isnan(low) else f"{middle:.2f} ({low:.2f} to {high:.2f})"


def tell(values: Sequence[float], digits: int) -> str:
    """The mean of three rounds and more with its 95 % interval, else each."""
    if len(values) < _LEAST:
        return ", ".join(f"{value:.{digits}f}" for value in values)
    mean, half = interval(values)
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


class Point(NamedTuple):
    """What rounds measured at one load: parts of the capacity, and milliseconds of the answers."""

    load: float
    share: Sequence[float]
    p50: Sequence[float]
    p99: Sequence[float]

    @classmethod
    def of(cls, load: float, rows: Sequence[Mapping[str, Any]]) -> Point:
        """Of rows with these; latencies are missing where nothing was answered."""
        p50, p99 = ([row[key] for row in rows if row[key]] for key in ("p50_ms", "p99_ms"))
        return cls(load, [row["share"] for row in rows], p50, p99)


#: By traffic, a drawing's panels; by name, their lines.
Panels = Mapping[str, Mapping[str, Sequence[Point]]]
