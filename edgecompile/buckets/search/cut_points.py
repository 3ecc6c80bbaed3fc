"""The planner's cut points on one axis, and the ranges between chosen ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgecompile.buckets.costs.grid import FloatArray, Mode
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
        exact: the cost of the samples of each in exact mode, in ms of the mean run, shape [m], or
            None.
        padded: cost in ms of the best static size of each, shape [m], or None.
        pad_sizes: the best static size of each: at least the observed one, less than the next one,
            shape [m].
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
            costs: the costs of such programs, shape [ends]; None where there is no padding.
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

    def cut(self, cuts: Segmentation, low: int) -> list[tuple[Mode, int, int]]:
        """Mode and ends of each segment, from ``low`` up, without holes."""
        modes = [self._mode(segment) for segment in cuts.segments]
        ranges = []
        for index, (segment, mode) in enumerate(zip(cuts.segments, modes, strict=True)):
            last = segment.end - 1
            # Sizes that no sample has, between an exact range and a padded one, run unpadded in it.
            before_padded = index + 1 < len(modes) and modes[index + 1] == "pad"
            if mode == "pad":
                hi = int(self.pad_sizes[last])
            else:
                hi = int(self.sizes[last + 1] - 1 if before_padded else self.sizes[last])
            ranges.append((mode, low, hi))
            low = hi + 1
        return ranges

    def _mode(self, segment: Segment) -> Mode:
        """The mode of a segment; one that pads and gains nothing by it runs exact."""
        if not segment.padded:
            return "exact"
        if self.exact is None or self.padded is None:
            return "pad"
        part = slice(segment.start, segment.end)
        padded = float(self.weights[part].sum() * self.padded[segment.end - 1])
        return "exact" if float(self.exact[part].sum()) <= padded * (1 + TIE) else "pad"
