"""How the CPUs are divided: so many runs side by side, so many threads each; among models, too."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from edgecompile.server.schedule.compose import composed_seconds
from edgecompile.server.schedule.costs import CostTable

#: Requests whose batches a division is judged by. About as many wait where answers are wanted within a tenth of a
#: second: the batches of more would be fuller, but nobody waits for them.
WAITING = 64


@dataclass(frozen=True)
class Streams:
    """``count`` runs side by side of ``threads`` each, and the rows per second of all together."""

    count: int
    threads: int
    rows_per_second: float


class Cores:
    """The CPUs of a server, which the queues of all its models share.

    A run takes as many of them as it has threads, as long as it lasts.

    Attributes:
        count: all of them.
        free: those that nothing runs on.
        loop_rests: until when, by the queues' clock, the event loop runs nothing itself.
    """

    def __init__(self, count: int) -> None:
        self.count = self.free = count
        self.loop_rests = -math.inf
        self._begin: list[Callable[[], None]] = []

    def share(self, begin: Callable[[], None]) -> None:
        """Lets ``begin`` be called whenever CPUs became free, to begin what waits somewhere."""
        self._begin.append(begin)

    def leave(self, begin: Callable[[], None]) -> None:
        """The opposite of ``share``; nothing where that is done."""
        if begin in self._begin:
            self._begin.remove(begin)

    def freed(self, begin: Callable[[], None]) -> None:
        """CPUs that one queue had are free: the others come first, and this one last."""
        self._begin.sort(key=begin.__eq__)
        for item in (*self._begin,):
            item()


def plan_streams(costs: CostTable, cpus: int, lengths: Mapping[int, int]) -> Streams:
    """The division that answers most of ``WAITING`` requests, by the costs of its runs beside each other.

    Every division of fewer CPUs is one of more, so more CPUs never answer less.

    Args:
        costs: of runs beside as many as the CPUs hold.
        cpus: that there are.
        lengths: how often each length occurs, one at least.
    """
    best = Streams(1, costs.threads[0], 0.0)
    few = _spread(lengths)
    for threads in costs.threads:
        if threads > cpus and best.rows_per_second:
            break
        streams = max(1, cpus // threads)
        rate = streams * len(few) / composed_seconds(costs, threads, few)
        # Of equals the fewer threads.
        if rate > best.rows_per_second * 1.02:
            best = Streams(streams, threads, rate)
    return best


def _spread(lengths: Mapping[int, int]) -> list[int]:
    """``WAITING`` lengths, ascending, each as often as it occurs."""
    ends = list(accumulate(lengths[length] for length in sorted(lengths)))
    ordered, step = sorted(lengths), ends[-1] / WAITING
    return [ordered[bisect_right(ends, (i + 0.5) * step)] for i in range(WAITING)]
