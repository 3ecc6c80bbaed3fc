"""The cheapest strips: one axis is cut first, the other within each strip.

For every strip between two ends of the outer axis the cuts of the inner axis are a problem of one
axis, whose optimum for 1, 2, … boxes :mod:`edgecompile.buckets.search.segments` finds: an exact box costs
Σ w·e over its pairs of sizes, a padded one its weight times the cost of the static program of the
strip's end and the box's own. A recurrence over strips then shares out the boxes,

    F_k(y) = min over x < y and q of F_{k−q}(x) + G_q(x, y),

with G_q the optimum of the strip (x, y] in q boxes. All of it is exact, so the outcome is the
optimum among strips of this order, as long as every end of the outer axis may be tried. Ends are
worth trying at each observed size and where a larger static program is cheaper. If that takes too
long, ends are tried only at sizes between which about the same time is spent: a heuristic.

With a price per box and no bound on their number G is the priced optimum of a strip and F one sweep.

Traffic over one axis is the simplest case: its outer axis has one size, so that there is one strip,
and the optimum of its cuts is that of all plans.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.costs.grid import FloatArray
from edgecompile.buckets.search.cut_points import TIE, CutPoints
from edgecompile.buckets.search.problem import Problem
from edgecompile.buckets.search.segments import (
    Segmentation,
    best_priced_segmentation,
    best_segmentations,
)
from edgecompile.buckets.traffic import IntArray

_INFINITY = float("inf")


@dataclass(frozen=True)
class SearchBounds:
    """Bounds on the work, beyond which not all ends are tried: a heuristic.

    Attributes:
        steps: the steps of the recurrence of segments, over all strips.
        ends: sizes of the outer axis at which strips may end.
    """

    steps: int = 3_000_000  # about a microsecond each
    ends: int = 128


@dataclass(frozen=True)
class Strip:
    """Outer sizes over ``start`` to ``end``, and how the inner axis is cut there.

    Attributes:
        start, end: number of observed outer sizes before the strip, and to its end.
        size: the outer size at which its padded boxes end.
        points: the points at which the inner axis can be cut.
        cuts: the cuts chosen.
    """

    start: int
    end: int
    size: int
    points: CutPoints
    cuts: Segmentation


class StripSearch:
    """The cheapest strips with one axis cut first.

    Attributes:
        outer: the axis that is cut first, 0 or 1.
        costs: mean cost of the best strips of exactly 1, 2, … boxes, up to one box more than the
            problem allows, so that notes can say what the next one would save; of a problem
            without a bound that of the best number under its price.
        plans: these strips.
        tried, possible: at how many outer sizes strips could end, and how many there are.
    """

    costs: tuple[float, ...]
    plans: tuple[tuple[Strip, ...], ...]

    def __init__(self, problem: Problem, outer: int, bounds: SearchBounds) -> None:
        self.problem, self.outer = problem, outer
        self.dropped = False
        self.rows = problem.reached(outer)
        self.columns = problem.reached(1 - outer)
        cells = problem.sizes
        self._row_of = np.searchsorted(self.rows, cells[:, outer])
        self._column_of = np.searchsorted(self.columns, cells[:, 1 - outer])
        self.inner_ends = problem.ends(1 - outer)
        spent = np.zeros(len(self.rows))
        np.add.at(spent, self._row_of, problem.weights * problem.least)
        self.possible = len(self.rows)
        most = 1 if problem.most is None else problem.most + 1
        limit = min(self.possible, bounds.ends)
        while True:
            rows = _spread(spent, limit)
            self._add_up(rows)
            if limit <= 2 or self._steps() * most <= bounds.steps:
                break
            limit = max(2, int(limit * 0.8))
        self.tried = len(rows)
        self._find_ends(rows, limit=2 * len(rows) if self.tried == self.possible else len(rows))
        self.costs, self.plans = self._priced() if problem.most is None else self._counted(most)

    def _add_up(self, rows: IntArray) -> None:
        """Numbers of samples and exact costs up to each chosen row, by inner size."""
        problem = self.problem
        # A row belongs to the first chosen one that isn't before it.
        group = np.searchsorted(rows, self._row_of)
        shape = (len(rows) + 1, len(self.columns))
        counts = np.zeros(shape, dtype=np.int64)
        np.add.at(counts, (group + 1, self._column_of), problem.served.counts)
        # Numbers of samples are whole, so that differences of their sums are exact.
        self.counts = np.cumsum(counts, axis=0)
        self.exact: FloatArray | None = None
        if problem.exact is not None:
            exact = np.zeros(shape)
            np.add.at(exact, (group + 1, self._column_of), problem.weights * problem.exact)
            self.exact = exact
        self.row_numbers = [0, *(int(row) + 1 for row in rows)]

    def _find_ends(self, rows: IntArray, limit: int) -> None:
        """The possible ends of strips: at each chosen row, and where a larger program is cheaper."""
        by_row = [self._row_ends(int(row)) for row in rows]
        if sum(map(len, by_row)) > limit:
            self.dropped = True
            by_row = [ends[:1] for ends in by_row]
        self.ends: list[tuple[int, int]] = []  # index among the chosen rows from 1, outer size
        self.padded: list[FloatArray] = []  # costs of static programs of that size, [inner ends]
        for index, ends in enumerate(by_row, start=1):
            for size, costs in ends:
                self.ends.append((index, size))
                self.padded.append(costs)

    def _row_ends(self, row: int) -> list[tuple[int, FloatArray]]:
        """The outer sizes from one row to the next where a strip may end, cheapest mean first."""
        low = int(self.rows[row])
        if not self.problem.pads:
            return [(low, np.empty(0))]
        high = int(self.rows[row + 1]) - 1 if row + 1 < len(self.rows) else low
        between = self.problem.turns(self.outer, low, high)
        sizes = np.unique(np.concatenate([[low, high], between]))
        costs = self.problem.pad_costs(self.outer, sizes, self.inner_ends)
        cheapest: list[int] = []
        for index in np.argsort(costs.sum(axis=1), kind="stable"):
            # One that is nowhere cheaper than another needn't be tried.
            if not any((costs[other] <= costs[index]).all() for other in cheapest):
                cheapest.append(int(index))
        return [(int(sizes[index]), costs[index]) for index in cheapest]

    def _steps(self) -> int:
        """The number of cut points of all strips together."""
        return sum(
            int(np.count_nonzero(self.counts[start:] > self.counts[start - 1]))
            + len(self.counts)
            - start
            for start in range(1, len(self.counts))
        )

    @property
    def whole(self) -> bool:
        """Whether every end was tried that may be best."""
        return self.tried == self.possible and not self.dropped

    def _points(self, start: int, end: int) -> CutPoints:
        """The cut points of the inner axis in the strip of ``ends[end]`` from row ``start`` on."""
        row, _ = self.ends[end]
        counts = self.counts[row] - self.counts[start]
        used = counts > 0
        used[-1] = True  # the last box must reach the largest size served
        exact = None
        if self.exact is not None:
            exact = self.exact[start + 1 : row + 1].sum(axis=0)[used]
        weights = counts[used] / self.problem.n
        costs = self.padded[end] if self.problem.pads else None
        return CutPoints.of(self.columns[used], weights, exact, self.inner_ends, costs)

    def _counted(self, most: int) -> tuple[tuple[float, ...], tuple[tuple[Strip, ...], ...]]:
        """The best strips of exactly 1, …, ``most`` boxes, as far as they can be made."""
        nodes = len(self.ends)
        if nodes == 1:
            points = self._points(0, 0)
            strips = [self._strip(0, 0, points, cuts) for cuts in _cuts(points, most)]
            return tuple(strip.cuts.cost for strip in strips), tuple((item,) for item in strips)
        costs = np.full((nodes, most + 1), _INFINITY)
        origin = np.zeros((nodes, most + 1, 2), dtype=np.int64)  # end before or −1, and boxes
        for end in range(nodes):
            row = self.ends[end][0]
            best_before = self._before(row, costs)
            for start, (before, sources) in best_before.items():
                for q, cuts in enumerate(_cuts(self._points(start, end), most), start=1):
                    totals = np.append(np.full(q, _INFINITY), before[: most + 1 - q] + cuts.cost)
                    better = totals < costs[end] * (1 - 1e-15)
                    costs[end][better] = totals[better]
                    origin[end, better, 0] = sources[: most + 1][np.flatnonzero(better) - q]
                    origin[end, better, 1] = q
        last = [end for end in range(nodes) if self.ends[end][0] == len(self.counts) - 1]
        totals = costs[last].min(axis=0)[1:]
        totals = totals[np.isfinite(totals)]
        plans = []
        for k in range(1, len(totals) + 1):
            end = last[int(np.argmin(costs[last, k]))]
            strips = []
            left = k
            while end >= 0:
                source, q = (int(value) for value in origin[end, left])
                first = 0 if source < 0 else self.ends[source][0]
                points = self._points(first, end)
                strips.append(self._strip(first, end, points, _cuts(points, q)[q - 1]))
                end, left = source, left - q
            plans.append(tuple(reversed(strips)))
        return tuple(totals.tolist()), tuple(plans)

    def _before(self, row: int, costs: FloatArray) -> dict[int, tuple[FloatArray, IntArray]]:
        """For each row at which a strip can start: least costs by boxes, and at which end."""
        start = np.full(costs.shape[1], _INFINITY)
        start[0] = 0.0
        starts = {0: (start, np.full(costs.shape[1], -1))}
        for index in range(1, row):
            at = [end for end, (own, _) in enumerate(self.ends) if own == index]
            which = np.argmin(costs[at], axis=0)
            starts[index] = (costs[at].min(axis=0), np.array(at)[which])
        return starts

    def _strip(self, start: int, end: int, points: CutPoints, cuts: Segmentation) -> Strip:
        row, size = self.ends[end]
        return Strip(self.row_numbers[start], self.row_numbers[row], size, points, cuts)

    def _priced(self) -> tuple[tuple[float], tuple[tuple[Strip, ...]]]:
        """The best strips of any number of boxes, each of which costs the price."""
        price = self.problem.price
        totals: list[float] = []
        strips: list[tuple[int, Strip]] = []
        for end, (row, _) in enumerate(self.ends):
            best, chosen = _INFINITY, None
            for before in (-1, *(x for x in range(end) if self.ends[x][0] < row)):
                start = 0 if before < 0 else self.ends[before][0]
                points = self._points(start, end)
                cuts = best_priced_segmentation(points.weights, points.exact, points.padded, price)
                total = cuts.cost + price * len(cuts.segments)
                total += 0.0 if before < 0 else totals[before]
                if total < best * (1 - TIE) or chosen is None:
                    best, chosen = total, (before, self._strip(start, end, points, cuts))
            assert chosen is not None
            totals.append(best)
            strips.append(chosen)
        last = [end for end, (row, _) in enumerate(self.ends) if row == len(self.counts) - 1]
        end = min(last, key=lambda x: totals[x])
        chain = []
        while end >= 0:
            end, strip = strips[end]
            chain.append(strip)
        return (sum(strip.cuts.cost for strip in chain),), (tuple(reversed(chain)),)


def _cuts(points: CutPoints, most: int) -> tuple[Segmentation, ...]:
    return best_segmentations(points.weights, points.exact, points.padded, most)


def _spread(spent: FloatArray, limit: int) -> IntArray:
    """Indices of at most ``limit`` rows, the last among them, with about equal cost between."""
    if len(spent) <= limit:
        return np.arange(len(spent))
    reached = np.cumsum(spent)
    at = np.searchsorted(reached, reached[-1] * np.arange(1, limit) / limit)
    chosen = np.zeros(len(spent), dtype=bool)
    chosen[np.minimum(at, len(spent) - 1)] = True
    chosen[-1] = True
    # Where much is spent at one size several quantiles fall together: the heaviest rows fill up.
    heaviest = np.argsort(-spent, kind="stable")
    spare = limit - int(chosen.sum())
    chosen[heaviest[~chosen[heaviest]][:spare]] = True
    return np.flatnonzero(chosen)
