"""Where buckets can end: from a sample to the planner's positions, and from segments to buckets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgecompile.buckets.costs.sources import CostModel, FloatArray, Mode
from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes
from edgecompile.buckets.segments import Segment
from edgecompile.lengths.distribution import LengthDistribution

# Two costs that differ by less than this share are equal: rounding mustn't decide.
TIE = 1e-9


@dataclass(frozen=True)
class Positions:
    """The places where a bucket can end; one per distinct length, and the longest served length.

    Attributes:
        lengths: the observed lengths, then ``max_length`` if no sample has it.
        weights: share of the samples at each, shape [m].
        exact: exact cost of each length in ms, shape [m], or None.
        padded: cost in ms of the best static size of each, shape [m], or None.
        pad_sizes: that size: at least the length, less than the next one, shape [m].
    """

    lengths: npt.NDArray[np.int64]
    weights: FloatArray
    exact: FloatArray | None
    padded: FloatArray | None
    pad_sizes: npt.NDArray[np.int64]


def find_positions(
    served: LengthDistribution, curve: CostModel, modes: tuple[Mode, ...], max_length: int
) -> Positions:
    """The positions of a sample whose lengths don't pass ``max_length``; ``modes`` have costs."""
    lengths = served.length_array
    weights = served.count_array / served.n
    if served.max < max_length:  # no sample has it, but the last bucket must reach it
        lengths = np.append(lengths, max_length)
        weights = np.append(weights, 0.0)
    exact = curve.cost(lengths, "exact") if "exact" in modes else None
    if "pad" not in modes:
        return Positions(lengths, weights, exact, None, lengths)
    # Between one observed length and the next the cost is piecewise linear in the size, so its
    # minimum lies at an end or at a point of the curve.
    points = np.array(curve.lengths, dtype=np.int64)
    points = points[(points > lengths[0]) & (points < max_length)]
    sizes = np.unique(np.concatenate([lengths, lengths[1:] - 1, points]))
    sizes = sizes[sizes >= lengths[0]]
    costs = curve.cost(sizes, "pad")
    position = np.searchsorted(lengths, sizes, side="right") - 1
    order = np.lexsort((sizes, costs, position))  # by position, then the cheapest, then the least
    first = order[np.searchsorted(position[order], np.arange(len(lengths)))]
    return Positions(lengths, weights, exact, costs[first], sizes[first])


def make_buckets(
    segments: tuple[Segment, ...],
    positions: Positions,
    min_length: int,
    length_axis: str,
    other_axes: OtherAxes,
) -> tuple[Bucket, ...]:
    """The buckets of consecutive segments, from ``min_length`` up, without holes.

    An exact bucket's hint is the length up to which half of its expected time is spent (the
    cost-weighted median of its samples), and ``hi`` if it has no samples; a padded one's its size.
    """
    modes = [_mode(segment, positions) for segment in segments]
    found = []
    lo = min_length
    for index, (segment, mode) in enumerate(zip(segments, modes, strict=True)):
        last = segment.end - 1
        if mode == "pad":
            hi = hint = int(positions.pad_sizes[last])
        else:
            # Lengths that no sample has, between this bucket and a padded one, run unpadded here.
            before_padded = index + 1 < len(segments) and modes[index + 1] == "pad"
            hi = int(positions.lengths[last + 1] - 1 if before_padded else positions.lengths[last])
            hint = _hint(segment, positions, hi)
        found.append(Bucket(mode, ((length_axis, AxisRange(lo, hi, hint)), *other_axes)))
        lo = hi + 1
    return tuple(found)


def _mode(segment: Segment, positions: Positions) -> Mode:
    """The mode of a segment; one that pads and gains nothing by it runs exact."""
    if not segment.padded:
        return "exact"
    if positions.exact is None or positions.padded is None:
        return "pad"
    part = slice(segment.start, segment.end)
    weights = positions.weights[part]
    exact = float(np.dot(weights, positions.exact[part]))
    padded = float(weights.sum() * positions.padded[segment.end - 1])
    return "exact" if exact <= padded * (1 + TIE) else "pad"


def _hint(segment: Segment, positions: Positions, hi: int) -> int:
    """The length up to which half of an exact segment's time is spent; ``hi`` without samples."""
    assert positions.exact is not None
    part = slice(segment.start, segment.end)
    spent = np.cumsum(positions.weights[part] * positions.exact[part])
    if spent[-1] == 0:
        return hi
    return int(positions.lengths[part][np.searchsorted(spent, spent[-1] / 2)])
