"""From strips to buckets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes
from edgecompile.buckets.search.cut_points import median_of_cost
from edgecompile.buckets.search.problem import Problem
from edgecompile.buckets.search.strips import Strip


def make_buckets(
    strips: tuple[Strip, ...], outer: int, problem: Problem, other_axes: OtherAxes
) -> tuple[Bucket, ...]:
    """The buckets of consecutive strips; they fill the sizes served without hole or overlap.

    Padded buckets pad every axis that is divided; their hints are their sizes. The hints of an
    exact one are on each axis the size up to which half of its expected time is spent (the
    cost-weighted median), and ``hi`` if it serves no samples.
    """
    inner = 1 - outer
    rows = problem.reached(outer)
    parts = [strip.points.cut(strip.cuts, problem.low(inner)) for strip in strips]
    buckets = []
    lo = problem.low(outer)
    for index, (strip, ranges) in enumerate(zip(strips, parts, strict=True)):
        hi = strip.size
        if index + 1 == len(strips):
            hi = problem.high(outer)
        elif all(mode == "exact" for mode, _ in ranges):
            # Sizes that no sample has, between this strip and a padded bucket, run unpadded here.
            pads_next = any(mode == "pad" for mode, _ in parts[index + 1])
            hi = int(rows[strip.end] - 1 if pads_next else rows[strip.end - 1])
        for mode, extent in ranges:
            own = AxisRange(lo, hi, hi)
            both = (own, extent) if outer == 0 else (extent, own)
            axes = tuple(zip(problem.axes, both, strict=False))
            if len(axes) > 1 and mode == "exact":
                axes = _with_hint(axes, outer, problem)
            pads = problem.axes if mode == "pad" else ()
            buckets.append(Bucket(mode, (*axes, *other_axes), pads))
        lo = hi + 1
    return tuple(buckets)


def _with_hint(axes: OtherAxes, outer: int, problem: Problem) -> OtherAxes:
    """The ranges of an exact bucket with the hint of its outer axis, too."""
    assert problem.exact is not None
    inside = np.ones(len(problem.sizes), dtype=bool)
    for column, (_, extent) in enumerate(axes):
        sizes = problem.sizes[:, column]
        inside &= (sizes >= extent.lo) & (sizes <= extent.hi)
    at = problem.sizes[inside, outer]
    order = np.argsort(at, kind="stable")
    hint = median_of_cost(at[order], (problem.weights * problem.exact)[inside][order])
    if hint is None:
        return axes
    return tuple((n, replace(r, hint=hint) if i == outer else r) for i, (n, r) in enumerate(axes))
