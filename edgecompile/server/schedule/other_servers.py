"""Rules of other servers, for comparison: what runs next, and how many threads it has.

``by_cost.ByCost`` is ours.
"""

from __future__ import annotations

from itertools import islice

from edgecompile.server.schedule.jobs import Choice, Job, by_urgency


class OneByOne:
    """No batches: the most urgent request alone, on so many threads. Where none has a deadline that is the oldest.

    With all CPUs that is what a program does that calls ``Model.run``; OpenVINO Model Server runs
    several streams of a part each (NUM_STREAMS).
    """

    def __init__(self, threads: int, least: int | None = None) -> None:
        """``least``: be content with so many where others run beside; None: with no fewer."""
        self._threads, self._least = threads, least or threads

    def choose(
        self, waiting: dict[Job, None], now: float, free: int, own: int = 0
    ) -> Choice | None:
        """See ``Policy``."""
        if free < self._least:
            return None
        return [min(waiting, key=by_urgency)], min(free, self._threads)


class InOrder:
    """text-embeddings-inference's rule: the oldest ones, filled up to the longest, on all CPUs.

    core/src/queue.rs: as long as rows times the longest stay within ``max_batch_tokens`` and the
    rows within the backend's limit, which is 8 for ONNX Runtime on a CPU (backends/ort) and 4 for
    candle.
    """

    def __init__(self, threads: int, rows: int = 8, tokens: int = 16384) -> None:
        self._threads, self._rows, self._tokens = threads, rows, tokens

    def choose(
        self, waiting: dict[Job, None], now: float, free: int, own: int = 0
    ) -> Choice | None:
        """See ``Policy``."""
        if free < self._threads:
            return None
        chosen: list[Job] = []
        longest = rows = 0
        for job in waiting:
            width = max(longest, job.length)
            if chosen and (
                rows + job.rows > self._rows or width * (rows + job.rows) > self._tokens
            ):
                break
            chosen.append(job)
            longest, rows = width, rows + job.rows
        return chosen, self._threads


class SortedWindow:
    """infinity's rule: eight batches' worth of the oldest, sorted by length, cut into equal batches.

    infinity_emb/inference/queue.py; batches of 32 by default, on all CPUs.
    """

    def __init__(self, threads: int, rows: int = 32) -> None:
        self._threads, self._rows = threads, rows
        self._batches: list[list[Job]] = []

    def choose(
        self, waiting: dict[Job, None], now: float, free: int, own: int = 0
    ) -> Choice | None:
        """See ``Policy``."""
        if free < self._threads:
            return None
        while self._batches:
            batch = [job for job in self._batches.pop(0) if job in waiting]
            if batch:
                return batch, self._threads
        window = sorted(islice(waiting, 8 * self._rows), key=lambda job: job.length)
        self._batches = _cut(window, self._rows)
        return self._batches.pop(0), self._threads


class SameLength:
    """Triton's rule: the oldest with those of its very shape, on all CPUs."""

    def __init__(self, threads: int, rows: int = 8) -> None:
        self._threads, self._rows = threads, rows

    def choose(
        self, waiting: dict[Job, None], now: float, free: int, own: int = 0
    ) -> Choice | None:
        """See ``Policy``."""
        if free < self._threads:
            return None
        length = next(iter(waiting)).length
        like = [job for job in waiting if job.length == length]
        return _cut(like, self._rows)[0], self._threads


def _cut(jobs: list[Job], most: int) -> list[list[Job]]:
    """Neighbours of up to so many rows together; one job with more is alone."""
    batches: list[list[Job]] = []
    rows = 0
    for job in jobs:
        if not batches or rows + job.rows > most:
            batches.append([])
            rows = 0
        batches[-1].append(job)
        rows += job.rows
    return batches
