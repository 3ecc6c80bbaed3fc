"""Rows of packed weights by the C ABI: a table of embeddings that is stored as an output head alone."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from edgecompile.backends.operators.ops import pack_weight, unpack_weight
from tests.native.programs.aoti import ShimError

PRECISIONS = ("fp32", "bf16", "int8", "int4")


def rows(shim: Any, packed: torch.Tensor, indices: np.ndarray, n: int, k: int) -> np.ndarray:
    """The operator's result; ``indices`` may have any strides."""
    narrow = packed.view(torch.uint16) if packed.dtype == torch.bfloat16 else packed
    dtype = "bfloat16" if packed.dtype == torch.bfloat16 else None
    handles = [shim.borrow(narrow.numpy(), dtype), shim.borrow(indices)]
    try:
        result = shim.make("cpu_ec_packed_rows", *handles, ctypes.c_int64(n), ctypes.c_int64(k))
        array: np.ndarray = shim.array(result).copy()
        shim.delete(result)
    finally:
        shim.delete(*handles)
    return array


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rows_of_any_indices(shim: Any, precision: str) -> None:
    n, k = 70, 130
    packed = pack_weight(torch.randn(n, k), precision)
    want = unpack_weight(packed, n, k).numpy()
    random = np.random.default_rng(1)
    many = random.integers(0, n, (3, 150))  # over several threads
    for indices in (
        np.array([[69]]),
        many,
        many.T,
        many[:, ::7],
        many.astype(np.int32),
        np.zeros((1, 0), np.int64),
        np.array(5),
    ):
        got = rows(shim, packed, indices, n, k)
        np.testing.assert_array_equal(got, want[indices])
        assert got.shape == (*indices.shape, k)


def test_what_lies_outside_is_refused(shim: Any) -> None:
    packed = pack_weight(torch.randn(40, 8))
    for index in (-1, 40, 63, 2**40):  # 63 is within the last panel
        with pytest.raises(ShimError, match=rf"index 1 is {index}, not within 0\.\.39"):
            rows(shim, packed, np.array([0, index]), 40, 8)
    with pytest.raises(ShimError, match="indices are float32"):
        rows(shim, packed, np.zeros(2, np.float32), 40, 8)
    with pytest.raises(ShimError, match="w_packed has"):
        rows(shim, packed, np.zeros(2, np.int64), 400, 8)
    with pytest.raises(ShimError, match="w_packed is int64"):
        rows(shim, packed.to(torch.int64), np.zeros(2, np.int64), 40, 8)
