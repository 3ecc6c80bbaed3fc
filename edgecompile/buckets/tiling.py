"""Checks that buckets serve every combination of sizes in their hull exactly once."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import combinations, islice, pairwise, product

from edgecompile.buckets.ranges import Bucket

_PROBLEMS = 10
# The search for a hole looks at a grid of the buckets' edges.
_MOST_CELLS = 1 << 14


def tiling_problems(buckets: Sequence[Bucket]) -> list[str]:
    """Holes and overlaps of buckets with the same axes, in sentences; empty if they tile.

    Buckets that differ in the length axis alone must be ascending, too. Others may stand in any
    order, but must be pairwise disjoint and fill their hull, the product of the sizes from the
    smallest to the largest on each axis.
    """
    if any(axis.step > 1 for bucket in buckets for _, axis in bucket.axes):
        return _step_problems(buckets)
    if len({_edges(bucket)[1:] for bucket in buckets}) == 1:
        return [
            f"after the bucket {before.lo}..{before.hi} comes {after.lo}..{after.hi}, "
            f"which doesn't start at {before.hi + 1}"
            for before, after in pairwise(buckets)
            if after.lo != before.hi + 1
        ]
    problems = []
    for one, other in combinations(buckets, 2):
        if all(
            a <= d and c <= b for (a, b), (c, d) in zip(_edges(one), _edges(other), strict=True)
        ):
            problems.append(f"the buckets {box_text(one)} and {box_text(other)} overlap")
            if len(problems) == _PROBLEMS:
                return problems
    if problems:
        return problems
    hull = [
        (min(lo for lo, _ in axis), max(hi for _, hi in axis))
        for axis in zip(*map(_edges, buckets), strict=True)
    ]
    served = sum(_volume(_edges(bucket)) for bucket in buckets)
    if served != _volume(hull):
        problems.append(f"no bucket serves {_hole(buckets)}")
    return problems


def _step_problems(buckets: Sequence[Bucket]) -> list[str]:
    """The same of buckets whose lengths go in steps: they divide the length axis alone."""
    if len({_edges(bucket)[1:] for bucket in buckets}) > 1 or any(
        axis.step > 1 for bucket in buckets for _, axis in bucket.other_axes
    ):
        return ["buckets whose lengths go in steps must agree in all other axes"]
    counts = Counter(size for bucket in buckets for size in bucket.axes[0][1].sizes)
    problems = [
        f"{count} buckets serve the length {size}"
        for size, count in sorted(counts.items())
        if count > 1
    ]
    every = range(min(counts), max(counts) + 1)
    problems += [f"no bucket serves the length {size}" for size in every if size not in counts]
    return problems[:_PROBLEMS]


def box_text(bucket: Bucket) -> str:
    """A bucket's sizes: ``length 1..64, batch 1..8``."""
    return ", ".join(f"{name} {axis.lo}..{axis.hi}" for name, axis in bucket.axes)


def _edges(bucket: Bucket) -> tuple[tuple[int, int], ...]:
    return tuple((axis.lo, axis.hi) for _, axis in bucket.axes)


def _volume(edges: Sequence[tuple[int, int]]) -> int:
    return math.prod(hi - lo + 1 for lo, hi in edges)


def _hole(buckets: Sequence[Bucket]) -> str:
    """Sizes inside the hull that no bucket serves."""
    boxes = [_edges(bucket) for bucket in buckets]
    # Between two neighbouring edges on every axis a bucket serves all sizes or none.
    steps = [
        list(pairwise(sorted({lo for lo, _ in axis} | {hi + 1 for _, hi in axis})))
        for axis in zip(*boxes, strict=True)
    ]
    for cell in islice(product(*steps), _MOST_CELLS):
        if not any(
            all(lo <= start <= hi for (lo, hi), (start, _) in zip(box, cell, strict=True))
            for box in boxes
        ):
            sizes = zip(buckets[0].axes, cell, strict=True)
            return ", ".join(f"{name} {start}..{end - 1}" for (name, _), (start, end) in sizes)
    return "all sizes in their hull"
