"""Our rule: batches of least cost, the most urgent one first, on the threads that suit."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from edgecompile.server.schedule.compose import compose_all
from edgecompile.server.schedule.costs import CostTable, Speed
from edgecompile.server.schedule.jobs import Choice, Job, by_length, by_urgency, total_rows
from edgecompile.server.schedule.streams import Division


class ByCost:
    """Composes what waits, and runs the batch with the most urgent request.

    Waiting requests are composed again when one came, as long as that is little; else once for
    ``WINDOW`` requests, whose batches run before the next ones are composed. When one came that is
    more urgent than some of these, as many as are little are composed again.

    Attributes:
        packing: the cost of composed batches over the cost of their rows in the best batches of
            their own length. Learned from those composed so far.
    """

    WINDOW = 512
    COMPOSE_AGAIN = 64

    def __init__(
        self,
        costs: CostTable,
        division: Division,
        speed: Speed | None = None,
        *,
        mixes: bool = True,
    ) -> None:
        """``mixes``: whether requests of other lengths may share a batch, filled up."""
        self._costs, self._division = costs, division
        self._speed = speed or Speed()
        self._mixes = mixes
        self._batches: list[list[Job]] = []  # the most urgent one last
        self._composed = 0
        self._looked = 0.0  # when new ones were looked for, by the clock
        self._newest: Job | None = None  # the last of them
        self.packing = 1.0

    def choose(
        self, waiting: dict[Job, None], now: float, free: int, own: int = 0
    ) -> Choice | None:
        """See ``Policy``."""
        streams, cpus = self._division.streams, self._division.cpus
        if free < min(self._costs.threads[0], streams.threads):
            return None
        # Runs of fewer threads that end one by one would never leave enough of the CPUs to one of more.
        if (
            free < streams.threads
            and 0 < own < streams.count * streams.threads
            and free + own == cpus
        ):
            return None
        changed = len(waiting) != self._composed
        if not self._batches:
            self._compose(waiting, self.WINDOW)
        elif (changed and len(waiting) <= self.COMPOSE_AGAIN) or self._is_overtaken(waiting):
            self._compose(waiting, self.COMPOSE_AGAIN)
        self._looked, self._newest = now, next(reversed(waiting))
        # Somebody may have gone since, and as many have come.
        while not (batch := [job for job in self._batches.pop() if job in waiting]):
            if not self._batches:
                self._compose(waiting, self.WINDOW)
        threads = self._threads(batch, free)
        batch, rest = self._in_time(batch, threads, now)
        if rest:
            self._batches.append(rest)
        self._composed = len(waiting) - len(batch)
        return batch, threads

    def _is_overtaken(self, waiting: dict[Job, None]) -> bool:
        """Whether one came since the last look that is more urgent than a batch."""
        last = _batch_urgency(self._batches[0])
        for job in reversed(waiting):
            if job is self._newest or job.arrived < self._looked:
                break
            if job.urgency < last:
                return True
        return False

    def _compose(self, waiting: dict[Job, None], most: int) -> None:
        """Composes batches of the most urgent jobs, at most ``most`` of them."""
        jobs: Iterable[Job] = waiting
        if len(waiting) > most:
            jobs = heapq.nsmallest(most, waiting, key=by_urgency)
        batches = []
        threads, cheapest, seconds = self._division.streams.threads, 0.0, 0.0
        for like in self._sorted(jobs):
            lengths, rows = [job.length for job in like], [job.rows for job in like]
            cuts, took = compose_all(self._costs, threads, lengths, rows)
            batches += [like[first:end] for first, end in cuts]
            seconds += took
            cheapest += self._costs.cheapest_of(threads, lengths, rows)
        self.packing += 0.1 * (seconds / cheapest - self.packing)
        batches.sort(key=_batch_urgency, reverse=True)
        self._batches = batches

    def _sorted(self, jobs: Iterable[Job]) -> list[list[Job]]:
        """The jobs by length; a list for each length where lengths can't be mixed."""
        ordered = sorted(jobs, key=by_length)
        if self._mixes:
            return [ordered]
        apart: dict[int, list[Job]] = {}
        for job in ordered:
            apart.setdefault(job.length, []).append(job)
        return list(apart.values())

    def _threads(self, batch: Sequence[Job], free: int) -> int:
        """The planned threads where there is enough to do; with little, the number that ends this batch soonest."""
        planned = self._division.streams.threads
        share = free // (len(self._batches) + 1)
        if share <= planned:
            return max(t for t in self._costs.threads if t <= max(min(planned, free), 1))
        rows, longest = total_rows(batch), max(job.length for job in batch)
        able = [t for t in self._costs.threads if t <= share]
        return min(able, key=lambda t: self._costs.seconds(t, rows, longest))

    def _in_time(self, batch: list[Job], threads: int, now: float) -> tuple[list[Job], list[Job]]:
        """The batch, or the part of it with which the most urgent one is in time; and the rest."""
        due = min((job.deadline for job in batch if job.deadline is not None), default=None)
        if due is None or len(batch) == 1:
            return batch, []
        left = (due - now) / self._speed.bound
        rows, longest = total_rows(batch), max(job.length for job in batch)
        if self._costs.seconds(threads, rows, longest) <= left:
            return batch, []
        urgent = min(batch, key=by_urgency)
        # Shorter ones cost it least: the longest of them first.
        others = sorted(
            (job for job in batch if job is not urgent and job.length <= urgent.length),
            key=lambda job: -job.length,
        )
        chosen, together = [urgent], urgent.rows
        if self._costs.seconds(threads, together, urgent.length) > left:
            return batch, []  # it is late anyway
        for job in others:
            if self._costs.seconds(threads, together + job.rows, urgent.length) > left:
                break
            chosen.append(job)
            together += job.rows
        taken = set(chosen)
        return chosen, [job for job in batch if job not in taken]


def _batch_urgency(batch: Sequence[Job]) -> tuple[int, float]:
    return min([job.urgency for job in batch])
