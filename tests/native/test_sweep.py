"""Sweeps: every value is tried, and a failure says at which."""

from __future__ import annotations

import inspect

import pytest

from tests.native.sweep import sweep


def test_a_sweep_tries_every_value() -> None:
    tried = []

    @sweep("size", [3, 1, 2])
    def check(shift: int, size: int) -> None:
        tried.append(size + shift)

    assert list(inspect.signature(check).parameters) == ["shift"]
    check(shift=10)
    assert tried == [13, 11, 12]


def test_a_failure_names_its_value() -> None:
    @sweep("size", range(5))
    def check(size: int) -> None:
        assert size < 3, "too large"

    with pytest.raises(AssertionError, match=r"^size=3: too large"):
        check()


def test_another_error_names_its_value_too() -> None:
    @sweep("size", [1, 0])
    def check(size: int) -> None:
        assert 1 // size == 1

    with pytest.raises(AssertionError, match=r"^size=0: ") as caught:
        check()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
