"""Copies, fills and scalars of the shim, against torch."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.native.programs.aoti import (
    DTYPES,
    ShimError,
)
from tests.native.programs.test_shim import NUMPYS
from tests.native.sweep import sweep


@sweep("seed", range(20))
def test_clone_copies_any_layout(shim, seed: int):
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(1, 6, int(rng.integers(1, 6)))]
    array = rng.standard_normal(shape).transpose(rng.permutation(len(shape)))
    array = array[tuple(slice(None, None, int(rng.integers(1, 3))) for _ in shape)]
    source = shim.borrow(array)
    for name in ("clone", "clone_preserve_strides"):
        copy = shim.make(name, source)
        np.testing.assert_array_equal(shim.array(copy), array)
        assert shim.data(copy) != shim.data(source)
        shim.delete(copy)
    shim.delete(source)


@pytest.mark.parametrize("source", NUMPYS)
@sweep("target", NUMPYS)
def test_copy_converts_as_torch(shim, source: str, target: str):
    torch = pytest.importorskip("torch")
    values = [0, 1, 2, 3.5, -1.75, 100, 0.1, 65519, 1e-7, 6e-8, 120.99]
    if source.startswith("float") and target.startswith(("float", "bool")):
        values += [np.inf, -np.inf, np.nan, 65520, 1e30, 2**-25, 1.5 * 2**-25]
    if source.startswith("u") or target.startswith("u"):
        values = [abs(v) for v in values]
    limits = [
        2.0**k
        for k, names in ((7, "int8"), (8, "uint8"), (15, "int16"))
        for _ in [0]
        if names in (source, target)
    ]
    with np.errstate(all="ignore"):
        kept = [v for v in values if not limits or not abs(v) >= min(limits)]
        array = np.array(kept, dtype=np.float64).astype(source)
        wanted = torch.from_numpy(array.copy()).to(getattr(torch, target)).numpy()
    from_handle, to_handle = shim.borrow(array), shim.empty(array.shape, dtype=DTYPES[target])
    shim.call("copy_", to_handle, from_handle, 0)
    np.testing.assert_array_equal(shim.array(to_handle), wanted)
    shim.delete(from_handle, to_handle)


def test_copy_broadcasts_into_strided_memory(shim):
    rng = np.random.default_rng(0)
    source = rng.standard_normal((3, 1, 5)).astype(np.float32)
    memory = np.zeros((5, 4, 3, 2), np.float32)
    target = memory.transpose(3, 2, 1, 0)
    handles = shim.borrow(source), shim.borrow(target)
    shim.call("tensor_copy_", *handles)
    np.testing.assert_array_equal(target, np.broadcast_to(source, (2, 3, 4, 5)))
    shim.delete(*handles)


def test_copy_reads_an_overlapping_source_first(shim):
    array = np.arange(10, dtype=np.float32)
    source, target = shim.borrow(array[:8]), shim.borrow(array[2:])
    shim.call("copy_", target, source, 0)
    np.testing.assert_array_equal(array, [0, 1, 0, 1, 2, 3, 4, 5, 6, 7])
    shim.delete(source, target)


def test_copy_refuses_sizes_that_do_not_broadcast(shim):
    source, target = shim.empty((2, 3)), shim.empty((3, 2))
    with pytest.raises(ShimError, match=r"broadcast size 2 to 3"):
        shim.call("copy_", target, source, 0)
    shim.delete(source, target)


def test_fill_and_zero(shim):
    array = np.ones((4, 6), np.int32)
    handle = shim.borrow(array[:, ::2])
    shim.call("cpu_fill__Scalar", handle, ctypes.c_double(-7.9))
    np.testing.assert_array_equal(array[:, ::2], -7)
    np.testing.assert_array_equal(array[:, 1::2], 1)
    shim.call("zero_", handle)
    np.testing.assert_array_equal(array[:, ::2], 0)
    shim.delete(handle)


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("float32", ctypes.c_float, 0.25),
        ("float64", ctypes.c_double, 0.1),
        ("int64", ctypes.c_int64, -(2**62)),
        ("int32", ctypes.c_int32, -5),
        ("int8", ctypes.c_int8, -128),
        ("uint8", ctypes.c_uint8, 255),
        ("bool", ctypes.c_bool, True),
    ],
)
def test_scalars_go_and_come_back(shim, name: str, kind, value):
    handle = shim.make(f"scalar_to_tensor_{name}", kind(value))
    assert shim.dims(handle) == 0
    assert shim.value(f"item_{name}", kind, handle) == value
    shim.delete(handle)


def test_item_of_a_wrong_type_or_size_is_refused(shim):
    scalar, vector = shim.make("scalar_to_tensor_int64", ctypes.c_int64(3)), shim.empty((2,))
    with pytest.raises(ShimError, match="int64 tensor was read as float32"):
        shim.value("item_float32", ctypes.c_float, scalar)
    with pytest.raises(ShimError, match="2 elements is no scalar"):
        shim.value("item_float32", ctypes.c_float, vector)
    shim.delete(scalar, vector)
