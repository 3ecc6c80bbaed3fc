"""Costs over two axes, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from edgecompile.buckets.costs.grid import CostGrid, CostKind, CostPoint, sort_points


def two_axes(
    axes: tuple[str, str],
    points: Iterable[tuple[int, CostPoint]],
    kind: CostKind = "measured",
    provenance: Mapping[str, str] | None = None,
) -> CostGrid:
    """Costs from points in any order, each with its size on the second axis."""
    placed = sort_points(replace(point, other=size) for size, point in points)
    return CostGrid(placed, kind, provenance or {}, axes)
