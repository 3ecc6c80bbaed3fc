"""How the CPUs are divided: so many runs side by side, so many threads each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgecompile.server.schedule.costs import CostTable

__all__ = ["Streams", "plan_streams"]


@dataclass(frozen=True)
class Streams:
    """``count`` runs side by side of ``threads`` each, and the rows per second of all together."""

    count: int
    threads: int
    rows_per_second: float


def plan_streams(costs: CostTable, cpus: int, lengths: Mapping[int, int]) -> Streams:
    """The division that answers most, by the costs of its runs beside each other.

    Every division of fewer CPUs is one of more, so more CPUs never answer less.

    Args:
        costs: of runs beside as many as the CPUs hold.
        cpus: that there are.
        lengths: how often each length occurs.
    """
    best = Streams(1, costs.threads[0], 0.0)
    count = sum(lengths.values())
    for threads in costs.threads:
        if threads > cpus and best.rows_per_second:
            break
        seconds = sum(n * costs.cheapest(threads, length) for length, n in lengths.items())
        streams = max(1, cpus // threads)
        rate = streams * count / seconds
        # Of equals the fewer threads.
        if rate > best.rows_per_second * 1.02:
            best = Streams(streams, threads, rate)
    return best
