"""Divides the CPUs into runs side by side and threads of each; among models, too."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from edgecompile.server.schedule.compose import composed_seconds
from edgecompile.server.schedule.costs import CostTable, Speed

#: Requests whose batches a division is judged by. About as many wait where answers are wanted within a tenth of a
#: second: the batches of more would be fuller, but nobody waits for them.
WAITING = 64
#: The share of the answers that shorter runs may cost.
TOLL = 0.1


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
        free: the idle streams.
        loop_rests: until when, by the queues' clock, the event loop runs nothing itself.
    """

    def __init__(self, count: int) -> None:
        self.count = self.free = count
        self.loop_rests = -math.inf
        self._begin: list[Callable[[], None]] = []

    def share(self, begin: Callable[[], None]) -> None:
        """Lets ``begin`` be called whenever CPUs became free, to begin what waits somewhere."""
        self._begin.append(begin)

    @property
    def shared(self) -> bool:
        """Whether several queues begin runs on them."""
        return len(self._begin) > 1

    def leave(self, begin: Callable[[], None]) -> None:
        """The opposite of ``share``; nothing where that is done."""
        if begin in self._begin:
            self._begin.remove(begin)

    def freed(self, begin: Callable[[], None]) -> None:
        """CPUs that one queue had are free: the others come first, and this one last."""
        self._begin.sort(key=begin.__eq__)
        for item in (*self._begin,):
            item()


class Division:
    """The division of the CPUs: by the lengths that were planned for, and then by those that come.

    Attributes:
        cpus: all of them.
        streams: the division now.
    """

    #: Seconds between plans, and requests that one is made of at least.
    EVERY_S = 1.0
    SEEN = 64

    def __init__(self, costs: CostTable, cpus: int, streams: Streams, speed: Speed) -> None:
        """``streams``: the first division."""
        self.cpus, self.streams, self._speed = cpus, streams, speed
        self._costs = costs
        self._lengths = Counter[int]()
        self._allowed: float | None = None
        self._planned = -math.inf

    def see(self, length: int, allowed: float | None, now: float) -> None:
        """A request came, perhaps with a deadline in so many seconds; divides again where that is due."""
        # Costs of few lengths are known soon: those of hundreds, on as many threads, would take the loop's time.
        self._lengths[self._costs.measured(length)] += 1
        if allowed is not None:
            self._allowed = allowed
        if now - self._planned >= self.EVERY_S and self._lengths.total() >= self.SEEN:
            allowed = self._allowed and self._allowed / self._speed.bound
            self.streams = plan_streams(self._costs, self.cpus, self._lengths, allowed)
            self._lengths.clear()
            self._allowed, self._planned = None, now


def plan_streams(
    costs: CostTable, cpus: int, lengths: Mapping[int, int], allowed: float | None = None
) -> Streams:
    """The division that answers most of ``WAITING`` requests, by the costs of its runs beside each other.

    Every division of fewer CPUs is one of more, so more CPUs never answer less. Where runs take more than half
    of the time that is allowed, nobody can wait for one: then as many threads as it takes to halve them,
    if that costs no more than ``TOLL``.

    Args:
        costs: the costs of runs beside as many as the CPUs hold.
        cpus: the CPUs that there are.
        lengths: the count of each length, at least one length.
        allowed: seconds in which an answer is wanted.
    """
    divisions: list[Streams] = []
    few = _spread(lengths)
    for threads in costs.threads:
        if threads > cpus and divisions:
            break
        streams = max(1, cpus // threads)
        rate = streams * len(few) / composed_seconds(costs, threads, few)
        divisions.append(Streams(streams, threads, rate))
    best = divisions[0]
    for one in divisions:
        # Of equals the fewer threads.
        if one.rows_per_second > best.rows_per_second * 1.02:
            best = one
    if allowed is None:
        return best
    usual, least = few[len(few) // 2], (1 - TOLL) * best.rows_per_second
    for one in divisions[divisions.index(best) :]:
        if one.rows_per_second >= least:
            best = one
            if 2 * costs.seconds(one.threads, 1, usual) <= allowed:
                break
    return best


def _spread(lengths: Mapping[int, int]) -> list[int]:
    """``WAITING`` lengths, ascending, each as often as it occurs."""
    ends = list(accumulate(lengths[length] for length in sorted(lengths)))
    ordered, step = sorted(lengths), ends[-1] / WAITING
    return [ordered[bisect_right(ends, (i + 0.5) * step)] for i in range(WAITING)]
