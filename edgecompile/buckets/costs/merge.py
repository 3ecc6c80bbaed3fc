"""Costs of both modes at the same lengths, from modes that were measured at different ones.

A grid needs both costs at each of its points. The dynamic program is measured at many lengths; a
static one has to be compiled for each, so there are few of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgecompile.buckets.costs.grid import MOST_MS, CostGrid, CostPoint, Mode


def merge_modes(
    exact_points: Sequence[CostPoint], pad_points: Sequence[CostPoint]
) -> tuple[CostPoint, ...]:
    """One list of points out of the measurements of each mode.

    At a length where one mode is missing it is filled:

    - between lengths that have both, with the ratio pad/exact interpolated linearly between
      these; never under the lower of the mode's own measured neighbours, since a dip of one mode
      is no evidence of a dip of the other;
    - beyond the first and the last such length, with what a grid of the mode's own points says
      (the first cost below them, the last slope above), as the ratio isn't known there.

    If both modes were measured but no length has both, there is no ratio at all: then the mode
    that was measured at fewer lengths (of equally many ``pad``) is left out. What was measured is
    never changed; filled costs have the spread 0, for unknown, and are no more than a cost may be.

    Args:
        exact_points: points with ``exact_ms``; what they have of the other mode is ignored.
        pad_points: points with ``pad_ms``, likewise. Either may be empty, not both.

    Returns:
        Points ascending in length; all have the same modes.

    Raises:
        CostError: the points of one mode are unusable (see :class:`CostGrid`), or there are none.
    """
    exact = {p.length: (p.exact_ms, p.exact_spread_ms) for p in exact_points}
    pad = {p.length: (p.pad_ms, p.pad_spread_ms) for p in pad_points}
    curves = {
        "exact": [CostPoint(p.length, p.exact_ms, None, p.exact_spread_ms) for p in exact_points],
        "pad": [
            CostPoint(p.length, None, p.pad_ms, pad_spread_ms=p.pad_spread_ms) for p in pad_points
        ],
    }
    # Their construction refuses lengths that repeat or descend, and bad numbers.
    exact_curve = CostGrid(tuple(curves["exact"]), "measured") if exact else None
    pad_curve = CostGrid(tuple(curves["pad"]), "measured") if pad or not exact else None
    if exact_curve is None or pad_curve is None:
        only = exact_curve or pad_curve
        assert only is not None
        return only.points
    both = np.array(sorted(exact.keys() & pad.keys()), dtype=np.int64)
    if not len(both):
        return exact_curve.points if len(exact) >= len(pad) else pad_curve.points
    ratios = pad_curve.cost(both, "pad") / exact_curve.cost(both, "exact")
    merged = []
    for length in sorted(exact.keys() | pad.keys()):
        exact_ms, exact_spread = exact.get(length, (None, 0.0))
        pad_ms, pad_spread = pad.get(length, (None, 0.0))
        inside = both[0] < length < both[-1]
        ratio = float(np.interp(length, both, ratios))
        if exact_ms is None:
            assert pad_ms is not None
            exact_ms = _fill(exact_curve, "exact", length, pad_ms / ratio if inside else None)
        if pad_ms is None:
            pad_ms = _fill(pad_curve, "pad", length, exact_ms * ratio if inside else None)
        merged.append(CostPoint(length, exact_ms, pad_ms, exact_spread, pad_spread))
    return tuple(merged)


def _fill(curve: CostGrid, mode: Mode, length: int, by_ratio: float | None) -> float:
    """The cost of a mode at a length where it wasn't measured."""
    if by_ratio is None:
        return min(curve.cost(length, mode), MOST_MS)
    after = int(np.searchsorted(curve.lengths, length))
    neighbours = (curve.points[after - 1].value(mode), curve.points[after].value(mode))
    least = min(ms for ms in neighbours if ms is not None)
    return min(max(by_ratio, least), MOST_MS)
