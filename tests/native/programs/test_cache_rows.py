"""Rows of keys and values in int8 by the C ABI: what torch's operators give, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edgecompile.models.cache_rows import dequantize_rows, quantize_rows, row_bytes, row_width
from tests.native.programs.aoti import ShimError

INF, NAN = np.inf, np.nan


def call(shim: Any, name: str, array: np.ndarray) -> np.ndarray:
    handle = shim.borrow(array)
    try:
        result = shim.make(name, handle)
        copy: np.ndarray = shim.array(result).copy()
        shim.delete(result)
    finally:
        shim.delete(handle)
    return copy


def both(shim: Any, x: np.ndarray) -> np.ndarray:
    """The numbers that rows stand for, whichever made and read them."""
    rows = call(shim, "cpu_ec_quantize_rows", x)
    np.testing.assert_array_equal(rows, quantize_rows(torch.from_numpy(x)).numpy())
    numbers = call(shim, "cpu_ec_dequantize_rows", rows)
    np.testing.assert_array_equal(numbers, dequantize_rows(torch.from_numpy(rows)).numpy())
    return numbers


@pytest.mark.parametrize("width", [1, 3, 16, 31, 32, 33, 64, 80, 96, 128, 257])
def test_rows_of_any_width(shim: Any, width: int) -> None:
    random = np.random.default_rng(width)
    sizes = np.exp(random.normal(0, 6, (40, 3, 1)))
    x = (random.normal(size=(40, 3, width)) * sizes).astype(np.float32)
    assert row_width(row_bytes(width)) == width
    for given in (x, x.swapaxes(0, 1), x[::2]):
        numbers = both(shim, given)
        for start in range(0, width, 32):
            block, found = given[..., start : start + 32], numbers[..., start : start + 32]
            top = np.abs(block).max(-1, keepdims=True)
            assert (np.abs(found - block) <= top / 253).all()
    np.testing.assert_array_equal(both(shim, -x), -both(shim, x))


def test_ties_go_to_the_even_one(shim: Any) -> None:
    x = np.arange(-254, 255, dtype=np.float32)[:, None] / 2
    x = np.concatenate([x, np.full_like(x, 127)], 1)  # whose scale is 1
    np.testing.assert_array_equal(both(shim, x)[:, 0], np.rint(x[:, 0]))


def test_numbers_at_the_edges(shim: Any) -> None:
    tiny, most = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    for value in (0.0, -0.0, tiny, -100 * tiny, 126 * tiny, 128 * tiny, 1e-45, most, -most):
        x = np.array([[value, 0, -value, value / 2]], np.float32)
        assert np.isfinite(both(shim, x)).all()
    negative = np.uint32(0xFFFFFFFF).view(np.float32)
    for value in (NAN, negative, INF, -INF):
        x = np.ones((2, 70), np.float32)
        x[0, 40] = value
        numbers = both(shim, x)
        assert np.isnan(numbers[0, 32:64]).all()
        assert (numbers[1] == numbers[1, 0]).all() and np.isfinite(numbers[0, :32]).all()


def test_what_are_no_rows_is_refused(shim: Any) -> None:
    for array in (
        np.zeros((2, 35), np.int8),
        np.zeros((2, 2), np.int8),
        np.zeros((2, 34), np.uint8),
    ):
        with pytest.raises(ShimError, match="rows aren't int8 with scales"):
            call(shim, "cpu_ec_dequantize_rows", array)
    with pytest.raises(ShimError, match="x is int8"):
        call(shim, "cpu_ec_quantize_rows", np.zeros((2, 34), np.int8))
