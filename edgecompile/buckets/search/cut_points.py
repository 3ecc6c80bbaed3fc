"""Where one axis can be cut: the planner's cut points, and the ranges between chosen ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.costs.grid import FloatArray, Mode
from edgecompile.buckets.ranges import AxisRange
from edgecompile.buckets.search.segments import Segment, Segmentation
from edgecompile.buckets.traffic import IntArray

# Two costs that differ by less than this share are equal: rounding mustn't decide.
TIE = 1e-9


@dataclass(frozen=True)
class CutPoints:
    """The places where a bucket can end; one per distinct size, and the largest size served.

    Attributes:
        sizes: the observed sizes, then the largest served if no sample has it, shape [m].
        weights: share of the samples at each, shape [m].
        exact: what the samples of each cost in exact mode, in ms of the mean run, shape [m], or
            None.
        padded: cost in ms of the best static size of each, shape [m], or None.
        pad_sizes: that size: at least the observed one, less than the next one, shape [m].
    """

    sizes: IntArray
    weights: FloatArray
    exact: FloatArray | None
    padded: FloatArray | None
    pad_sizes: IntArray

    @classmethod
    def of(
        cls,
        sizes: IntArray,
        weights: FloatArray,
        exact: FloatArray | None,
        ends: IntArray,
        costs: FloatArray | None,
    ) -> CutPoints:
        """The cut points at ``sizes``, each with its cheapest static size.

        Args:
            sizes, weights, exact: see the class.
            ends: sizes of static programs, ascending, ``sizes`` among them, shape [ends].
            costs: what such programs cost, shape [ends]; None where there is no padding.
        """
        if costs is None:
            return cls(sizes, weights, exact, None, sizes)
        first = np.searchsorted(ends, sizes)
        least = np.minimum.reduceat(costs, first)
        # The least size of the least cost in each range from one used size to the next.
        place = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(costs))))
        hits = first[0] + np.flatnonzero(costs[first[0] :] <= least[place])
        best = hits[np.searchsorted(place[hits - first[0]], np.arange(len(first)))]
        return cls(sizes, weights, exact, least, ends[best])

    def cut(self, cuts: Segmentation, low: int) -> list[tuple[Mode, AxisRange]]:
        """Mode and range of each segment, from ``low`` up, without holes.

        An exact range's hint is the size up to which half of its expected time is spent (the
        cost-weighted median of its samples), and ``hi`` if it has no samples; a padded one's its
        upper end.
        """
        modes = [self._mode(segment) for segment in cuts.segments]
        found = []
        for index, (segment, mode) in enumerate(zip(cuts.segments, modes, strict=True)):
            last = segment.end - 1
            if mode == "pad":
                hi = hint = int(self.pad_sizes[last])
            else:
                # Sizes that no sample has, between this range and a padded one, run unpadded here.
                before_padded = index + 1 < len(modes) and modes[index + 1] == "pad"
                hi = int(self.sizes[last + 1] - 1 if before_padded else self.sizes[last])
                hint = self._hint(segment, hi)
            found.append((mode, AxisRange(low, hi, hint)))
            low = hi + 1
        return found

    def _mode(self, segment: Segment) -> Mode:
        """The mode of a segment; one that pads and gains nothing by it runs exact."""
        if not segment.padded:
            return "exact"
        if self.exact is None or self.padded is None:
            return "pad"
        part = slice(segment.start, segment.end)
        padded = float(self.weights[part].sum() * self.padded[segment.end - 1])
        return "exact" if float(self.exact[part].sum()) <= padded * (1 + TIE) else "pad"

    def _hint(self, segment: Segment, hi: int) -> int:
        assert self.exact is not None
        part = slice(segment.start, segment.end)
        middle = median_of_cost(self.sizes[part], self.exact[part])
        return hi if middle is None else middle


def median_of_cost(sizes: IntArray, spent: FloatArray) -> int | None:
    """The size, of ascending ones, up to which half of ``spent`` is spent; None if nothing is."""
    reached = np.cumsum(spent)
    if not len(reached) or reached[-1] == 0:
        return None
    return int(sizes[np.searchsorted(reached, reached[-1] / 2)])
