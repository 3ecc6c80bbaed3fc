"""A lower bound on the cost of buckets over two axes, wherever they are.

The bound holds for every cover of the sample by k boxes (whole-number rectangles that don't pass
the largest sizes served), which may overlap and needn't be strips; each box is exact or padded and
each sample goes to the box of its choice.

Proof. Take such a cover and an axis A; let B be the other, e(a,b) the exact cost of a pair of
sizes, p(s,t) the cost of the static program of size s on A and t on B, and

    P(s,b) = min of p(s',b') over s' >= s and b' >= b

the pad-up envelope, which never falls with s or b. Let S be the sizes on A of the padded boxes. A
pair (a,b) that is served by a padded box of size (s,t) has s >= a and t >= b and so pays
p(s,t) >= P(s,b) >= P(s*,b), where s* is the least size in S that is at least a; one served by an
exact box pays e(a,b). If no box is exact, |S| <= k, every pair is padded, and the cover costs at
least

    V(k) = min over |S| <= k of Σ w(a,b)·P(s*(a),b).

If some box is exact, |S| <= k−1, and it costs at least

    X(k) = min over |S| <= k−1 of Σ w(a,b)·min(e(a,b), P(s*(a),b)), with e(a,b) where no s* is.

A single padded box holds every pair, so V(1) is no less than P at the largest sizes of the sample.

Both hold for either axis, so the larger of the two axes' values does, and the cover costs at least
the lesser of max V and max X. Both minima are over cuts of one axis: a recurrence over segments
whose costs are Σ of a matrix product (V) or of elementwise minima (X).

S may be taken from the observed sizes, as P(s,b) >= P(a,b) for the largest observed a <= s. If
there are more observed sizes than groups, a size in S is moved down to the least observed size of
its group, which lowers P, and the pairs of that group count as served by it: still a bound, only a
weaker one. P itself is the suffix minimum over a table: costs are bilinear between the points of
the costs, so the minimum over a rectangle is at its corners or at points in it or on its edges.
"""

from __future__ import annotations

import numpy as np

from edgecompile.buckets.costs.grid import FloatArray
from edgecompile.buckets.search.problem import Problem
from edgecompile.buckets.traffic import IntArray

MAX_GROUPS = 512
_MIN_GROUPS = 16
_MOST_WORK = 30_000_000

_INFINITY = float("inf")


def cover_bound(problem: Problem, groups: int = MAX_GROUPS) -> float:
    """The least mean cost of any cover, plus the price of each of its boxes, from below.

    Args:
        problem: over two axes.
        groups: the most groups of sizes that an axis is divided in; more give a better bound.
    """
    most, count, price = problem.most, problem.count, problem.price
    layers = count or most or 1
    exact = _INFINITY if problem.exact is None else float(problem.weights @ problem.exact)
    if not problem.pads:
        return exact + price * (count or 1)
    axes = [_AxisBound(problem, axis, groups) for axis in (0, 1)]
    if count is None and most is None:
        # More boxes than groups gain nothing in these relaxations.
        layers = max(bound.n_groups for bound in axes) + 1
    padded = np.maximum(*(bound.best(layers) for bound in axes))
    # One box has to hold the whole sample.
    largest = problem.sizes.max(axis=0)
    padded[0] = max(padded[0], _envelope(problem, 0, largest[:1], largest[1:])[0, 0])
    mixed = np.full(layers, exact)
    if problem.exact is not None and layers > 1:
        # One box is exact; what is left are layers − 1 padded ones.
        mixed[1:] = np.maximum(*(bound.best(layers - 1, problem.exact) for bound in axes))
    by_count = np.minimum(padded, mixed)
    totals = by_count + price * np.arange(1, layers + 1)
    return float(totals[-1] if count is not None else totals.min())


