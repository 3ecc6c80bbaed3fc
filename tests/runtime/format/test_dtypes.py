"""dtypes: the table against numpy, and what a dtype can hold."""

from __future__ import annotations

import numpy as np
import pytest

from edgecompile.runtime.format.dtypes import BY_NAME, INPUT_NAMES, holds, value_range


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
