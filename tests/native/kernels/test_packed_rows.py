"""Rows of packed weights against the matrices that they stand for, bit for bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from edgecompile.backends.operators.ops import (
    pack_int4,
    pack_int8_halves,
    pack_weight,
    unpack_weight,
)
from tests.native.guarded import guarded
from tests.native.kernels.packed_products import Weights, run
from tests.native.kernels.test_gemm import Epilogue

SHAPES = [(1, 1), (31, 7), (32, 64), (33, 65), (70, 130), (96, 128), (40, 63)]
DTYPES = {"fp32": torch.float32, "bf16": torch.uint16, "int8": torch.int8, "int4": torch.uint8}


def rows_of(lib: ctypes.CDLL, weight: torch.Tensor, precision: str) -> tuple[np.ndarray, Any]:
    """All rows as the kernel reads them, and the packed weight."""
    packed = pack_weight(weight, precision)
    return read_rows(lib, packed, precision, *weight.shape), packed


def read_rows(lib: ctypes.CDLL, packed: torch.Tensor, precision: str, n: int, k: int) -> np.ndarray:
    memory = guarded(packed.view(DTYPES[precision]).numpy())
    out = guarded(np.full((n, k), np.nan, np.float32))
    read = getattr(lib, f"t_packed_row_{precision}")
    for row in range(n):
        panel = [ctypes.c_int64(packed[0].numel())] if precision.startswith("int") else []
        read(
            ctypes.c_void_p(memory.ctypes.data),
            *panel,
            ctypes.c_int64(k),
            ctypes.c_int64(row),
            ctypes.c_void_p(out[row].ctypes.data),
        )
    return out


@pytest.mark.parametrize("precision", list(DTYPES))
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_rows_are_what_products_take_the_weight_for(
    kernels: ctypes.CDLL, precision: str, n: int, k: int
) -> None:
    weight = torch.randn(n, k) * torch.rand(n, 1)
    got, packed = rows_of(kernels, weight, precision)
    np.testing.assert_array_equal(got, unpack_weight(packed, n, k).numpy())
    if precision == "fp32":
        np.testing.assert_array_equal(got, weight.numpy())
    else:
        np.testing.assert_allclose(
            got,
            weight.numpy(),
            atol=float(weight.abs().max()) / (10 if precision == "int4" else 100),
        )


@pytest.mark.parametrize("precision", list(DTYPES))
def test_what_is_no_number_is_none_in_the_row(kernels: ctypes.CDLL, precision: str) -> None:
    weight = torch.randn(40, 130)
    weight[33, 70], weight[2, 5], weight[3] = torch.nan, torch.inf, -0.0
    got, packed = rows_of(kernels, weight, precision)
    np.testing.assert_array_equal(got, unpack_weight(packed, 40, 130).numpy())
    assert np.isnan(got[33, 70]) and not np.isfinite(got[2, 5])
    assert np.isfinite(got[np.delete(np.arange(40), [2, 33])]).all()


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_rows_of_every_form(kernels: ctypes.CDLL, n: int, k: int) -> None:
    """Also with scales and minimums that are denormal, negative, and no numbers."""
    rng = np.random.default_rng(n)
    values = torch.from_numpy(rng.integers(-8, 8, (n, k)).astype(np.int8))
    odd = np.array([0, 1, 0x3FF, 0x400, 0x7BFF, 0x8234, 0xC500, 0x7E00, 0x7C00], np.uint16)

    def halves(size: int) -> torch.Tensor:
        return torch.from_numpy(rng.choice(odd, (n, -(-k // size))).view(np.float16))

    def zeros(size: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(0, 17, (n, -(-k // size))).astype(np.uint8))

    for packed, precision in (
        (pack_int4(values, halves(32)), "int4"),
        (pack_int4(values, halves(64), block=64), "int4"),
        (pack_int4(values, halves(32), zeros(32)), "int4"),
        (pack_int4(values, halves(64), zeros(64), block=64), "int4"),
        (pack_int4(values, halves(32), halves(32)), "int4"),
        (pack_int8_halves(values, halves(32).to(torch.float32)), "int8"),
    ):
        got = read_rows(kernels, packed, precision, n, k)
        np.testing.assert_array_equal(got, unpack_weight(packed, n, k).numpy())


def test_denormal_scales_count_where_the_host_flushes_denormal_floats(kernels: ctypes.CDLL) -> None:
    n, k = 33, 70
    values = torch.full((n, k), 7, dtype=torch.int8)
    scales = torch.full((n, 3), 0x234 * 2.0**-24, dtype=torch.float16)
    packed = pack_int4(values, scales)
    x, out = np.ones((1, k), np.float32), np.zeros((1, n), np.float32)
    weights = Weights("int4", packed.numpy(), np.zeros((k, n)))
    kernels.t_flush_denormals.restype = ctypes.c_bool
    if not kernels.t_flush_denormals(True):
        pytest.skip("the CPU has no such mode")
    try:
        rows = read_rows(kernels, packed, "int4", n, k)
        run(kernels, weights, x, out, Epilogue())
    finally:
        kernels.t_flush_denormals(False)
    np.testing.assert_array_equal(rows, np.float32(7 * 0x234 * 2.0**-24))
    np.testing.assert_allclose(out, np.float32(70 * 7 * 0x234 * 2.0**-24), rtol=1e-6)
