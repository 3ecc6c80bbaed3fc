"""Costs over two axes, and the plain definition of what serves a run, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from edgecompile.buckets.costs.grid import CostGrid, CostKind, CostPoint, sort_points
from edgecompile.buckets.plan import BucketPlan
from edgecompile.buckets.ranges import Bucket


def two_axes(
    axes: tuple[str, str],
    points: Iterable[tuple[int, CostPoint]],
    kind: CostKind = "measured",
    provenance: Mapping[str, str] | None = None,
) -> CostGrid:
    """Costs from points in any order, each with its size on the second axis."""
    placed = sort_points(replace(point, other=size) for size, point in points)
    return CostGrid(placed, kind, provenance or {}, axes)


def find(plan: BucketPlan, sizes: Mapping[str, int]) -> int | None:
    """Index of the first bucket that serves these sizes, None if there is none."""
    serving = (index for index, bucket in enumerate(plan.buckets) if bucket.serves(sizes))
    return next(serving, None)


def run_sizes(bucket: Bucket, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes at which the program runs for an input of these, one for each axis."""
    return {
        name: extent.hi if name in bucket.pad_axes else sizes[name] for name, extent in bucket.axes
    }


def surface(
    rows: Mapping[int, Mapping[int, tuple[float | None, float | None]]],
    provenance: Mapping[str, str] | None = None,
) -> CostGrid:
    """Costs over length and batch from {batch: {length: (exact, pad)}}."""
    points = (
        (batch, CostPoint(length, *costs))
        for batch, row in rows.items()
        for length, costs in row.items()
    )
    return two_axes(("length", "batch"), points, "measured", provenance)
