"""Composition: which requests run together, so that all of them cost least.

Requests sorted by length are cut into neighbours. No other batches cost less where costs never fall
with the length: the batch with the longest request costs the same whichever shorter ones it holds,
and the rest costs least when the longest of the others are in it too. So a recurrence over the sorted
requests finds the optimum: best(i) = min over n of best(i - n) + cost(n rows, length of request i).
(TurboTransformers has it for GPUs: Fang et al., PPoPP 2021.)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from edgecompile.server.schedule.costs import CostTable


def compose(
    costs: CostTable, threads: int, lengths: Sequence[int], rows: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """The cuts: the first of each batch, and the one behind its last.

    Args:
        costs: the costs of batches.
        threads: the threads of each run.
        lengths: ascending.
        rows: the rows of each request, at most ``costs.most_rows``; None: one. With more than one
            the cuts are the best among those between neighbours.
    """
    return compose_all(costs, threads, lengths, rows)[0]


def compose_all(
    costs: CostTable, threads: int, lengths: Sequence[int], rows: Sequence[int] | None = None
) -> tuple[list[tuple[int, int]], float]:
    """As ``compose``; and as ``composed_seconds``."""
    best, begins = _solve(costs, threads, lengths, rows)
    return _cuts(begins), best[-1]


def composed_seconds(
    costs: CostTable, threads: int, lengths: Sequence[int], rows: Sequence[int] | None = None
) -> float:
    """The seconds of all batches together, one after the other; arguments as ``compose``."""
    return _solve(costs, threads, lengths, rows)[0][-1]


def _solve(
    costs: CostTable, threads: int, lengths: Sequence[int], rows: Sequence[int] | None
) -> tuple[list[float], list[int]]:
    """The least seconds of the first requests, and where their last batch begins."""
    best, begins = [0.0], [0]
    if rows is not None and max(rows, default=1) > 1:
        return _solve_rows(costs, threads, lengths, rows)
    useful, before = costs.useful(threads, 0), 0
    for i, length in enumerate(lengths, 1):
        least, first = inf, 0
        if length != before:
            useful, before = costs.useful(threads, length), length
        for count, seconds in useful:
            if count > i:
                break
            total = best[i - count] + seconds
            if total < least:
                least, first = total, i - count
        best.append(least)
        begins.append(first)
    return best, begins


def _solve_rows(
    costs: CostTable, threads: int, lengths: Sequence[int], rows: Sequence[int]
) -> tuple[list[float], list[int]]:
    best, begins = [0.0], [0]
    for i, length in enumerate(lengths, 1):
        column = costs.column(threads, length)
        least, first, together = inf, i - 1, 0
        for j in range(i - 1, -1, -1):
            together += rows[j]
            if together > costs.most_rows and j < i - 1:
                break
            one = (
                column[together]
                if together < len(column)
                else costs.seconds(threads, together, length)
            )
            if best[j] + one < least:
                least, first = best[j] + one, j
        best.append(least)
        begins.append(first)
    return best, begins


def _cuts(begins: Sequence[int]) -> list[tuple[int, int]]:
    cuts, end = [], len(begins) - 1
    while end > 0:
        cuts.append((begins[end], end))
        end = begins[end]
    return cuts[::-1]
