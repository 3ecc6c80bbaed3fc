"""dtypes: the table against numpy, and what a dtype can hold."""

from __future__ import annotations

import numpy as np
import pytest

from edgecompile.runtime.format.dtypes import (
    BFLOAT16,
    BY_NAME,
    INPUT_NAMES,
    array_type,
    holds,
    value_range,
)
from edgecompile.runtime.generation.session_file import is_finite


@pytest.mark.parametrize("name", INPUT_NAMES)
def test_table_agrees_with_numpy(name: str) -> None:
    dtype = np.dtype(name)
    element = BY_NAME[name]
    assert (element.size, element.kind) == (dtype.itemsize, dtype.kind)
    low, high = value_range(name)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        assert (low, high) == (info.min, info.max)
    elif dtype.kind == "f":
        limits = np.finfo(dtype)
        assert (low, high) == (float(limits.min), float(limits.max))


def test_what_a_dtype_holds() -> None:
    assert holds("int8", 127) and not holds("int8", 128)
    assert holds("uint8", 0) and not holds("uint8", -1)
    assert not holds("int64", 1.0)
    assert holds("float32", 1) and holds("float32", 0.5) and not holds("float16", 1e5)
    assert holds("bool", 1) and not holds("bool", 2)
    assert not holds("float32", float("nan"))


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    assert array_type("int8") == "int8" and BFLOAT16 not in INPUT_NAMES
    floats = np.array([0, -0.0, 1.5, -3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)
    bits = (floats.view(np.uint32) >> 16).astype(array_type(BFLOAT16))
    assert [is_finite(bits[i : i + 1]) for i in range(len(bits))] == np.isfinite(floats).tolist()
    assert is_finite(bits[:5]) and not is_finite(bits) and is_finite(bits[:0])
