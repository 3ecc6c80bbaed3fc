"""The lowest costs of static programs that a few measurements allow.

Each static program has to be compiled before it is measured, so a build measures two first: a short
one and the longest. If no plan with padding is best even at the lowest costs that fit their times, the others
aren't built. This may be wrong where a static program between them is over :data:`TOLERANCE` faster than they let
expect, or noise is larger than its estimate: the plan has one dynamic program then, and padding would pay.
A third program would find more of these cases, but there are hardly more than three in all.
"""

from __future__ import annotations

from dataclasses import replace

from edgecompile.buckets.costs.grid import LEAST_MS, CostGrid
from edgecompile.planning.costs.calibration import CalibratedPoint, Calibration
from edgecompile.runtime.measure.rounds import median_error

#: By so much of its time a static program may be faster than the measured ones let expect: on quiet
#: machines the ratio to the dynamic program varied by up to 3 % from length to length.
TOLERANCE = 0.05

#: Standard errors of a median that count as its error: in 95 of 100 measurements it is smaller.
_ERRORS = 2.0


def lowest_costs(costs: CostGrid, calibration: Calibration) -> CostGrid:
    """The grid with the lowest costs in the mode ``pad``, those in ``exact`` as they are.

    The ratio of the modes at a length that wasn't measured in both is taken for the least measured
    ratio, less the errors of its two medians and :data:`TOLERANCE`. It may be lower in truth.

    Args:
        costs: the costs over one axis, in both modes.
        calibration: the measurements that they were made of.
    """
    exact = {point.sizes: point for point in calibration.points if point.mode == "exact"}
    ratio = (1 - TOLERANCE) * min(
        max(0.0, point.ms - _error(point)) / (exact[point.sizes].ms + _error(exact[point.sizes]))
        for point in calibration.points
        if point.mode == "pad" and point.sizes in exact
    )
    points = []
    for point in costs.points:
        assert point.exact_ms is not None and point.pad_ms is not None
        least = max(LEAST_MS, min(point.pad_ms, ratio * point.exact_ms))
        points.append(replace(point, pad_ms=least))
    return replace(costs, points=tuple(points))


def _error(point: CalibratedPoint) -> float:
    """The error of a median in milliseconds."""
    return _ERRORS * median_error(point.spread_ms, max(1, point.samples))
