from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import CostGrid, CostPoint
from edgecompile.errors import CostError

ms = st.floats(0.01, 1000)


@st.composite
def curves(draw: Any) -> CostGrid:
    lengths = sorted(draw(st.sets(st.integers(1, 600), min_size=1, max_size=8)))
    points = (CostPoint(length, draw(ms), draw(ms)) for length in lengths)
    return CostGrid(tuple(points), "measured", {"machine": "test"})


def test_values_at_between_and_outside_points() -> None:
    curve = CostGrid((CostPoint(10, 1.0, 2.0), CostPoint(20, 3.0, 6.0)), "measured")
    assert curve.cost(10, "exact") == 1.0
    assert curve.cost(15, "exact") == 2.0
    assert curve.cost(15, "pad") == 4.0
    assert curve.cost(1, "pad") == 2.0  # not under the measured floor
    assert curve.cost(30, "exact") == 5.0  # the last slope goes on


def test_beyond_the_last_point_costs_never_fall() -> None:
    falling = CostGrid((CostPoint(10, 3.0, 3.0), CostPoint(20, 1.0, 1.0)), "measured")
    assert falling.cost(1000, "pad") == 1.0
    single = CostGrid((CostPoint(10, 3.0, 3.0),), "measured")
    assert single.cost(5, "pad") == 3.0
    assert single.cost(20, "pad") == pytest.approx(6.0)


@given(curves(), st.integers(1, 1000))
def test_interpolation_stays_between_measured_neighbours(curve: CostGrid, length: int) -> None:
    for mode in curve.modes:
        value = curve.cost(length, mode)
        assert isinstance(value, float)
        around = [
            point.value(mode) or 0.0
            for index, point in enumerate(curve.points)
            if point.length == length
            or (point.length < length and curve.points[index + 1 :][:1] == ())
            or (point.length < length <= curve.points[index + 1].length)
            or (point.length > length and (index == 0 or curve.points[index - 1].length < length))
        ]
        assert value >= min(around) * (1 - 1e-12)
        if length <= curve.lengths[-1]:
            assert value <= max(around) * (1 + 1e-12)


@given(curves())
def test_arrays_agree_with_single_values(curve: CostGrid) -> None:
    lengths = np.arange(1, 700)
    for mode in curve.modes:
        array = curve.cost(lengths, mode)
        assert array.dtype == np.float64
        assert array.tolist() == [curve.cost(int(length), mode) for length in lengths]
    assert curve.cost(lengths.reshape(-1, 3), "pad").shape == (233, 3)


@given(curves())
def test_json_round_trip(curve: CostGrid) -> None:
    assert CostGrid.from_json(json.loads(json.dumps(curve.to_json()))) == curve


def test_modes_without_costs() -> None:
    curve = CostGrid((CostPoint(4, None, 1.0), CostPoint(8, None, 2.0)), "calibrated")
    assert curve.modes == ("pad",)
    with pytest.raises(CostError, match="no exact costs"):
        curve.cost(4, "exact")
    assert CostGrid.from_json(curve.to_json()) == curve


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ((), "no points"),
        ((CostPoint(0, 1.0, 1.0),), "length 0 isn't"),
        ((CostPoint(1, -1.0, 1.0),), "exact_ms -1.0 isn't a positive"),
        ((CostPoint(1, 1.0, 0.0),), "pad_ms 0.0 isn't a positive"),
        ((CostPoint(1, 1.0, float("nan")),), "pad_ms nan"),
        ((CostPoint(1, float("inf"), 1.0),), "exact_ms inf"),
        ((CostPoint(1, 1.0, 1.0, -0.5),), "exact_spread_ms -0.5"),
        ((CostPoint(1, None, None),), "neither"),
        ((CostPoint(2, 1.0, 1.0), CostPoint(2, 1.0, 1.0)), "2 occurs more than once"),
        ((CostPoint(2, 1.0, 1.0), CostPoint(1, 1.0, 1.0)), "length 1 comes after length 2"),
        ((CostPoint(1, 1.0, 1.0), CostPoint(2, None, 1.0)), "exact_ms is missing at length 2"),
    ],
)
def test_bad_points_are_refused(points: tuple[CostPoint, ...], message: str) -> None:
    with pytest.raises(CostError, match=message):
        CostGrid(points, "measured")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {"kind": "measured"},
        {"kind": "measured", "points": [3]},
        {"kind": "measured", "points": [{"exact_ms": 1}]},
        {"kind": "guessed", "points": [{"length": 1, "exact_ms": 1}]},
        {"kind": ["measured"], "points": [{"length": 1, "exact_ms": 1}]},
        {"kind": "measured", "points": [{"length": "1", "exact_ms": 1}]},
        {"kind": "measured", "points": [{"length": 1, "exact_ms": "1"}]},
        {"kind": "measured", "points": [{"length": 1, "exact_ms": True}]},
        {"kind": "measured", "points": [{"length": 1, "exact_ms": 1}], "provenance": 3},
    ],
)
def test_bad_json_is_refused(value: object) -> None:
    with pytest.raises(CostError):
        CostGrid.from_json(value)
