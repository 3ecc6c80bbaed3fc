"""The costs of a batch: seconds by threads, rows and length, from measured points and observed runs."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import inf
from operator import add
from typing import Any

#: What measurements can't tell: of many that differ by less, chance would choose.
MARGIN = 0.05

#: threads, rows, length, milliseconds
Point = tuple[int, int, int, float]


class CostTable:
    """Seconds of a run, which never fall with its rows or its length.

    What disturbs a measurement makes it longer, so where a larger run took less, a smaller one is
    taken to cost no more than that. Between measured points they are linear; beyond the last one they
    grow in proportion.

    Attributes:
        threads: the numbers of threads that were measured, ascending.
        most_rows: the largest batch.
        longest: the largest length.
        shortest: the least length that is run: shorter ones are filled up to it.
    """

    def __init__(
        self,
        points: Iterable[Point],
        *,
        most_rows: int | None = None,
        longest: int | None = None,
        shortest: int = 1,
        margin: float = 0.0,
    ) -> None:
        """``margin``: the share by which a batch has to cost less than its parts, to be one.

        Raises:
            ValueError: there are no points, or one isn't positive.
        """
        by_threads: dict[int, list[tuple[int, int, float]]] = {}
        for threads, rows, length, ms in points:
            if min(threads, rows, length) < 1 or not 0 < ms < float("inf"):
                raise ValueError(f"a cost of {ms} ms at {threads} threads, {rows} x {length}")
            by_threads.setdefault(threads, []).append((rows, length, ms / 1e3))
        measured: dict[int, dict[int, list[tuple[int, float]]]] = {}
        for threads, same in by_threads.items():
            for rows, length, _ in same:
                least = min(s for r, n, s in same if r >= rows and n >= length)
                measured.setdefault(threads, {}).setdefault(rows, []).append((length, least))
        if not measured:
            raise ValueError("there are no costs")
        self._lines = {
            threads: {rows: sorted(line) for rows, line in sorted(lines.items())}
            for threads, lines in sorted(measured.items())
        }
        self.threads = tuple(self._lines)
        self._lengths = sorted({n for same in by_threads.values() for _, n, _ in same})
        every = [(rows, line) for lines in self._lines.values() for rows, line in lines.items()]
        self.most_rows = most_rows or max(rows for rows, _ in every)
        self.longest = longest or max(line[-1][0] for _, line in every)
        self.shortest = shortest
        self._part = 1.0 - margin
        self._columns: dict[tuple[int, int], tuple[float, ...]] = {}
        self._sizes: dict[tuple[int, int], tuple[tuple[int, float], ...]] = {}
        self._cheapest: dict[tuple[int, int], float] = {}

    def seconds(self, threads: int, rows: int, length: int) -> float:
        """The seconds of one run; more rows than ``most_rows`` are several runs."""
        most = self.most_rows
        if rows > most:
            full, rest = divmod(rows, most)
            part = self.seconds(threads, rest, length) if rest else 0.0
            return full * self.seconds(threads, most, length) + part
        return self.column(threads, length)[rows]

    def column(self, threads: int, length: int) -> tuple[float, ...]:
        """The seconds by rows, from 0 to ``most_rows``, at one length."""
        length = max(self.shortest, min(length, self.longest))
        column = self._columns.get((threads, length))
        if column is None:
            column = self._columns[threads, length] = self._make_column(threads, length)
        return column

    def useful(self, threads: int, length: int) -> tuple[tuple[int, float], ...]:
        """Rows and seconds of the batches that cost less than any two that they could be cut into."""
        length = max(self.shortest, min(length, self.longest))
        key = (threads, length)
        batches = self._sizes.get(key)
        if batches is None:
            column = self.column(threads, length)
            best = [*column]
            entries = []
            for rows in range(1, len(column)):
                half = rows // 2 + 1
                pairs = map(add, best[1:half], best[rows - 1 : rows - half : -1])
                parts = min(pairs, default=inf)
                if column[rows] < parts * self._part:
                    entries.append((rows, column[rows]))
                else:
                    best[rows] = parts
            batches = self._sizes[key] = tuple(entries)
        return batches

    def cheapest(self, threads: int, length: int) -> float:
        """Seconds of one row of this length in the best batch of rows like it."""
        key = (threads, max(self.shortest, min(length, self.longest)))
        cost = self._cheapest.get(key)
        if cost is None:
            useful = self.useful(threads, length)
            cost = self._cheapest[key] = min(seconds / rows for rows, seconds in useful)
        return cost

    def cheapest_of(self, threads: int, lengths: Sequence[int], rows: Sequence[int]) -> float:
        """``cheapest`` of each length, ascending, times its rows, all together."""
        total = least = 0.0
        before = 0
        for length, count in zip(lengths, rows, strict=True):
            if length != before:
                least, before = self.cheapest(threads, length), length
            total += count * least
        return total

    def measured(self, length: int) -> int:
        """The next length that was measured; the last one for longer ones."""
        return self._lengths[min(bisect_left(self._lengths, length), len(self._lengths) - 1)]

    def _make_column(self, threads: int, length: int) -> tuple[float, ...]:
        points = [(rows, self._at(threads, rows, length)) for rows in self._lines[threads]]
        (first, least), (last, most) = points[0], points[-1]
        column = [0.0] + [least] * min(first, self.most_rows)
        for (lo, below), (hi, above) in pairwise(points):
            step = (above - below) / (hi - lo)
            column += [below + step * (rows - lo) for rows in range(lo + 1, hi)] + [above]
        column += [most * rows / last for rows in range(last + 1, self.most_rows + 1)]
        # No batch costs less than one of fewer rows.
        return (*accumulate(column[: self.most_rows + 1], max),)

    def _at(self, threads: int, rows: int, length: int) -> float:
        """The cost of a measured number of rows. Lengths at which it wasn't measured cost as much as runs of
        fewer rows: no gain is assumed that wasn't measured."""
        line = self._lines[threads][rows]
        fewer = [n for n in self._lines[threads] if n < rows]
        if length > line[-1][0] and fewer:
            return max(line[-1][1], self._at(threads, fewer[-1], length) * rows / fewer[-1])
        return _interpolate(line, length)


