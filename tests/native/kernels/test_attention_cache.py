"""Attention over a cache in bfloat16 or int8: the result of the same numbers in float32, bit for bit."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from edgecompile.models.cache_rows import dequantize_rows, quantize_rows, row_width
from tests.native.guarded import guarded
from tests.native.kernels.narrow import bf16_bits, bf16_values
from tests.native.kernels.test_attention import Case, check, run
from tests.native.kernels.test_attention_parts import decode, part_of, result

STORAGES = ("bfloat16", "int8")


def stored(x: np.ndarray, storage: str) -> np.ndarray:
    """[1, H, L, D] as a cache has it, [L, H, size], with nothing readable behind it."""
    rows = np.ascontiguousarray(x[0].swapaxes(0, 1))
    narrow = bf16_bits(rows) if storage == "bfloat16" else quantize_rows(torch.from_numpy(rows))
    return guarded(np.asarray(narrow)).swapaxes(0, 1)[None]


def values(x: np.ndarray) -> np.ndarray:
    """The floats that a cache stands for."""
    if x.dtype == np.uint16:
        return bf16_values(x)
    return dequantize_rows(torch.from_numpy(x)).numpy()


def as_result(lib: ctypes.CDLL, case: Case) -> np.ndarray:
    width = row_width(case.v.shape[3]) if case.v.dtype == np.int8 else case.v.shape[3]
    out = np.full((*case.q.shape[:3], width), np.nan, np.float32)
    run(lib, case, out)
    return out


def compare(lib: ctypes.CDLL, case: Case, storage: str) -> np.ndarray:
    """The result, which is that of the floats, on one thread as on three."""
    keys = case.offset + case.q.shape[2]
    narrow = replace(case, k=stored(case.k[:, :, :keys], storage), v=stored(case.v[:, :, :keys], storage))  # fmt: skip
    floats = replace(narrow, k=values(narrow.k), v=values(narrow.v))
    for threads in (1, 3):
        lib.t_set_num_threads(threads)
        got = as_result(lib, narrow)
        np.testing.assert_array_equal(got, result(lib, floats))
    check(lib, floats, np.random.default_rng(0), "floats")
    return got


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("dim", "group"), [(64, 1), (64, 3), (128, 4), (80, 2), (17, 7), (1, 1)])
def test_a_narrow_cache_gives_what_its_numbers_give(
    kernels: ctypes.CDLL, dim: int, group: int, storage: str
) -> None:
    rng = np.random.default_rng(dim)
    part = part_of(dim)
    for keys, new in ((1, 1), (part + 1, 1), (part + 3, 4), (33, 33), (71, 5), (200, 40)):
        case = decode(rng, 2, group, keys, dim, new=new)
        rounded = compare(kernels, case, storage)
        assert np.isfinite(rounded).all()
        if dim > 1:  # that it is rounded can be seen
            assert not np.array_equal(rounded, result(kernels, case))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("new", [1, 3, 40])
def test_windows_and_caps(kernels: ctypes.CDLL, new: int, storage: str) -> None:
    rng = np.random.default_rng(new)
    for window, softcap in ((0, 5.0), (30, 0.0), (300, 2.0)):
        case = decode(rng, 2, 2, 600, 64, new=new)
        compare(kernels, replace(case, window=window, softcap=softcap), storage)


@pytest.mark.parametrize("storage", STORAGES)
def test_several_queries_are_single_ones(kernels: ctypes.CDLL, storage: str) -> None:
    rng = np.random.default_rng(9)
    for new in range(2, 9):
        case = decode(rng, 3, 3, 300, 64, new=new)
        narrow = replace(case, k=stored(case.k[:, :, :300], storage), v=stored(case.v[:, :, :300], storage))  # fmt: skip
        got = as_result(kernels, narrow)
        for at in range(new):
            one = replace(narrow, q=case.q[:, :, at : at + 1], offset=case.offset + at)
            np.testing.assert_array_equal(got[:, :, at : at + 1], as_result(kernels, one))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", ["k", "v"])
def test_what_is_not_finite_reaches_its_row(kernels: ctypes.CDLL, name: str, storage: str) -> None:
    case = decode(np.random.default_rng(3), 2, 1, 600, 64)
    getattr(case, name)[0, 1, 300, 5] = np.nan
    k, v = (stored(x[:, :, :600], storage) for x in (case.k, case.v))
    got = as_result(kernels, replace(case, k=k, v=v))
    assert np.isfinite(got[0, 0]).all()
    assert np.isnan(got[0, 1, 0, 5])
