"""From slabs to buckets over two axes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgecompile.buckets.joint.problem import JointProblem
from edgecompile.buckets.joint.search import Slab
from edgecompile.buckets.positions import make_buckets
from edgecompile.buckets.ranges import AxisRange, Bucket, OtherAxes


def make_boxes(
    slabs: tuple[Slab, ...], outer: int, problem: JointProblem, other_axes: OtherAxes
) -> tuple[Bucket, ...]:
    """The buckets of consecutive slabs; they fill the sizes served without hole or overlap.

    Padded buckets pad both axes. The hints of an exact one are on each axis the size up to which
    half of its expected time is spent (the cost-weighted median), and ``hi`` if it serves no
    samples; a padded one's are its sizes.
    """
    inner = 1 - outer
    rows = problem.reached(outer)
    parts = [
        make_buckets(
            slab.cuts.segments, slab.positions, problem.min_sizes[inner], problem.axes[inner], ()
        )
        for slab in slabs
    ]
    found = []
    lo = problem.min_sizes[outer]
    for index, (slab, buckets) in enumerate(zip(slabs, parts, strict=True)):
        hi = slab.size
        if index + 1 == len(slabs):
            hi = problem.max_sizes[outer]
        elif all(bucket.mode == "exact" for bucket in buckets):
            # Sizes that no sample has, between this slab and a padded box, run unpadded here.
            pads_next = any(bucket.mode == "pad" for bucket in parts[index + 1])
            hi = int(rows[slab.end] - 1 if pads_next else rows[slab.end - 1])
        for bucket in buckets:
            own = (problem.axes[outer], AxisRange(lo, hi, hi))
            ranges = (own, bucket.axes[0]) if outer == 0 else (bucket.axes[0], own)
            pads = problem.axes if bucket.mode == "pad" else ()
            box = Bucket(bucket.mode, (*ranges, *other_axes), pads)
            found.append(box if box.mode == "pad" else _with_hint(box, outer, problem))
        lo = hi + 1
    return tuple(found)


def _with_hint(box: Bucket, outer: int, problem: JointProblem) -> Bucket:
    """The exact box with the hint of its outer axis, too."""
    assert problem.exact is not None
    sizes = problem.served.size_array
    inside = np.ones(len(sizes), dtype=bool)
    for column, axis in enumerate(problem.axes):
        inside &= (sizes[:, column] >= box.range(axis).lo) & (
            sizes[:, column] <= box.range(axis).hi
        )
    if not inside.any():
        return box
    at = sizes[inside, outer]
    order = np.argsort(at, kind="stable")
    spent = np.cumsum((problem.weights * problem.exact)[inside][order])
    hint = int(at[order][np.searchsorted(spent, spent[-1] / 2)])
    own = problem.axes[outer]
    axes = tuple((n, replace(r, hint=hint) if n == own else r) for n, r in box.axes)
    return replace(box, axes=axes)
