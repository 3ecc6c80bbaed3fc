"""Products of strided batches against numpy in float64, at the edges of memory, over random shapes.

Those of packed weights are in test_gemm_packed.py and test_gemm_rounded.py.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import numpy as np
import pytest

from tests.native.guarded import guarded

F = np.float32
NONE, RELU, GELU_ERF, GELU_TANH, SILU, TANH, SIGMOID, RELU6, HARDSWISH, HARDSIGMOID = range(10)
I64 = ctypes.c_int64


class CEpilogue(ctypes.Structure):
    _fields_ = (
        ("bias", ctypes.c_void_p), ("residual", ctypes.c_void_p), ("ld_residual", I64),
        ("act", ctypes.c_int32), ("alpha", ctypes.c_float), ("beta", ctypes.c_float),
        ("residual_batch", I64), ("act_last", ctypes.c_bool),
    )  # fmt: skip


@dataclass(frozen=True)
class Epilogue:
    bias: np.ndarray | None = None
    residual: np.ndarray | None = None  # [..., M, N] with any strides but the last
    act: int = NONE
    alpha: float = 1.0
    beta: float = 1.0
    act_last: bool = False

    def native(self) -> CEpilogue:
        e = CEpilogue(act=self.act, alpha=self.alpha, beta=self.beta, act_last=self.act_last)
        if self.bias is not None:
            e.bias = self.bias.ctypes.data
        if self.residual is not None:
            e.residual = self.residual.ctypes.data
            e.ld_residual = self.residual.strides[-2] // 4
            if self.residual.ndim == 3:
                e.residual_batch = self.residual.strides[0] // 4
        return e


_erf = np.vectorize(math.erf, otypes=[np.float64])


def activate(act: int, x: np.ndarray) -> np.ndarray:
    if act == RELU:
        return np.maximum(x, 0)
    if act == GELU_ERF:
        return 0.5 * x * (1 + _erf(x * math.sqrt(0.5)))
    if act == GELU_TANH:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if act in (SILU, SIGMOID):
        sigmoid = 1 / (1 + np.exp(-x))
        return sigmoid if act == SIGMOID else x * sigmoid
    if act in (RELU6, HARDSWISH, HARDSIGMOID):
        clipped = np.clip(x if act == RELU6 else x + 3, 0, 6)
        return clipped * {RELU6: 1, HARDSWISH: x / 6, HARDSIGMOID: 1 / 6}[act]
    return np.tanh(x) if act == TANH else x


def expected(
    a: np.ndarray, b: np.ndarray, e: Epilogue, sum_error: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The exact result and a bound on the error of summing in float32 in any sensible order.

    With ``sum_error`` the sums are off by no more than that part of the sum of magnitudes.
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    k = a.shape[-1]
    x = e.alpha * (a @ b)
    size = abs(e.alpha) * (np.abs(a) @ np.abs(b))
    if e.bias is not None:
        x = x + e.beta * e.bias
        size = size + np.abs(e.beta * e.bias)
    bound = ((3 * math.sqrt(k) + 4) * 2.0**-24 if sum_error is None else sum_error) * size
    addend = 0 if e.residual is None else e.beta * e.residual
    if e.act_last:
        y = activate(e.act, x + addend)
        bound = bound + 2.0**-23 * np.abs(x + addend)
    else:
        y = activate(e.act, x)
    # No activation is steeper than 1.5: hardswish at 3.
    bound = 1.6 * bound + 8 * 2.0**-24 * np.abs(y)
    if not e.act_last and e.residual is not None:
        y = y + addend
        bound = bound + 2.0**-23 * (np.abs(y) + np.abs(addend))
    return y, bound + 1e-30


def check(
    got: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    e: Epilogue,
    what: str,
    sum_error: float | None = None,
    coarse: float = 0.0,
) -> None:
    """``coarse``: what an activation may be off by beside that."""
    want, bound = expected(a, b, e, sum_error)
    wrong = ~(np.abs(got - want) <= bound + coarse)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        pytest.fail(f"{what}: {wrong.sum()} wrong, at {at} got {got[at]} want {want[at]}")


def pack(lib: ctypes.CDLL, b: np.ndarray) -> np.ndarray:
    """[ceil(N/32)][K][32], itself checked against numpy by test_pack_b."""
    k, n = b.shape
    lib.t_packed_elements.restype = I64
    out = guarded(np.full(lib.t_packed_elements(I64(n), I64(k)), np.nan, F))
    lib.t_pack_b(
        ctypes.c_void_p(b.ctypes.data), I64(b.strides[0] // 4), I64(b.strides[1] // 4), I64(k),
        I64(n), ctypes.c_void_p(out.ctypes.data),
    )  # fmt: skip
    return out


def strided_output(shape: tuple[int, ...], ld: int, at_end: bool) -> tuple[np.ndarray, np.ndarray]:
    """An output [..., M, N] whose rows lie `ld` apart, and the memory under it full of NaN."""
    *batch, m, n = shape
    count = int(np.prod(batch, initial=1))
    memory = guarded(np.full(count * m * ld - (ld - n), np.nan, F), at_end=at_end)
    strides = (m * ld * 4, ld * 4, 4)[3 - len(shape) :]
    return np.lib.stride_tricks.as_strided(memory, shape, strides), memory


def unwritten_outside(memory: np.ndarray, out: np.ndarray) -> bool:
    """Whether every element of `memory` that isn't in `out` still is NaN; overwrites `out`."""
    out[...] = np.nan
    return bool(np.isnan(memory).all())


