from __future__ import annotations

import math

import numpy as np
import pytest

from edgecompile.bench.agreement import compare_outputs
from edgecompile.errors import BenchError


def test_the_worst_of_all_arrays_counts() -> None:
    wanted = {"3.a": np.array([1.0, 0.0]), "4.a": np.array([0.0, 2.0])}
    got = {"3.a": np.array([1.0, 0.0]), "4.a": np.array([2.0, 2.0])}
    found = compare_outputs("other", got, wanted)
    assert found.cosine == pytest.approx(math.sqrt(0.5))
    assert found.max_abs_error == 2.0


def test_equal_outputs() -> None:
    values = {"1.a": np.random.default_rng(0).normal(size=(1, 384)).astype(np.float32)}
    found = compare_outputs("other", values, values)
    assert found.cosine == pytest.approx(1.0) and found.cosine <= 1.0
    assert found.max_abs_error == 0.0


def test_zeros_agree_with_zeros_alone() -> None:
    zero, one = {"1.a": np.zeros(3)}, {"1.a": np.ones(3)}
    assert compare_outputs("other", zero, zero).cosine == 1.0
    assert compare_outputs("other", one, zero).cosine == 0.0


def test_nan_is_seen() -> None:
    wanted = {"1.a": np.ones(2), "2.a": np.ones(2)}
    got = {"1.a": np.array([np.nan, 1.0]), "2.a": np.ones(2)}
    found = compare_outputs("other", got, wanted)
    assert math.isnan(found.cosine) and math.isnan(found.max_abs_error)


def test_missing_and_misshapen_outputs_are_all_named() -> None:
    wanted = {"1.a": np.ones(2), "2.a": np.ones(2), "3.a": np.ones(2)}
    got = {"1.a": np.ones(2), "2.a": np.ones((1, 2))}
    with pytest.raises(BenchError, match=r"(?s)other.*2\.a has shape \(1, 2\).*3\.a is missing"):
        compare_outputs("other", got, wanted)
