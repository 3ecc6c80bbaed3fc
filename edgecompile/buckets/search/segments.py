"""The exact optimum of cutting an ordered sample into segments: the planner's arithmetic.

There are m cut points. Point j (1..m) has the weight w_j and, in exact mode, the cost e_j; a padded
segment that ends at j costs p_j per unit of the weight in it. With the prefix sums W and E, the
segment (i, j] costs

    exact:   E_j − E_i
    padded:  p_j · (W_j − W_i)

and D_k(j), the least cost of serving the first j points with exactly k segments, is the lesser
of two minima over the last cut i < j:

    exact:   E_j + min_i (D_{k−1}(i) − E_i)            a running minimum
    padded:  p_j·W_j + min_i (D_{k−1}(i) − p_j·W_i)    the lower envelope of lines of slope −W_i,
                                                       read at p_j

A segment takes its cheaper mode, and the least of the two minima is the least over both modes and
all cuts, so the recurrence is exact. Nothing is asked of e or p: neither needs to rise with the
length, which measured costs often don't do.

Why lines and not divide and conquer. For a non-decreasing p the padded cost alone is Monge,
because C(i,j) + C(i',j') − C(i,j') − C(i',j) = (p_j − p_j')·(W_i' − W_i) <= 0 for i <= i' <= j <=
j', and then divide and conquer or SMAWK find the row minima. But the lesser of two Monge costs
needn't be Monge, and a measured p needn't rise. The lines need neither: they come in order of
slope, so their envelope is a stack (each is pushed and popped once), and a query is a binary
search: O(m log m) a layer, O(k·m·log m) in all. (Convex hull trick: Bentley and Saxe's stacks of
hulls for monotone slopes; see also Galil and Park, "Dynamic programming with convexity,
concavity and sparsity", 1992.)

A price per segment turns the layers into one sweep in which D takes the place of D_{k−1}.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_INFINITY = float("inf")


@dataclass(frozen=True)
class Segment:
    """Points ``start``+1 to ``end`` of 1..m, and whether they are padded."""

    start: int
    end: int
    padded: bool


@dataclass(frozen=True)
class Segmentation:
    """Segments that cover all points, and their cost without any price."""

    segments: tuple[Segment, ...]
    cost: float


def best_segmentations(
    weights: FloatArray, exact: FloatArray | None, padded: FloatArray | None, most: int
) -> tuple[Segmentation, ...]:
    """The optimum for exactly 1, 2, … segments, up to ``most`` or the number of points.

    Args:
        weights: w, shape [m], each 0 or more.
        exact: e, the whole cost of each point, shape [m], or None where there is no exact mode.
        padded: p, shape [m], or None where there is no padded mode; one of the two is needed.
        most: the largest number of segments, from 1 up.
    """
    sweep = _Sweep(weights, exact, padded)
    m = len(weights)
    layers = []
    best = [0.0] + [_INFINITY] * m
    for _ in range(min(most, m)):
        best, origin = sweep.layer(best)
        layers.append((best, origin))
    return tuple(
        Segmentation(_walk([origin for _, origin in reversed(layers[:count])], m), costs[m])
        for count, (costs, _) in enumerate(layers, start=1)
    )


def best_priced_segmentation(
    weights: FloatArray, exact: FloatArray | None, padded: FloatArray | None, price: float
) -> Segmentation:
    """The optimum over any number of segments, each of which costs ``price`` (0 or more)."""
    costs, origin = _Sweep(weights, exact, padded).layer(None, price)
    segments = _walk(repeat(origin), len(weights))
    return Segmentation(segments, costs[-1] - price * len(segments))


def _walk(origins: Iterable[list[int]], end: int) -> tuple[Segment, ...]:
    """The segments up to ``end``, from where the last one starts in each layer, the last first."""
    segments = []
    for origin in origins:
        if not end:
            break
        start = origin[end]
        segments.append(Segment(abs(start) - 1, end, start < 0))
        end = abs(start) - 1
    return tuple(reversed(segments))


class _Sweep:
    """The prefix sums of one problem, and the recurrence over them."""

    def __init__(
        self, weights: FloatArray, exact: FloatArray | None, padded: FloatArray | None
    ) -> None:
        if exact is None and padded is None:
            raise ValueError("neither exact nor padded costs are given")
        m = len(weights)
        self.weight_sums: list[float] = [0.0, *np.cumsum(weights).tolist()]
        # Plain lists: the sweep reads single elements, which is what arrays are slow at.
        self.exact_sums: list[float] | None = None
        if exact is not None:
            self.exact_sums = [0.0, *np.cumsum(exact).tolist()]
        self.padded: list[float] = [0.0, *([_INFINITY] * m if padded is None else padded.tolist())]
        self.has_padded = padded is not None

    def layer(
        self, previous: list[float] | None, price: float = 0.0
    ) -> tuple[list[float], list[int]]:
        """One layer: costs D(0..m), and where the last segment of each starts.

        ``previous`` None makes the layer feed on itself, with ``price`` per segment. An origin is
        start+1, negated if the segment is padded. Ties go to exact mode, then to the earlier cut
        (exact) or to the smaller weight (padded), so that the outcome is always the same.
        """
        m = len(self.weight_sums) - 1
        current = [_INFINITY] * (m + 1)
        if previous is None:
            current[0] = 0.0
            previous = current
        origin = [0] * (m + 1)
        sums, exact_sums, padded = self.weight_sums, self.exact_sums, self.padded
        has_padded = self.has_padded
        exact_best, exact_from = _INFINITY, 0
        # The envelope: lines by their cut, and where each gives way to the next (a larger p).
        cuts: list[int] = []
        turns: list[float] = []
        for j in range(1, m + 1):
            i = j - 1
            value = previous[i]
            if value != _INFINITY:
                if exact_sums is not None and value - exact_sums[i] < exact_best:
                    exact_best, exact_from = value - exact_sums[i], i
                if has_padded:
                    weight = sums[i]
                    while cuts:
                        top = cuts[-1]
                        gap = weight - sums[top]
                        if gap <= 0.0:  # no weight between: only the cheaper of the two counts
                            if previous[top] <= value:
                                break
                            cuts.pop()
                            if turns:
                                turns.pop()
                            continue
                        turn = (value - previous[top]) / gap
                        if turns and turn <= turns[-1]:
                            cuts.pop()
                            turns.pop()
                            continue
                        cuts.append(i)
                        turns.append(turn)
                        break
                    else:
                        cuts.append(i)
            best = _INFINITY
            if exact_sums is not None and exact_best != _INFINITY:
                best = exact_sums[j] + exact_best
                origin[j] = exact_from + 1
            if cuts:
                p = padded[j]
                cut = cuts[bisect_left(turns, p)]
                cost = previous[cut] + p * (sums[j] - sums[cut])
                if cost < best:
                    best = cost
                    origin[j] = -(cut + 1)
            current[j] = best + price
        return current, origin