def gemm_batched(lib: ctypes.CDLL, a: np.ndarray, b: np.ndarray, c: np.ndarray,
                 e: Epilogue) -> None:  # fmt: skip
    batch, m, k = a.shape
    n = b.shape[2]
    sa, sb, sc = ([s // 4 for s in x.strides] for x in (a, b, c))
    lib.t_gemm_batched(
        I64(batch), I64(m), I64(n), I64(k), ctypes.c_void_p(a.ctypes.data), *map(I64, sa),
        ctypes.c_void_p(b.ctypes.data), *map(I64, sb), ctypes.c_void_p(c.ctypes.data),
        *map(I64, sc[:2]), ctypes.byref(e.native()),
    )  # fmt: skip


def random_floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=F)


def random_epilogue(rng: np.random.Generator, shape: tuple[int, ...]) -> Epilogue:
    residual = None
    if rng.random() < 0.4:
        residual = guarded(random_floats(rng, *shape))
        if rng.random() < 0.3:  # one row for all
            residual = np.broadcast_to(guarded(random_floats(rng, shape[-1])), shape)
    return Epilogue(
        bias=guarded(random_floats(rng, shape[-1])) if rng.random() < 0.6 else None,
        residual=residual,
        act=int(rng.integers(0, 10)) if rng.random() < 0.5 else NONE,
        alpha=float(rng.choice([1, 1, 1, 0.125, -1.5])),
        beta=float(rng.choice([1, 1, 1, 0.5, 0])),
        act_last=bool(rng.random() < 0.5),
    )


def random_size(rng: np.random.Generator, most: int) -> int:
    """Small sizes and sizes about multiples of blocks more often than others."""
    kind = rng.random()
    if kind < 0.4:
        return int(rng.integers(1, 20))
    if kind < 0.7:
        return int(np.clip(32 * rng.integers(1, most // 32 + 1) + rng.integers(-2, 3), 1, most))
    return int(rng.integers(1, most + 1))


@pytest.mark.parametrize("transposed", [False, True])
def test_pack_b(kernels: ctypes.CDLL, transposed: bool) -> None:
    rng = np.random.default_rng(1)
    for k, n in [(1, 1), (3, 31), (7, 32), (64, 33), (65, 100), (8, 64), (100, 7)]:
        b = random_floats(rng, n, k).T if transposed else random_floats(rng, k, n)
        want = np.zeros((k, -(-n // 32) * 32), F)
        want[:, :n] = b
        want = want.reshape(k, -1, 32).transpose(1, 0, 2)
        assert (pack(kernels, b).reshape(want.shape) == want).all(), (k, n)


def strided_matrix(rng: np.random.Generator, batch: int, rows: int, columns: int) -> np.ndarray:
    """[batch, rows, columns] with one of many strides: transposed, broadcast, spread, reversed."""
    kind = rng.integers(0, 6)
    if kind == 0:
        return guarded(random_floats(rng, batch, columns, rows)).transpose(0, 2, 1)
    if kind == 1:  # heads inside rows, as of a split of a [rows, heads·columns] matrix
        return guarded(random_floats(rng, rows, batch, columns)).transpose(1, 0, 2)
    if kind == 2:
        return np.broadcast_to(guarded(random_floats(rng, rows, columns)), (batch, rows, columns))
    if kind == 3:
        return guarded(random_floats(rng, batch, rows, 2 * columns + 1))[:, :, 1::2]
    if kind == 4:
        return guarded(random_floats(rng, batch, rows, columns))[:, ::-1, ::-1]
    return guarded(random_floats(rng, batch, rows, columns))


@pytest.mark.parametrize("seed", range(6))
def test_product_of_strided_batches(kernels: ctypes.CDLL, seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    for _ in range(40):
        batch = int(rng.choice([1, 1, 2, 5, 12]))
        m, n, k = random_size(rng, 200), random_size(rng, 150), random_size(rng, 450)
        kernels.t_set_num_threads(int(rng.integers(1, 4)))
        a, b = strided_matrix(rng, batch, m, k), strided_matrix(rng, batch, k, n)
        e = random_epilogue(rng, (batch, m, n))
        c, memory = strided_output((batch, m, n), n + int(rng.choice([0, 5])), True)
        gemm_batched(kernels, a, b, c, e)
        check(c, a, b, e, f"seed {seed}: {batch}×{m}×{n}×{k} {a.strides} {b.strides}")
        assert unwritten_outside(memory, c)


def test_empty_sizes(kernels: ctypes.CDLL) -> None:
    for m, n, k in [(0, 5, 3), (4, 0, 3), (3, 40, 0), (1, 1, 0)]:
        a, b = np.zeros((1, m, k), F), np.zeros((1, k, n), F)
        e = Epilogue(bias=np.arange(n, dtype=F))
        c = np.full((1, m, n), np.nan, F)
        gemm_batched(kernels, a, b, c, e)
        assert (c == np.broadcast_to(np.arange(n, dtype=F), (1, m, n))).all()
