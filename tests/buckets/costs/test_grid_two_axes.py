from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.errors import CostError
from tests.buckets.costs.grids import surface
from tests.draws import examples

AXES = ("length", "batch")


GRID = surface(
    {
        1: {10: (2.0, 1.0), 20: (4.0, 3.0)},
        4: {10: (5.0, 4.0), 20: (9.0, 7.0)},
        8: {10: (4.0, 6.0), 20: (17.0, 15.0)},
    },
    {"machine": "m"},
)


@pytest.mark.parametrize(
    ("length", "batch", "exact"),
    [
        (10, 1, 2.0),
        (20, 8, 17.0),
        (15, 1, 3.0),
        (10, 2, 3.0),
        (15, 6, (7.0 + 10.5) / 2),
        (3, 1, 2.0),  # below the first length
        (30, 1, 6.0),  # beyond the last
        (20, 16, 33.0),  # beyond the last batch: 8 ms for 4 more
        (10, 16, 4.0),  # falls: the last cost holds
    ],
)
def test_costs(length: int, batch: int, exact: float) -> None:
    assert GRID.cost(length, "exact", batch) == pytest.approx(exact)


def test_one_slice_grows_in_proportion() -> None:
    one = surface({4: {10: (2.0, 1.0)}})
    assert one.cost(10, "exact", 1) == 2.0
    assert one.cost(20, "pad", 8) == pytest.approx(4.0)


def test_costs_are_broadcast() -> None:
    lengths, batches = np.array([10, 15, 20])[:, None], np.array([1, 4])[None, :]
    table = GRID.cost(lengths, "pad", batches)
    assert table.shape == (3, 2)
    assert table.tolist() == [[1.0, 4.0], [2.0, 5.5], [3.0, 7.0]]


ms = st.floats(0.1, 50)


@st.composite
def surfaces(draw: Any, top: int = 12, other_top: int = 6, monotone: bool | None = None) -> Any:
    lengths = sorted(draw(st.sets(st.integers(1, top), min_size=1, max_size=3)))
    others = sorted(draw(st.sets(st.integers(1, other_top), min_size=1, max_size=3)))
    kind = draw(st.sampled_from(["both", "both", "exact", "pad"]))
    rises = draw(st.booleans()) if monotone is None else monotone
    shape = (len(others), len(lengths))
    tables = []
    for _ in range(2):
        size = shape[0] * shape[1]
        table = np.array(draw(st.lists(ms, min_size=size, max_size=size))).reshape(shape)
        if rises:
            table = np.sort(np.sort(table, axis=0), axis=1)
        tables.append(table)
    return surface(
        {
            other: {
                length: (
                    None if kind == "pad" else float(tables[0][i, j]),
                    None if kind == "exact" else float(tables[1][i, j]),
                )
                for j, length in enumerate(lengths)
            }
            for i, other in enumerate(others)
        }
    )


@settings(max_examples=examples(200), deadline=None)
@given(surfaces(), st.integers(1, 20), st.integers(1, 12))
def test_interpolation_agrees_with_curves_and_floors(
    found: CostGrid, length: int, batch: int
) -> None:
    """Along the length a slice is its curve, across slices a curve of their costs."""
    beyond = batch > found.sizes(1)[-1]
    if beyond:  # there a falling slope counts as none at the points, not between them
        length = found.sizes(0)[length % len(found.sizes(0))]
    for mode in found.modes:
        value = found.cost(length, mode, batch)
        points = []
        for size, curve in found.lines().items():
            cost = curve.cost(length, mode)
            points.append(CostPoint(size, cost, cost))
        across = CostGrid(tuple(points), "measured")
        assert value == pytest.approx(across.cost(batch, mode))
        floor = min(p.value(mode) or 0 for p in found.points)
        assert value >= floor * (1 - 1e-12)
        pair = found.at(np.array([[length, batch]]), mode)
        assert pair.tolist() == [value]


@settings(max_examples=examples(200), deadline=None)
@given(surfaces(), st.integers(0, 3), st.integers(0, 3))
def test_costs_are_bilinear_between_the_lines_of_the_grid(
    found: CostGrid, column: int, row: int
) -> None:
    """Also below the first and beyond the last points: the planner's choice of sizes needs it."""
    corners = []
    for axis, index in ((0, column), (1, row)):
        lines = [0.5, *found.sizes(axis), found.sizes(axis)[-1] + 7.0]
        index = min(index, len(lines) - 2)
        corners.append((lines[index], lines[index + 1]))
    (x0, x1), (y0, y1) = corners
    for mode in found.modes:
        table = found.cost(np.array([x0, x1])[:, None], mode, np.array([y0, y1])[None, :])
        middle = float(found.cost(np.array((x0 + x1) / 2), mode, np.array((y0 + y1) / 2)))
        assert middle == pytest.approx(table.mean())


@given(surfaces())
def test_json(found: CostGrid) -> None:
    value = json.loads(json.dumps(found.to_json()))
    assert set(value["points"][0]) >= {"length", "batch", "exact_ms", "pad_ms"}
    again = CostGrid.from_json(value)
    assert again == found
    assert hash(again) == hash(found)
    value["points"].reverse()
    assert CostGrid.from_json(value) == found


def test_sizes_and_lines() -> None:
    assert GRID.sizes(0) == GRID.lengths == (10, 20)
    assert GRID.sizes(1) == (1, 4, 8)
    lines = GRID.lines()
    assert list(lines) == [1, 4, 8] and lines[4].axes == ("length",)
    assert lines[4].cost(10, "exact") == GRID.cost(10, "exact", 4) == 5.0
    assert CostGrid.join(AXES, lines, GRID.provenance) == GRID


def test_holes_are_named() -> None:
    with pytest.raises(CostError, match="lacks length 20 with batch 1, length 30 with batch 4"):
        surface({1: {10: (1, 1), 30: (1, 1)}, 4: {10: (1, 1), 20: (1, 1)}})
    with pytest.raises(
        CostError,
        match=r"exact_ms is missing at length 10 with batch 4; pad_ms is missing at .* batch 1",
    ):
        surface({1: {10: (1, None)}, 4: {10: (None, 1)}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"axes": ["length"]}, "not two names"),
        ({"axes": ["length", "length"]}, "not length, length"),
        ({"axes": ["length", 3]}, "not two names"),
        ({"kind": "guessed"}, "guessed"),
        ({"points": 3}, "list of"),
        ({"points": []}, "no points"),
        ({"points": [3]}, r"points\[0\] isn't an object with length and batch"),
        ({"points": [{"length": 3}]}, r"points\[0\]"),
        ({"points": [{"length": 3, "batch": 0, "pad_ms": 1}]}, "batch 0 isn't"),
        ({"points": [{"length": 3, "batch": [], "pad_ms": 1}]}, "isn't a whole number"),
        ({"points": [{"length": 3, "batch": 1, "pad_ms": -1}]}, "pad_ms -1 isn't"),
        ({"points": [{"length": 3, "batch": 1, "pad_ms": 1}] * 2}, "more than once"),
        ({"provenance": 3}, "provenance"),
    ],
)
def test_bad_json_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CostError, match=message):
        CostGrid.from_json({**GRID.to_json(), **change})


def test_a_mode_without_costs_is_refused() -> None:
    with pytest.raises(CostError, match="no exact costs"):
        surface({1: {10: (None, 1)}, 4: {10: (None, 1)}}).cost(3, "exact", 2)
