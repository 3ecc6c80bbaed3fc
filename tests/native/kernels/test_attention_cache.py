"""Attention over a cache in bfloat16: the result of the same numbers in float32, bit for bit."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.narrow import bf16_bits, bf16_values
from tests.native.kernels.test_attention import Case, check
from tests.native.kernels.test_attention_parts import decode, part_of, result


def halves(x: np.ndarray) -> np.ndarray:
    """[1, H, L, D] as a cache has it, [L, H, D], with nothing readable behind it."""
    return guarded(bf16_bits(x[0].swapaxes(0, 1))).swapaxes(0, 1)[None]


def compare(lib: ctypes.CDLL, case: Case) -> np.ndarray:
    """The result, which is that of the floats, on one thread as on three."""
    keys = case.offset + case.q.shape[2]
    stored = replace(case, k=halves(case.k[:, :, :keys]), v=halves(case.v[:, :, :keys]))
    floats = replace(stored, k=bf16_values(stored.k), v=bf16_values(stored.v))
    for threads in (1, 3):
        lib.t_set_num_threads(threads)
        got = result(lib, stored)
        np.testing.assert_array_equal(got, result(lib, floats))
    check(lib, floats, np.random.default_rng(0), "floats")
    return got


@pytest.mark.parametrize(("dim", "group"), [(64, 1), (64, 3), (128, 4), (80, 2), (17, 7), (1, 1)])
def test_a_cache_in_bfloat16_gives_what_its_numbers_give(
    kernels: ctypes.CDLL, dim: int, group: int
) -> None:
    rng = np.random.default_rng(dim)
    part = part_of(dim)
    for keys, new in ((1, 1), (part + 1, 1), (part + 3, 4), (33, 33), (71, 5), (200, 40)):
        case = decode(rng, 2, group, keys, dim, new=new)
        rounded = compare(kernels, case)
        assert np.isfinite(rounded).all()
        if dim > 1:  # that it is rounded can be seen
            assert not np.array_equal(rounded, result(kernels, case))


@pytest.mark.parametrize("new", [1, 3, 40])
def test_windows_and_caps(kernels: ctypes.CDLL, new: int) -> None:
    rng = np.random.default_rng(new)
    for window, softcap in ((0, 5.0), (30, 0.0), (300, 2.0)):
        case = decode(rng, 2, 2, 600, 64, new=new)
        compare(kernels, replace(case, window=window, softcap=softcap))


@pytest.mark.parametrize("name", ["k", "v"])
def test_what_is_not_finite_reaches_its_row(kernels: ctypes.CDLL, name: str) -> None:
    case = decode(np.random.default_rng(3), 2, 1, 600, 64)
    stored = replace(case, k=halves(case.k[:, :, :600]), v=halves(case.v[:, :, :600]))
    getattr(stored, name)[0, 1, 300, 5] = 0x7FC0
    got = result(kernels, stored)
    assert np.isfinite(got[0, 0]).all()
    assert np.isnan(got[0, 1, 0, 5])