def _interpolate(line: Sequence[tuple[int, float]], at: int) -> float:
    index = bisect_left(line, (at,))
    if index < len(line) and line[index][0] == at:
        return line[index][1]
    if index == 0:
        return line[0][1]
    if index == len(line):
        last, seconds = line[-1]
        return seconds * at / last
    (lo, below), (hi, above) = line[index - 1], line[index]
    return below + (above - below) * (at - lo) / (hi - lo)


class Speed:
    """The factor by which a machine is slower now than its costs, by the runs that it did.

    Attributes:
        factor: the mean of seconds taken over seconds predicted, the later ones counting more.
    """

    WEIGHT = 0.05

    def __init__(self, *, measured: bool = True) -> None:
        """``measured``: whether the costs are; else the first run tells the factor by itself."""
        self.factor = 1.0
        self._measured = measured
        self._spread = 0.0

    def see(self, predicted: float, took: float, alone: float | None = None) -> None:
        """Learns from one run; a single one counts for ten times as slow at most.

        Args:
            predicted: seconds by the costs.
            took: seconds until the event loop heard of its end.
            alone: seconds of the run itself, which tell more where nothing is known: the loop may have been
                busy with what fills the queue. None: as ``took``.
        """
        if not self._measured:
            self._measured, self.factor = True, (took if alone is None else alone) / predicted
        ratio = min(max(took / predicted, self.factor / 10), self.factor * 10)
        self._spread += self.WEIGHT * (abs(ratio - self.factor) - self._spread)
        self.factor += self.WEIGHT * (ratio - self.factor)

    def forget(self) -> None:
        """Forgets all runs seen; the next run tells the factor by itself."""
        self.factor, self._measured, self._spread = 1.0, False, 0.0

    @property
    def bound(self) -> float:
        """A factor that runs seldom exceed: the mean and twice the mean distance from it."""
        return self.factor + 2 * self._spread


def read_document(path: str) -> dict[str, Any]:
    """Reads a document written by ``bench --serving``.

    Raises:
        OSError: it can't be read.
        ValueError: it is something else.
    """
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict) or not isinstance(document.get("manifest_sha256"), str):
        raise ValueError("isn't what bench --serving writes")
    if "texts" in document:
        raise ValueError(
            "holds the costs of a language model, which simulate takes; the server measures these itself"
        )
    read_costs(document, most_rows=1, longest=1)
    return document


def read_costs(
    document: Mapping[str, Any], *, most_rows: int, longest: int, shortest: int = 1
) -> CostTable:
    """The table of what ``bench --serving`` wrote, or of ``plan.server`` in a manifest.

    Raises:
        ValueError: it isn't of that form.
    """
    points = document.get("points")
    if not isinstance(points, list) or not points:
        raise ValueError('it has no list of "points"')
    for point in points:
        plain = isinstance(point, list) and len(point) == 4
        if not plain or any(isinstance(x, bool) or not isinstance(x, int | float) for x in point):
            raise ValueError(
                f"{json.dumps(point):.80} of the points isn't [threads, rows, length, milliseconds]"
            )
        if any(not isinstance(x, int) or x > 1 << 31 for x in point[:3]):
            raise ValueError(f"{json.dumps(point):.80} of the points has sizes that are none")
    return CostTable(
        [tuple(point) for point in points],
        most_rows=most_rows,
        longest=longest,
        shortest=shortest,
        margin=MARGIN,
    )
