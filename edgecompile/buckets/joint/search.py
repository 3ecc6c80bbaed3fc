"""The cheapest slabs: one axis is cut first, the other within each slab.

For every slab between two ends of the outer axis the cuts of the inner axis are a problem of one
axis, whose optimum for 1, 2, … boxes :mod:`edgecompile.buckets.segments` finds: an exact box costs
Σ w·e over its pairs of sizes, a padded one its weight times the cost of the static program of the
slab's end and the box's own. A recurrence over slabs then shares out the boxes,

    F_k(y) = min over x < y and q of F_{k−q}(x) + G_q(x, y),

with G_q the optimum of the slab (x, y] in q boxes. All of it is exact, so the outcome is the
optimum among slabs of this order, as long as every end of the outer axis may be tried. Ends are
worth trying at each observed size and where a larger static program is cheaper. If that takes too
long, ends are tried only at sizes between which about the same time is spent: a heuristic.

With a price per box and no bound on their number G is the priced optimum of a slab and F one sweep.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.costs.curves import FloatArray
from edgecompile.buckets.joint.problem import IntArray, JointProblem
from edgecompile.buckets.positions import TIE, Positions
from edgecompile.buckets.segments import Segmentation, best_priced_segmentation, best_segmentations

# Steps of the recurrence of segments: about a microsecond each.
MOST_STEPS = 3_000_000
MOST_ENDS = 128
_INFINITY = float("inf")


@dataclass(frozen=True)
class Slab:
    """Outer sizes over ``start`` to ``end``, and how the inner axis is cut there.

    Attributes:
        start, end: number of observed outer sizes before the slab, and to its end.
        size: the outer size at which its padded boxes end.
        positions: where the inner axis can be cut.
        cuts: how it is.
    """

    start: int
    end: int
    size: int
    positions: Positions
    cuts: Segmentation


@dataclass(frozen=True)
class SlabPlans:
    """The best slabs of one order.

    Attributes:
        outer: the axis that is cut first, 0 or 1.
        costs: mean cost of the best slabs of exactly 1, 2, … boxes; of the best number if there
            was a price and no bound.
        plans: these slabs.
        tried, possible: at how many outer sizes slabs could end, and how many there are.
        whole: whether every end was tried that may be best, so that the plans are the optimum.
    """

    outer: int
    costs: tuple[float, ...]
    plans: tuple[tuple[Slab, ...], ...]
    tried: int
    possible: int
    whole: bool


def best_slabs(
    problem: JointProblem,
    outer: int,
    most: int | None,
    price: float = 0.0,
    *,
    most_steps: int = MOST_STEPS,
    most_ends: int = MOST_ENDS,
) -> SlabPlans:
    """The cheapest slabs with the axis ``outer`` (0 or 1) cut first.

    Args:
        problem: the sample and its costs.
        outer: the axis that is cut first.
        most: slabs of exactly 1, 2, … boxes up to this number are found; None finds the best
            number under ``price``, which is over 0 then.
        price: milliseconds of the mean run that a box costs; only looked at without ``most``.
        most_steps, most_ends: bounds on the work, beyond which not all ends are tried.
    """
    search = _Search(problem, outer, most, most_steps, most_ends)
    if most is None:
        cost, slabs = search.priced(price)
        return SlabPlans(outer, (cost,), (slabs,), search.tried, search.possible, search.whole)
    costs, plans = search.counted(most)
    return SlabPlans(outer, costs, plans, search.tried, search.possible, search.whole)


class _Search:
    """The tables of one order, and the recurrence over them."""

    def __init__(
        self,
        problem: JointProblem,
        outer: int,
        most: int | None,
        most_steps: int,
        most_ends: int,
    ) -> None:
        self.problem, self.outer = problem, outer
        self.dropped = False
        self.rows = problem.reached(outer)
        self.columns = problem.reached(1 - outer)
        cells = problem.served.size_array
        self._row_of = np.searchsorted(self.rows, cells[:, outer])
        self._column_of = np.searchsorted(self.columns, cells[:, 1 - outer])
        self.inner_ends = problem.ends(1 - outer)
        spent = np.zeros(len(self.rows))
        np.add.at(spent, self._row_of, problem.weights * problem.least)
        self.possible = len(self.rows)
        wanted = min(self.possible, most_ends)
        while True:
            rows = _spread(spent, wanted)
            self._add_up(rows)
            if wanted <= 2 or self._steps() * (most or 1) <= most_steps:
                break
            wanted = max(2, int(wanted * 0.8))
        self.tried = len(rows)
        self._find_ends(rows, limit=2 * len(rows) if self.tried == self.possible else len(rows))

    def _add_up(self, rows: IntArray) -> None:
        """Numbers of samples and exact costs up to each chosen row, by inner size."""
        problem = self.problem
        # A row belongs to the first chosen one that isn't before it.
        group = np.searchsorted(rows, self._row_of)
        shape = (len(rows) + 1, len(self.columns))
        counts = np.zeros(shape, dtype=np.int64)
        np.add.at(counts, (group + 1, self._column_of), problem.served.count_array)
        # Numbers of samples are whole, so that differences of their sums are exact.
        self.counts = np.cumsum(counts, axis=0)
        self.exact: FloatArray | None = None
        if problem.exact is not None:
            exact = np.zeros(shape)
            np.add.at(exact, (group + 1, self._column_of), problem.weights * problem.exact)
            self.exact = exact
        self.row_numbers = [0, *(int(row) + 1 for row in rows)]

    def _find_ends(self, rows: IntArray, limit: int) -> None:
        """Where slabs may end: at each chosen row, and where a larger program is cheaper."""
        found = [self._row_ends(int(row)) for row in rows]
        if sum(map(len, found)) > limit:
            self.dropped = True
            found = [ends[:1] for ends in found]
        self.ends: list[tuple[int, int]] = []  # index among the chosen rows from 1, outer size
        self.padded: list[FloatArray] = []  # costs of static programs of that size, [inner ends]
        for index, ends in enumerate(found, start=1):
            for size, costs in ends:
                self.ends.append((index, size))
                self.padded.append(costs)

    def _row_ends(self, row: int) -> list[tuple[int, FloatArray]]:
        """The outer sizes from one row to the next where a slab may end, cheapest mean first."""
        low = int(self.rows[row])
        if not self.problem.pads:
            return [(low, np.empty(0))]
        high = int(self.rows[row + 1]) - 1 if row + 1 < len(self.rows) else low
        between = self.problem.turns(self.outer, low, high)
        sizes = np.unique(np.concatenate([[low, high], between]))
        costs = self.problem.pad_costs(self.outer, sizes, self.inner_ends)
        kept: list[int] = []
        for index in np.argsort(costs.sum(axis=1), kind="stable"):
            # One that is nowhere cheaper than another needn't be tried.
            if not any((costs[other] <= costs[index]).all() for other in kept):
                kept.append(int(index))
        return [(int(sizes[index]), costs[index]) for index in kept]

    def _steps(self) -> int:
        """How many positions all slabs have together."""
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

    def positions(self, start: int, end: int) -> Positions:
        """Where the inner axis can be cut in the slab of ``ends[end]`` from row ``start`` on."""
        row, _ = self.ends[end]
        counts = self.counts[row] - self.counts[start]
        used = counts > 0
        used[-1] = True  # the last box must reach the largest size served
        weights = counts[used] / self.problem.served.n
        sizes = self.columns[used]
        exact = None
        if self.exact is not None:
            spent = self.exact[start + 1 : row + 1].sum(axis=0)[used]
            exact = np.divide(spent, weights, out=np.zeros(len(spent)), where=weights > 0)
        if not self.problem.pads:
            return Positions(sizes, weights, exact, None, sizes)
        costs = self.padded[end]
        first = np.searchsorted(self.inner_ends, sizes)
        least = np.minimum.reduceat(costs, first)
        # The least size of the least cost in each range from one used size to the next.
        place = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(costs))))
        hits = first[0] + np.flatnonzero(costs[first[0] :] <= least[place])
        best = hits[np.searchsorted(place[hits - first[0]], np.arange(len(first)))]
        return Positions(sizes, weights, exact, least, self.inner_ends[best])

    def counted(self, most: int) -> tuple[tuple[float, ...], tuple[tuple[Slab, ...], ...]]:
        """The best slabs of exactly 1, …, ``most`` boxes, as far as so many can be made."""
        nodes = len(self.ends)
        costs = np.full((nodes, most + 1), _INFINITY)
        origin = np.zeros((nodes, most + 1, 2), dtype=np.int64)  # end before or −1, and boxes
        for end in range(nodes):
            row = self.ends[end][0]
            best_before = self._before(row, costs)
            for start, (before, sources) in best_before.items():
                for q, cost in enumerate(self._slab_costs(start, end, most), start=1):
                    found = np.append(np.full(q, _INFINITY), before[: most + 1 - q] + cost)
                    better = found < costs[end] * (1 - 1e-15)
                    costs[end][better] = found[better]
                    origin[end, better, 0] = sources[: most + 1][np.flatnonzero(better) - q]
                    origin[end, better, 1] = q
        last = [end for end in range(nodes) if self.ends[end][0] == len(self.counts) - 1]
        totals = costs[last].min(axis=0)[1:]
        totals = totals[np.isfinite(totals)]
        plans = []
        for k in range(1, len(totals) + 1):
            end = last[int(np.argmin(costs[last, k]))]
            slabs = []
            left = k
            while end >= 0:
                source, q = (int(value) for value in origin[end, left])
                first = 0 if source < 0 else self.ends[source][0]
                slabs.append(self._slab(first, end, q))
                end, left = source, left - q
            plans.append(tuple(reversed(slabs)))
        return tuple(totals.tolist()), tuple(plans)

    def _before(self, row: int, costs: FloatArray) -> dict[int, tuple[FloatArray, IntArray]]:
        """For each row at which a slab can start: least costs by boxes, and at which end."""
        start = np.full(costs.shape[1], _INFINITY)
        start[0] = 0.0
        found = {0: (start, np.full(costs.shape[1], -1))}
        for index in range(1, row):
            at = [end for end, (own, _) in enumerate(self.ends) if own == index]
            which = np.argmin(costs[at], axis=0)
            found[index] = (costs[at].min(axis=0), np.array(at)[which])
        return found

    def _slab_costs(self, start: int, end: int, most: int) -> tuple[float, ...]:
        found = self.positions(start, end)
        problem = (found.weights, found.exact, found.padded)
        return tuple(cuts.cost for cuts in best_segmentations(*problem, most))

    def _slab(self, start: int, end: int, count: int) -> Slab:
        row, size = self.ends[end]
        found = self.positions(start, end)
        cuts = best_segmentations(found.weights, found.exact, found.padded, count)[count - 1]
        return Slab(self.row_numbers[start], self.row_numbers[row], size, found, cuts)

    def priced(self, price: float) -> tuple[float, tuple[Slab, ...]]:
        """The best slabs of any number of boxes, each of which costs ``price``."""
        totals: list[float] = []
        slabs: list[tuple[int, Slab]] = []
        for end, (row, size) in enumerate(self.ends):
            best, chosen = _INFINITY, None
            for before in (-1, *(x for x in range(end) if self.ends[x][0] < row)):
                start = 0 if before < 0 else self.ends[before][0]
                at = self.positions(start, end)
                cuts = best_priced_segmentation(at.weights, at.exact, at.padded, price)
                total = cuts.cost + price * len(cuts.segments)
                total += 0.0 if before < 0 else totals[before]
                if total < best * (1 - TIE) or chosen is None:
                    slab = Slab(self.row_numbers[start], self.row_numbers[row], size, at, cuts)
                    best, chosen = total, (before, slab)
            assert chosen is not None
            totals.append(best)
            slabs.append(chosen)
        last = [end for end, (row, _) in enumerate(self.ends) if row == len(self.counts) - 1]
        end = min(last, key=lambda x: totals[x])
        found = []
        while end >= 0:
            end, slab = slabs[end]
            found.append(slab)
        return sum(slab.cuts.cost for slab in found), tuple(reversed(found))


def _spread(spent: FloatArray, wanted: int) -> IntArray:
    """Indices of at most ``wanted`` rows, the last among them, with about equal cost between."""
    if len(spent) <= wanted:
        return np.arange(len(spent))
    reached = np.cumsum(spent)
    at = np.searchsorted(reached, reached[-1] * np.arange(1, wanted) / wanted)
    chosen = np.zeros(len(spent), dtype=bool)
    chosen[np.minimum(at, len(spent) - 1)] = True
    chosen[-1] = True
    # Where much is spent at one size several quantiles fall together: the heaviest rows fill up.
    heaviest = np.argsort(-spent, kind="stable")
    spare = wanted - int(chosen.sum())
    chosen[heaviest[~chosen[heaviest]][:spare]] = True
    return np.flatnonzero(chosen)
