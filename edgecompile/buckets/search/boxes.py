"""From strips to buckets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes
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
        elif all(mode == "exact" for mode, *_ in ranges):
            # Sizes that no sample has, between this strip and a padded bucket, run unpadded here.
            pads_next = any(mode == "pad" for mode, *_ in parts[index + 1])
            hi = int(rows[strip.end] - 1 if pads_next else rows[strip.end - 1])
        for mode, low, high in ranges:
            ends = [(lo, hi), (low, high)]
            extents = (ends if outer == 0 else ends[::-1])[: len(problem.axes)]
            hints = [end for _, end in extents] if mode == "pad" else _hints(extents, problem)
            axes = [
                (name, AxisRange(*extent, hint))
                for name, extent, hint in zip(problem.axes, extents, hints, strict=True)
            ]
            pads = problem.axes if mode == "pad" else ()
            buckets.append(Bucket(mode, (*axes, *other_axes), pads))
        lo = hi + 1
    return tuple(buckets)


def make_unused(problem: Problem, other_axes: OtherAxes) -> Bucket:
    """The bucket of sizes that have to be served and that no sample has."""
    ends = zip(problem.axes, problem.lows, problem.highs, strict=True)
    axes = [(name, AxisRange(low, high, high)) for name, low, high in ends]
    exact = "exact" in problem.modes
    return Bucket("exact" if exact else "pad", (*axes, *other_axes), () if exact else problem.axes)


def _hints(extents: Sequence[tuple[int, int]], problem: Problem) -> list[int]:
    """The size on each axis that an exact bucket is tuned for."""
    assert problem.exact is not None
    sizes = problem.sizes[:, : len(extents)]
    lows, highs = np.transpose(extents)
    inside = ((sizes >= lows) & (sizes <= highs)).all(axis=1)
    spent = (problem.weights * problem.exact)[inside]
    hints = []
    for (_, hi), at in zip(extents, sizes[inside].T, strict=True):
        order = np.argsort(at, kind="stable")
        reached = np.cumsum(spent[order])
        is_used = len(reached) > 0 and reached[-1] > 0
        hints.append(int(at[order][np.searchsorted(reached, reached[-1] / 2)]) if is_used else hi)
    return hints