class _AxisBound:
    """The relaxation in which only one axis is cut."""

    def __init__(self, problem: Problem, axis: int, groups: int) -> None:
        sizes = problem.observed(axis)
        others = problem.observed(1 - axis)
        cells = problem.sizes
        size_of = np.searchsorted(sizes, cells[:, axis])
        self._other_of = np.searchsorted(others, cells[:, 1 - axis])
        allowed = max(_MIN_GROUPS, _MOST_WORK // max(len(cells), len(others)))
        self._starts = _group_starts(
            size_of, problem.weights * problem.least, len(sizes), min(groups, allowed)
        )
        self.n_groups = len(self._starts)
        self._group_of = np.searchsorted(self._starts, size_of, side="right") - 1
        self._weights = problem.weights
        self._envelope = _envelope(problem, axis, sizes[self._starts], others)

    def best(self, layers: int, exact: FloatArray | None = None) -> FloatArray:
        """V(1), …, V(layers), where every pair is padded; with ``exact`` costs X(2), …, X(layers + 1),
        where pairs take the cheaper of exact and padded."""
        n = self.n_groups
        costs = np.empty((n, n))
        for end in range(n):
            paid = self._envelope[end, self._other_of]
            paid = paid if exact is None else np.minimum(exact, paid)
            costs[:, end] = np.bincount(self._group_of, self._weights * paid, minlength=n)
        alone = None
        if exact is not None:
            spent = self._weights * exact
            alone = np.bincount(self._group_of, spent, minlength=n).astype(np.float64)
        return _best_cuts(costs, alone, layers)


def _group_starts(size_of: IntArray, spent: FloatArray, n_sizes: int, groups: int) -> IntArray:
    """The first size of each group: one per size, or groups of about the same cost."""
    if n_sizes <= groups:
        return np.arange(n_sizes)
    reached = np.cumsum(np.bincount(size_of, spent, minlength=n_sizes))
    parts = reached[-1] * np.arange(1, groups) / groups
    return np.unique(np.append(0, np.minimum(np.searchsorted(reached, parts) + 1, n_sizes - 1)))


def _envelope(problem: Problem, axis: int, sizes: IntArray, others: IntArray) -> FloatArray:
    """P at these sizes of both axes, shape [sizes, others]."""
    tables = []
    for at, which in ((sizes, axis), (others, 1 - axis)):
        last = problem.high(which)
        tables.append(
            np.unique(np.concatenate([at, problem.turns(which, int(at[0]), last), [last]]))
        )
    rows, columns = tables
    costs = problem.pad_costs(axis, rows, columns)
    costs = np.minimum.accumulate(costs[::-1, :], axis=0)[::-1, :]
    costs = np.minimum.accumulate(costs[:, ::-1], axis=1)[:, ::-1]
    return costs[np.ix_(np.searchsorted(rows, sizes), np.searchsorted(columns, others))]


def _best_cuts(costs: FloatArray, alone: FloatArray | None, layers: int) -> FloatArray:
    """Least cost of cutting the groups into at most 1, …, ``layers`` segments.

    Args:
        costs: cost of the pairs of group h in a segment that ends with group j, shape [h, j].
        alone: cost of each group's pairs outside every segment, after the last; None if there
            must be none.
        layers: number of segments, from 1 up.
    """
    n = len(costs)
    sums = np.vstack([np.zeros(n), np.cumsum(costs, axis=0)])
    # segment[i, j]: groups i+1..j in one segment, counted from 1; j < i is none.
    segment = np.full((n + 1, n + 1), _INFINITY)
    for end in range(1, n + 1):
        segment[:end, end] = sums[end, end - 1] - sums[:end, end - 1]
    rest = np.full(n + 1, _INFINITY)
    rest[n] = 0.0
    if alone is not None:
        rest = np.append(np.cumsum(alone[::-1])[::-1], 0.0)
    best = np.full(n + 1, _INFINITY)
    best[0] = 0.0
    totals = np.empty(layers)
    least = rest[0] if alone is not None else _INFINITY
    for layer in range(layers):
        if layer < n:
            best = np.min(best[:, None] + segment, axis=0)
            least = min(least, float(np.min(best + rest)))
        totals[layer] = least
    return totals
