"""Requests that wait, and those that run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

#: A request without a deadline is as urgent as one that came with so many seconds.
PATIENCE = 1.0
_NO_PRIORITY = 1 << 64


@dataclass(eq=False)
class Job:
    """A request in the queue.

    Attributes:
        length: the length of its rows.
        rows: the number of its rows.
        arrived: when, by the clock of the queue.
        deadline: the time from which its answer is of no more use; None: none.
        priority: 1 goes first, then 2, and so on; 0, which is none, goes last.
        payload: the caller's own.
        urgency: ascending: priority, then the deadline. Each request becomes the most urgent of its
            priority at some time, as no deadline stays in the future for ever.
    """

    length: int
    rows: int = 1
    arrived: float = 0.0
    deadline: float | None = None
    priority: int = 0
    payload: Any = None
    urgency: tuple[int, float] = field(init=False)

    def __post_init__(self) -> None:
        due = self.arrived + PATIENCE if self.deadline is None else self.deadline
        self.urgency = self.priority or _NO_PRIORITY, due

    def stand_behind(self, seconds: float) -> None:
        """Counts as having come so much later, unless it has a deadline."""
        if self.deadline is None:
            self.urgency = self.urgency[0], self.arrived + PATIENCE + seconds


@dataclass(eq=False)
class Run:
    """Jobs that run together.

    Attributes:
        jobs: the jobs in any order.
        threads: the threads of the run.
        began: when, by the clock.
        predicted: seconds by the table of costs.
        alone: seconds that it took on its thread; None: not known.
    """

    jobs: Sequence[Job]
    threads: int
    began: float = 0.0
    predicted: float = 0.0
    alone: float | None = None
    rows: int = field(init=False)
    length: int = field(init=False)

    def __post_init__(self) -> None:
        if len(self.jobs) == 1:
            self.rows, self.length = self.jobs[0].rows, self.jobs[0].length
        else:
            self.rows = sum(job.rows for job in self.jobs)
            self.length = max(job.length for job in self.jobs)


#: The jobs to run now, and with how many threads.
Choice = tuple[Sequence[Job], int]


class Policy(Protocol):
    """A rule that chooses the next run."""

    def choose(
        self, waiting: dict[Job, None], now: float, free: int, own: int = 0
    ) -> Choice | None:
        """Chooses among those that wait, in the order of their arrival.

        Args:
            waiting: one at least.
            now: the present time by the clock.
            free: the number of idle CPUs, one at least.
            own: the number of CPUs of this queue's runs.

        Returns:
            None: nothing, before a run that is under way has ended.
        """
        ...


class Refused(Exception):
    """A request that isn't taken in.

    Attributes:
        message: why, with the numbers.
        retry_after: the seconds after which it would be taken, if nothing else came; None: never as
            it is.
    """

    def __init__(self, message: str, retry_after: float | None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after


class TooLate(Refused):
    """Even with nothing before it, it would take longer than its deadline allows."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None)


by_length, by_urgency = attrgetter("length"), attrgetter("urgency")


def total_rows(jobs: Iterable[Job]) -> int:
    """The rows of all jobs together."""
    return sum(job.rows for job in jobs)
