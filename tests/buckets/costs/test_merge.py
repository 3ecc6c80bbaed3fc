from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edgecompile.buckets.costs.grid import LEAST_MS, MOST_MS, CostGrid, CostPoint
from edgecompile.buckets.costs.merge import merge_modes
from edgecompile.errors import CostError
from edgecompile.lengths.rows import MAX_LENGTH

costs = st.floats(0.01, 1000)
ladders = st.dictionaries(st.integers(1, 40), costs, max_size=12)


def exact(values: dict[int, float]) -> list[CostPoint]:
    return [CostPoint(k, ms, None, exact_spread_ms=ms / 8) for k, ms in sorted(values.items())]


def pad(values: dict[int, float]) -> list[CostPoint]:
    return [CostPoint(k, None, ms, pad_spread_ms=ms / 4) for k, ms in sorted(values.items())]


def merge(e: dict[int, float], p: dict[int, float]) -> list[tuple[int, float | None, float | None]]:
    return [(x.length, x.exact_ms, x.pad_ms) for x in merge_modes(exact(e), pad(p))]


def test_missing_costs_follow_the_ratio() -> None:
    merged = merge({10: 10.0, 20: 30.0, 30: 40.0}, {10: 5.0, 30: 40.0})
    # The ratio is 0.5 at 10 and 1 at 30, so 0.75 halfway.
    assert merged == [(10, 10.0, 5.0), (20, 30.0, 22.5), (30, 40.0, 40.0)]
    assert merge({10: 10.0, 30: 40.0}, {10: 5.0, 20: 22.5, 30: 40.0}) == merged


def test_beyond_the_common_lengths_a_mode_has_its_own_curve() -> None:
    merged = merge({1: 1.0, 10: 10.0, 20: 30.0, 40: 90.0}, {10: 8.0, 20: 27.0})
    assert merged[0] == (1, 1.0, 8.0)  # a static program of 1 wasn't measured: as dear as of 10
    assert merged[-1] == (40, 90.0, pytest.approx(27.0 + 1.9 * 20))


def test_a_dip_of_one_mode_is_no_dip_of_the_other() -> None:
    merged = merge({10: 10.0, 20: 2.0, 30: 30.0}, {10: 9.0, 30: 27.0})
    assert merged[1] == (20, 2.0, 9.0)


def test_without_a_common_length_the_mode_of_fewer_is_left_out() -> None:
    assert merge({1: 1.0, 5: 2.0}, {3: 7.0}) == [(1, 1.0, None), (5, 2.0, None)]
    assert merge({3: 7.0}, {1: 1.0, 5: 2.0}) == [(1, None, 1.0), (5, None, 2.0)]
    assert merge({3: 7.0}, {5: 2.0}) == [(3, 7.0, None)]


def test_one_mode_alone_stays_as_it_is() -> None:
    assert merge({3: 7.0}, {}) == [(3, 7.0, None)]
    assert merge({}, {3: 7.0}) == [(3, None, 7.0)]


@given(ladders, ladders)
def test_what_was_measured_stays_and_the_rest_is_a_curve(
    e: dict[int, float], p: dict[int, float]
) -> None:
    if not e and not p:
        with pytest.raises(CostError, match="no points"):
            merge_modes([], [])
        return
    merged = merge_modes(exact(e), pad(p))
    curve = CostGrid(merged, "measured")  # refuses holes and descending lengths
    both = e.keys() & p.keys()
    if both:
        assert curve.modes == ("exact", "pad") and set(curve.lengths) == e.keys() | p.keys()
    else:
        assert len(curve.modes) == 1 and len(curve.lengths) == max(len(e), len(p))
    for mode, measured in (("exact", e), ("pad", p)):
        if mode not in curve.modes:
            continue
        for point in merged:
            value = point.value(mode)  # type: ignore[arg-type]
            assert value is not None
            spread = point.exact_spread_ms if mode == "exact" else point.pad_spread_ms
            if point.length in measured:
                assert value == measured[point.length] and spread > 0
            else:
                assert spread == 0
                below = [ms for k, ms in sorted(measured.items()) if k < point.length][-1:]
                above = [ms for k, ms in sorted(measured.items()) if k > point.length][:1]
                assert value >= min(below + above) * (1 - 1e-12)


extremes = st.dictionaries(
    st.integers(1, MAX_LENGTH), st.floats(LEAST_MS, MOST_MS), min_size=1, max_size=5
)


@given(extremes, extremes)
@example({1: 1e-9, 2: 1e12, 3: 1e-9}, {1: 1e12, 3: 1e12})
@example({1: 1e-9, 2: 1e12}, {1: 1.0, 2: 1.0, MAX_LENGTH: 1.0})
def test_any_costs_that_points_may_have_are_merged(
    e: dict[int, float], p: dict[int, float]
) -> None:
    curve = CostGrid(merge_modes(exact(e), pad(p)), "measured")
    assert np.isfinite(curve.cost(np.array([1, MAX_LENGTH]), curve.modes[0])).all()


def test_bad_points_are_refused() -> None:
    with pytest.raises(CostError, match="occurs more than once"):
        merge_modes([CostPoint(3, 1.0, None), CostPoint(3, 2.0, None)], [])
    with pytest.raises(CostError, match="comes after"):
        merge_modes([], [CostPoint(5, None, 1.0), CostPoint(3, None, 2.0)])
    with pytest.raises(CostError, match="nan"):
        merge_modes([CostPoint(3, float("nan"), None)], [CostPoint(3, None, 1.0)])
