"""compare: the tolerance rule and values that aren't finite."""

from __future__ import annotations

import numpy as np
import pytest

from edgecompile.runtime.format.golden.compare import compare_arrays
from edgecompile.runtime.format.manifest.schema import Tolerance

TOLERANCE = Tolerance(0.25, 0.5)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_the_rule_is_absolute_plus_relative_to_the_largest() -> None:
    want = floats(0, 2, -4)
    at_limit = compare_arrays(floats(2.25, 2, -4), want, TOLERANCE)
    assert at_limit.ok and at_limit.max_abs_error == 2.25
    assert (at_limit.scale, at_limit.limit) == (4, 2.25)
    over = compare_arrays(floats(2.5, 2, -4), want, TOLERANCE)
    assert not over.ok and over.reason == "differs by 2.5, at most 2.25 is allowed"


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(odd: float) -> None:
    assert compare_arrays(floats(1, odd), floats(1, odd), TOLERANCE).ok
    assert not compare_arrays(floats(1, odd), floats(1, 1), TOLERANCE).ok
    assert not compare_arrays(floats(1, 1), floats(1, odd), TOLERANCE).ok
    assert not compare_arrays(floats(1, odd), floats(1, -odd), TOLERANCE).ok or np.isnan(odd)
    assert not compare_arrays(floats(9, odd), floats(1, odd), TOLERANCE).ok


def test_integers_and_booleans_must_be_equal() -> None:
    want = np.array([1, 5])
    assert compare_arrays(want.copy(), want, TOLERANCE).ok
    result = compare_arrays(np.array([1, 6]), want, TOLERANCE)
    assert not result.ok and result.reason == "1 of 2 values differ"
    assert result.max_abs_error == 1
    assert not compare_arrays(np.array([True]), np.array([False]), TOLERANCE).ok


def test_shape_and_dtype_must_agree() -> None:
    assert "expected float32[1, 2]" in str(
        compare_arrays(floats(1, 2), floats(1, 2)[None], TOLERANCE).reason
    )
    assert not compare_arrays(floats(1).astype(np.float64), floats(1), TOLERANCE).ok
    assert compare_arrays(floats(), floats(), TOLERANCE).ok


def test_the_least_cosine() -> None:
    def judge(got: np.ndarray, want: np.ndarray) -> bool:
        return compare_arrays(got, want, Tolerance(9, 9), 0.97).ok

    assert judge(floats(3, 4), floats(3.1, 4.2)) and not judge(floats(3, 4), floats(4, 3))
    reason = compare_arrays(floats(3, 4), floats(4, 3), Tolerance(9, 9), 0.97).reason
    assert reason == "has the cosine 0.960000, at least 0.97 is asked for"
    # The tolerance counts as well, and zeros have no direction.
    assert not compare_arrays(floats(2), floats(1), Tolerance(0, 0.5), 0.9).ok
    assert judge(floats(1, 2), floats(0, 0)) and judge(np.array([1]), np.array([1]))


def test_the_cosine_is_that_of_the_finite_values() -> None:
    def cosine(got: np.ndarray, want: np.ndarray) -> object:
        return compare_arrays(got, want, Tolerance(9, 9)).cosine

    assert cosine(floats(1, 2), floats(2, 4)) == pytest.approx(1.0)
    assert cosine(floats(1, 0), floats(0, 1)) == 0
    assert cosine(floats(3, 4), floats(4, 3)) == pytest.approx(24 / 25)
    assert cosine(floats(3e30, 4e30, np.nan), floats(3e-40, 4e-40, np.nan)) == pytest.approx(1.0)
    assert cosine(floats(1, 2), floats(0, 0)) is None
    assert cosine(floats(0, 0), floats(1, 2)) == 0
    assert cosine(np.array([1]), np.array([1])) is None


def test_a_margin_is_added_to_the_limit() -> None:
    want = floats(1, 2, -4)
    got = floats(3.5, 2, -4)
    assert not compare_arrays(got, want, TOLERANCE).ok
    result = compare_arrays(got, want, TOLERANCE, margin=0.25)
    assert result.ok and result.limit == TOLERANCE.limit(4) + 0.25 == result.max_abs_error
    assert not compare_arrays(np.array([1, 6]), np.array([1, 5]), TOLERANCE, margin=9.0).ok
