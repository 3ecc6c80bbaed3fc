"""Products with packed weights of every format against numpy in float64, at the edges of memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.narrow import (
    PANEL,
    RowSteps,
    bf16_bits,
    bf16_values,
    blocks_of,
    column_values,
    half_values,
    largest_sums,
    pack_bf16,
    pack_int4,
    pack_int8,
    pack_int8_halves,
    quantize_columns,
    quantize_halves,
    quantize_rows,
    quantize_shifted,
)
from tests.native.kernels.test_gemm import (
    GELU_ERF,
    GELU_TANH,
    NONE,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    Epilogue,
    F,
    activate,
    check,
    random_epilogue,
    random_floats,
    random_size,
    strided_output,
    unwritten_outside,
)
from tests.native.sweep import sweep

I64 = ctypes.c_int64
PLAIN = ["int8", "int4"]
#: Other forms of their blocks.
FORMS = ["int8-halves", "int4-whole", "int4-zeros", "int4-whole-zeros", "int4-minimums"]
PAIRS = "int8-pairs"  # not a form: of int8, with products that may be added in 16 bits
ROUNDED = [*PLAIN, PAIRS, *FORMS]
NARROW = ["bf16", *ROUNDED]
FORMATS = ["fp32", *NARROW]
COARSE_GELU = 2.0**-14.4  # of whole panels


def pack_fp32(b: np.ndarray) -> np.ndarray:
    """[ceil(N/32)][K][32], filled up with zeros."""
    k, n = b.shape
    panels = -(-n // PANEL)
    whole = np.zeros((k, panels * PANEL), F)
    whole[:, :n] = b
    return np.ascontiguousarray(whole.reshape(k, panels, PANEL).transpose(1, 0, 2))


@dataclass(frozen=True)
class Weights:
    """A matrix as the kernels get it, and the numbers that it stands for ([K, N])."""

    kind: str
    packed: np.ndarray
    values: np.ndarray
    terms: np.ndarray | None = None  # magnitudes of what values are sums of

    @classmethod
    def of(cls, kind: str, b: np.ndarray) -> Weights:
        if kind == "fp32":
            return cls(kind, guarded(pack_fp32(b)), b)
        if kind == "bf16":
            packed, values = pack_bf16(b)
            return cls(kind, guarded(packed), values)
        size = 64 if "whole" in kind else 32
        if kind == "int8-halves":
            q, scales = quantize_halves(b, size, 128)
            wide = scales.astype(F)
            return cls(kind, guarded(pack_int8_halves(q, wide)), half_values(q, wide))
        if kind in ("int4", "int4-whole"):
            q, scales = quantize_halves(b, size)
            return cls(kind, guarded(pack_int4(q, scales, size=size)), half_values(q, scales, size))
        if kind.startswith("int4"):
            zeros = "zeros" in kind
            q, scales, shifts, values = quantize_shifted(b, size, zeros=zeros)
            shift = {"zeros" if zeros else "minimums": shifts}
            packed = pack_int4(q, scales, **shift, size=size)
            least = 0 if zeros else np.repeat(shifts.astype(np.float64), size, 0)[: len(b)]
            return cls(kind, guarded(packed), values, abs(values - least) + abs(least))
        q, scales = quantize_columns(b)
        return cls(kind, guarded(pack_int8(q, scales)), column_values(q, scales))


def run(lib: ctypes.CDLL, w: Weights, a: np.ndarray, c: np.ndarray, e: Epilogue) -> None:
    (m, k), n = a.shape, w.values.shape[1]
    panel = [I64(w.packed.size // max(1, -(-n // PANEL)))] if w.kind in ROUNDED else []
    getattr(lib, f"t_gemm_{_native_name(w.kind)}")(
        I64(m), I64(n), I64(k), ctypes.c_void_p(a.ctypes.data), I64(a.strides[0] // 4),
        ctypes.c_void_p(w.packed.ctypes.data), *panel, ctypes.c_void_p(c.ctypes.data),
        I64(c.strides[0] // 4), ctypes.byref(e.native()),
    )  # fmt: skip


def _native_name(kind: str) -> str:
    if kind == PAIRS:
        return "int8_pairs"
    return "packed" if kind == "fp32" else kind.partition("-")[0]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("k", [7, 96, 1537])
def test_few_rows_are_the_rows_that_run_alone(kernels: ctypes.CDLL, kind: str, k: int) -> None:
    """Bit for bit, for whole panels and others, on any number of threads."""
    rng = np.random.default_rng(k)
    for n in (33, 192):
        w = Weights.of(kind, random_floats(rng, k, n))
        a = random_floats(rng, 8, k)
        a[5, k // 2] = 1e3  # an outlier is rounded otherwise than its neighbours
        e = Epilogue(bias=random_floats(rng, n), act=SILU)
        alone = np.full((8, n), np.nan, F)
        for row in range(8):
            run(kernels, w, a[row : row + 1], alone[row : row + 1], e)
        for threads in (1, 3):
            kernels.t_set_num_threads(threads)
            for count in range(2, 9):
                got = np.full((count, n), np.nan, F)
                run(kernels, w, a[8 - count :], got, e)
                assert got.tobytes() == alone[8 - count :].tobytes(), (n, count)


def verify(lib: ctypes.CDLL, w: Weights, c: np.ndarray, a: np.ndarray, e: Epilogue, what: str):
    """bf16: float32's sums, on some CPUs of rounded rows. int8 and int4: exact sums of rounded blocks, added up."""
    coarse: Any = COARSE_GELU if e.act in (GELU_ERF, GELU_TANH) else 0.0
    if w.kind in ROUNDED:
        roundings = 8 + 2 * len(blocks_of(a, 64 if w.kind in ("int8", PAIRS) else 32))
        rows = quantize_rows(a, row_steps(lib, w.kind))
        if w.terms is not None:
            coarse += 2 * roundings * 2.0**-24 * abs(e.alpha) * (abs(rows) @ w.terms)
        check(c, rows, w.values, e, what, roundings * 2.0**-24, coarse)
    elif w.kind == "fp32":
        check(c, a, w.values, e, what)
    else:
        lib.t_bf16_rounds_a.restype = ctypes.c_bool
        if lib.t_bf16_rounds_a():
            a = bf16_values(bf16_bits(a))
        check(c, a, w.values, e, what, None, coarse)


def row_steps(lib: ctypes.CDLL, kind: str) -> RowSteps:
    return RowSteps(getattr(lib, f"t_{_native_name(kind)}_row_steps")())


def product(lib: ctypes.CDLL, w: Weights, a: np.ndarray, e: Epilogue | None = None) -> np.ndarray:
    c, _ = strided_output((a.shape[0], w.values.shape[1]), w.values.shape[1], True)
    run(lib, w, a, c, e or Epilogue())
    return c


@pytest.mark.parametrize(("n", "k"), [(1, 1), (31, 2), (32, 3), (33, 4), (100, 65), (5, 0), (0, 7)])
def test_packed_sizes(kernels: ctypes.CDLL, n: int, k: int) -> None:
    b = np.ones((k, n), F)
    for kind in ["fp32", "bf16", "int8", "int8-halves", "int4"]:
        name = f"t_packed_elements_{kind}".removesuffix("_fp32").replace("-", "_")
        function = getattr(kernels, name)
        function.restype = I64
        assert function(I64(n), I64(k)) == Weights.of(kind, b).packed.size


@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 32), (40, 65), (64, 576)])
def test_forms_are_told_by_their_bytes(kernels: ctypes.CDLL, n: int, k: int) -> None:
    b, seen = np.ones((k, n), F), set()
    for kind in PLAIN + FORMS:
        base = kind.partition("-")[0]
        is_panel = getattr(kernels, f"t_is_{base}_panel")
        is_panel.restype = ctypes.c_bool
        panel = Weights.of(kind, b).packed.size // -(-n // PANEL)
        assert is_panel(I64(k), I64(panel)) and (base, panel) not in seen
        assert not any(is_panel(I64(k), I64(panel + more)) for more in (-1, 1))
        seen.add((base, panel))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (3, 4, 5))]
)
def test_product_over_random_shapes(kernels: ctypes.CDLL, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(40):
        m, n, k = random_size(rng, 512), random_size(rng, 200), random_size(rng, 900)
        at_end = bool(rng.random() < 0.7)
        kernels.t_set_num_threads(int(rng.integers(1, 4)))
        padded = guarded(random_floats(rng, m, k + int(rng.choice([0, 0, 3, 16]))), at_end=at_end)
        a = padded[:, padded.shape[1] - k :] if at_end else padded[:, :k]
        w = Weights.of(kind, random_floats(rng, k, n))
        e = random_epilogue(rng, (m, n))
        c, memory = strided_output((m, n), n + int(rng.choice([0, 0, 1, 40])), at_end)
        run(kernels, w, a, c, e)
        verify(kernels, w, c, a, e, f"seed {seed}: m={m} n={n} k={k} {e.act=} {e.alpha=} {e.beta=}")
        assert unwritten_outside(memory, c)


@pytest.mark.parametrize("kind", FORMATS)
@sweep("m", [*range(1, 28), 49, 144, 145, 300, 512])
def test_every_number_of_rows(kernels: ctypes.CDLL, m: int, kind: str) -> None:
    rng = np.random.default_rng(m)
    for n, k in [(96, 64), (47, 385), (33, 1537)]:
        a, w = guarded(random_floats(rng, m, k)), Weights.of(kind, random_floats(rng, k, n))
        e = Epilogue(bias=random_floats(rng, n), act=GELU_ERF, residual=random_floats(rng, m, n))
        verify(kernels, w, product(kernels, w, a, e), a, e, f"{m=} {n=} {k=}")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "k",
    [2047, 2065, 8192, *(pytest.param(k, marks=pytest.mark.exhaustive) for k in (2064, 3072))],
)
def test_long_rows(kernels: ctypes.CDLL, k: int, kind: str) -> None:
    """K in slices; also with rows a whole number of pages apart, and more than 32 panels."""
    rng = np.random.default_rng(k)
    for m, n, ld in [(1, 40, k), (7, 1100, k), (25, 65, -(-k // 1024) * 1024)]:
        a = guarded(random_floats(rng, m, ld))[:, ld - k :]
        w = Weights.of(kind, random_floats(rng, k, n))
        e = Epilogue(residual=random_floats(rng, m, n), act=TANH)
        verify(kernels, w, product(kernels, w, a, e), a, e, f"{m=} {n=} {k=} {ld=}")


@pytest.mark.parametrize("kind", ROUNDED)
def test_more_rows_than_are_rounded_at_once(kernels: ctypes.CDLL, kind: str) -> None:
    rng = np.random.default_rng(8)
    a, w = random_floats(rng, 5000, 512), Weights.of(kind, random_floats(rng, 512, 3))
    e = Epilogue(residual=random_floats(rng, 5000, 3), bias=random_floats(rng, 3))
    verify(kernels, w, product(kernels, w, a, e), a, e, "5000 rows")
    assert 5000 * 512 * 2 > 4 << 20


@pytest.mark.parametrize("kind", FORMATS)
@sweep("act", range(10))
def test_every_activation(kernels: ctypes.CDLL, kind: str, act: int) -> None:
    rng = np.random.default_rng(9)
    a, w = random_floats(rng, 13, 50), Weights.of(kind, random_floats(rng, 50, 77))
    bias, residual = random_floats(rng, 77), random_floats(rng, 13, 77)
    for act_last in (False, True):
        e = Epilogue(bias, residual, act, act_last=act_last)
        verify(kernels, w, product(kernels, w, a, e), a, e, f"{act=} {act_last=}")


@pytest.mark.parametrize("kind", FORMATS)
def test_empty_sizes(kernels: ctypes.CDLL, kind: str) -> None:
    for m, n, k in [(0, 5, 3), (4, 0, 3), (3, 40, 0), (1, 1, 0)]:
        w = Weights.of(kind, np.zeros((k, n), F))
        bias = np.arange(n, dtype=F)
        c = product(kernels, w, np.zeros((m, k), F), Epilogue(bias=bias))
        assert (c == np.broadcast_to(bias, (m, n))).all()


@pytest.mark.parametrize("act", [NONE, GELU_ERF])
@pytest.mark.parametrize("kind", FORMATS)
def test_residual_may_be_the_output(kernels: ctypes.CDLL, kind: str, act: int) -> None:
    rng = np.random.default_rng(5)
    for m, n, k in [(5, 40, 30), (49, 100, 2000), (200, 33, 900)]:
        a, r = random_floats(rng, m, k), random_floats(rng, m, n)
        w = Weights.of(kind, random_floats(rng, k, n))
        c = r.copy()
        run(kernels, w, a, c, Epilogue(residual=c, act=act, beta=0.5))
        verify(kernels, w, c, a, Epilogue(residual=r, act=act, beta=0.5), f"{m=} {n=} {k=}")


@pytest.mark.parametrize("kind", FORMATS)
def test_nan_and_infinity_reach_their_rows_only(kernels: ctypes.CDLL, kind: str) -> None:
    rng = np.random.default_rng(6)
    for bad_column in (0, 17, 49):  # the last one: of a group that isn't full
        a, w = random_floats(rng, 20, 50), Weights.of(kind, random_floats(rng, 50, 70))
        a[3, bad_column], a[11, bad_column], a[14, bad_column] = np.nan, np.inf, -np.inf
        for act in range(7):
            c = product(kernels, w, a, Epilogue(act=act))
            assert np.isnan(c[3]).all(), act
            rows = [i for i in range(20) if i not in (3, 11, 14)]
            assert np.isfinite(c[rows]).all(), act
            if kind in ROUNDED:
                assert np.isnan(c[[11, 14]]).all(), act
            elif act == NONE:
                assert not np.isfinite(c[[11, 14]]).any()


@pytest.mark.parametrize("kind", FORMATS)
def test_nan_reaches_columns_that_are_zero(kernels: ctypes.CDLL, kind: str) -> None:
    w = Weights.of(kind, np.zeros((8, 40), F))
    a = np.ones((2, 8), F)
    a[1, 5] = np.nan
    c = product(kernels, w, a, Epilogue(bias=np.ones(40, F), act=RELU))
    assert (c[0] == 1).all() and np.isnan(c[1]).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_and_columns_of_zeros_give_the_bias(kernels: ctypes.CDLL, kind: str) -> None:
    rng = np.random.default_rng(10)
    a, b, bias = random_floats(rng, 9, 37), random_floats(rng, 37, 45), random_floats(rng, 45)
    a[4] = 0
    b[:, 44] = 0
    c = product(kernels, Weights.of(kind, b), a, Epilogue(bias=bias, act=SIGMOID))
    want = activate(SIGMOID, bias.astype(np.float64))
    np.testing.assert_allclose(c[4], want, rtol=1e-6)
    np.testing.assert_allclose(c[:, 44], want[44], rtol=1e-6)


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_any_magnitude(kernels: ctypes.CDLL, kind: str) -> None:
    """One row's size has no influence on another's result; the largest numbers don't overflow."""
    rng = np.random.default_rng(11)
    sizes = np.array([1e-36, 1e-30, 1e-12, 1.0, 1e12, 1e30, 1e36], F)
    a = rng.uniform(-1, 1, (7, 96)).astype(F) * sizes[:, None]
    w = Weights.of(kind, rng.uniform(-1, 1, (96, 50)).astype(F))
    c = product(kernels, w, a)
    want = a.astype(np.float64) @ w.values
    size = np.abs(a).astype(np.float64) @ np.abs(w.values)
    assert (np.abs(c - want)[0] <= 2.0**-6 * size[0]).all()  # rounded to multiples of 2^-126
    if kind in ROUNDED:
        want = quantize_rows(a, row_steps(kernels, kind)) @ w.values
    assert (np.abs(c - want)[1:] <= 2.0**-8 * size[1:]).all()


@pytest.mark.parametrize("kind", ROUNDED)
def test_row_of_the_smallest_numbers(kernels: ctypes.CDLL, kind: str) -> None:
    w = Weights.of(kind, np.ones((16, 32), F))
    for value in (1e-45, 1e-40, 1e-38, np.finfo(F).tiny):
        c = product(kernels, w, np.full((1, 16), value, F))
        # int4's scale, 1/7, has 11 bits.
        exact = 16 * value * w.values[0, 0]
        assert (np.abs(c - exact) <= 16 * 2.0**-126).all()


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("k", [1, 3, 384, 2064, 4128, 8192])
def test_largest_sums_are_exact(kernels: ctypes.CDLL, k: int, kind: str) -> None:
    """Every factor at its limit: the integers hold the sum, of either sign."""
    q = np.full((k, 34), 127 if kind == "int8" else 7, np.int8)
    q[:, ::2] = -127 if kind == "int8" else -8
    size = 64 if kind == "int8" else 32
    scales = np.full((len(blocks_of(q.T, size)), 34), 0.5, F if kind == "int8" else np.float16)
    packed = pack_int8(q, scales) if kind == "int8" else pack_int4(q, scales)
    w = Weights(kind, guarded(packed), q * np.float64(0.5))
    a = np.full((7, k), 3.0, F)
    a[1] = -3.0
    np.testing.assert_allclose(product(kernels, w, a), a.astype(np.float64) @ w.values, rtol=1e-6)


@pytest.mark.parametrize("kind", ["int8", PAIRS, "int8-halves", "int4"])
@pytest.mark.parametrize("k", [1, 8, 70, 192])
def test_rows_of_one_value_are_exact(kernels: ctypes.CDLL, k: int, kind: str) -> None:
    """A tie would move all of a block to one side, and eager's rounding to the other."""
    rng = np.random.default_rng(k)
    w = Weights.of(kind, random_floats(rng, k, 33))
    a = guarded(np.repeat(random_floats(rng, 200, 1), k, 1))
    got, size = product(kernels, w, a), abs(a).astype(np.float64) @ abs(w.values)
    for rows in (quantize_rows(a, row_steps(kernels, kind)), a.astype(np.float64)):
        assert (abs(got - rows @ w.values) <= 2e-6 * size).all()


def weights_at_ends(rng: np.random.Generator, k: int) -> tuple[np.ndarray, Weights]:
    """70 columns of -128 and 127, and the same as the kernels get them: halved."""
    q = rng.choice(np.array([-128, 127], np.int8), (k, 70))
    q[:, 0], q[:, 1], q[:, 2], q[::2, 3], q[1::2, 3] = -128, 127, 0, -128, 127
    scales = np.full((len(blocks_of(q.T)), 70), 0.5, F)
    return q.astype(np.int64), Weights(PAIRS, guarded(pack_int8(q, scales)), 0.5 * q)


@pytest.mark.parametrize("k", [4, 31, 64, 70, 100, 1572])
def test_largest_sums_of_four_products_are_exact(kernels: ctypes.CDLL, k: int) -> None:
    """Activations of one sign meet where they are rounded up, with weights at either end."""
    rng, compared = np.random.default_rng(k), 0
    q, w = weights_at_ends(rng, k)
    summed = row_steps(kernels, PAIRS) is RowSteps.SUMS
    # Each comes to 124, and rounded to 126, 126, 125 and 124.
    fours = np.array(
        [[31.5, 31.5, 31.5, 29.5], [61.5, 59.5, 1.5, 1.5], [1.5, 0, 121, 1.5], [0, 124, 0, 0]], F
    )
    blocks = -(-k // 64)
    for rows in (1, 2, 3, 4, 7):
        pairs = rng.choice(fours, (rows, blocks, 2, 8)).reshape(rows, blocks, 2, 8, 2, 2)
        signs = rng.choice(np.array([-1, 1], F), (rows, 1))
        a = signs * pairs.swapaxes(3, 4).reshape(rows, -1)[:, :k]
        a[0] = abs(a[0])
        got = product(kernels, w, a)
        verify(kernels, w, got, a, Epilogue(), f"{k=} {rows=}")
        # Where each block has a largest sum, steps are 1: integers give the same bits.
        whole = np.all([4 * largest_sums(a[:, b])[:, 0] == 124 for b in blocks_of(a)], axis=0)
        if summed:
            exact = np.rint(a).astype(np.int64) @ q
            np.testing.assert_array_equal(2 * got[whole], exact[whole])
            compared += np.count_nonzero(whole)
    assert compared or not summed


@pytest.mark.parametrize("k", [200, 1537])
def test_largest_sums_of_second_parts_are_exact(kernels: ctypes.CDLL, k: int) -> None:
    """In an outlier's block, of steps of 1: each neighbour's first part is 0 or 1, and its second part -32."""
    rng = np.random.default_rng(k)
    q, w = weights_at_ends(rng, k)
    for rows in (1, 4, 7):
        a = np.zeros((rows, k), F)
        for row in a:
            block = row[64 * int(rng.integers(k // 64)) :][:64]
            block[:] = rng.choice(np.array([-32, 32], F), 64)
            outlier = rng.choice(np.array([-7936, 7936], F))
            block[5], block[[4, 20, 21]] = outlier, -np.copysign(F(32), outlier)  # these four meet
        got = product(kernels, w, a)
        verify(kernels, w, got, a, Epilogue(), f"{k=} {rows=}")
        if row_steps(kernels, PAIRS) is RowSteps.SUMS:
            np.testing.assert_array_equal(2 * got, a.astype(np.int64) @ q)


@pytest.mark.parametrize("k", [1, 32, 70, 4128])
def test_largest_sums_of_other_forms_are_exact(kernels: ctypes.CDLL, k: int) -> None:
    """With outliers as well, whose blocks are rounded more finely."""
    rng, n = np.random.default_rng(k), 40
    halves, wholes = -(-k // 32), -(-k // 64)
    q = rng.choice(np.array([0, 15], np.uint8), (k, n))
    q[:, 0], q[:, 1] = 0, 15
    a = np.full((7, k), 3.0, F)
    a[1], a[2], a[3, 0], a[4, k // 2] = -3.0, rng.choice([-3.0, 3.0], k), 1e4, -1e4
    for blocks, size in ((halves, 32), (wholes, 64)):
        scales = np.full((blocks, n), 0.5, np.float16)
        zeros = rng.choice(np.array([0, 16], np.uint8), (blocks, n))
        values = 0.5 * (q - np.repeat(zeros.astype(np.float64), size, 0)[:k])
        w = Weights("int4-zeros", guarded(pack_int4(q, scales, zeros, size=size)), values)
        verify(kernels, w, product(kernels, w, a), a, Epilogue(), f"{k=} {size=}")
    scales = np.full((halves, n), 0.5, np.float16)
    minimums = rng.choice(np.array([-65504, -7.5, 0, 65504], np.float16), (halves, n))
    values = 0.5 * q + np.repeat(minimums.astype(np.float64), 32, 0)[:k]
    w = Weights("int4-minimums", guarded(pack_int4(q, scales, None, minimums)), values)
    got, want = product(kernels, w, a), quantize_rows(a, row_steps(kernels, "int4")) @ values
    size = np.abs(a) @ (0.5 * q + np.abs(values - 0.5 * q))
    assert (np.abs(got - want) <= (8 + 4 * halves) * 2.0**-24 * size).all()
    signed = rng.choice(np.array([-128, 127], np.int8), (k, n))
    w = Weights("int8-halves", guarded(pack_int8_halves(signed, scales.astype(F))), 0.5 * signed)
    verify(kernels, w, product(kernels, w, a), a, Epilogue(), f"{k=} int8")


def test_forms_of_the_same_numbers_give_the_same_results(kernels: ctypes.CDLL) -> None:
    """Bit for bit: zeros of 8 are those of the plain form, and one scale is two equal ones."""
    rng = np.random.default_rng(21)
    for n, k in ((40, 33), (33, 64), (70, 1500)):
        halves, wholes = -(-k // 32), -(-k // 64)
        q = rng.integers(-8, 8, (k, n)).astype(np.int8)
        whole = rng.random((wholes, n)).astype(np.float16)
        half = np.repeat(whole, 2, 0)[:halves]
        up, eight = (q + 8).astype(np.uint8), np.full((halves, n), 8, np.uint8)
        packed = [
            pack_int4(q, half),
            pack_int4(q, whole, size=64),
            pack_int4(up, half, eight),
            pack_int4(up, whole, eight[:wholes], size=64),
        ]
        assert len({memory.size for memory in packed}) == 4
        for rows in (1, 5, 13):
            a = random_floats(rng, rows, k)
            a[0, k // 3] = 1e5
            results = [
                product(kernels, Weights("int4", guarded(memory), half_values(q, half)), a)
                for memory in packed
            ]
            for other in results[1:]:
                np.testing.assert_array_equal(other, results[0])


def test_every_scale_in_half_precision(kernels: ctypes.CDLL) -> None:
    """Denormal ones, the largest, NaN and infinities among them: each reaches its own column and half only."""
    rng = np.random.default_rng(17)
    bits = np.array([0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x0234, 0x7E00, 0x7C00], np.uint16)
    k, n = 70, 40
    q = rng.integers(-8, 8, (k, n)).astype(np.int8)
    scales = np.ones((3, n), np.float16)
    scales[1, : len(bits)] = bits.view(np.float16)
    w = Weights("int4", guarded(pack_int4(q, scales)), half_values(q, scales))
    finite = np.isfinite(w.values).all(0)
    assert finite.sum() == n - 2
    for rows in (1, 4, 7):
        a = guarded(random_floats(rng, rows, k))
        got = product(kernels, w, a)
        assert not np.isfinite(got[:, ~finite]).any()
        good = Weights("int4", w.packed, w.values[:, finite])
        verify(kernels, good, got[:, finite], a, Epilogue(), f"{rows=}")


@pytest.mark.parametrize("kind", ROUNDED)
def test_rounded_rows_add_no_more_than_the_weights_error(kernels: ctypes.CDLL, kind: str) -> None:
    """Also with an outlier in each row, whose block would otherwise be rounded by steps of 0.24."""
    rng = np.random.default_rng(12)
    a, b = rng.standard_normal((64, 768)).astype(F), rng.standard_normal((768, 96)).astype(F)
    a[:, 5] = 30
    b[5] = 0  # whose own product would hide the others' errors
    w = Weights.of(kind, b)
    exact = a.astype(np.float64) @ b
    of_weights = np.sqrt(np.mean((a @ w.values - exact) ** 2))
    both = np.sqrt(np.mean((product(kernels, w, a) - exact) ** 2))
    int8 = {RowSteps.FINE: 1.01, RowSteps.COARSE: 1.5, RowSteps.SUMS: 2.5}
    most = int8[row_steps(kernels, kind)] if kind.startswith("int8") else 1.01
    assert both < most * of_weights


@pytest.mark.parametrize("kind", ROUNDED)
def test_an_outlier_is_rounded_finely_in_its_own_row_and_block_only(
    kernels: ctypes.CDLL, kind: str
) -> None:
    """Rows of one tile, with and without outliers on either side of the bound, are independent."""
    rng = np.random.default_rng(16)
    # 4200 inputs are more than 64 blocks, and outliers of one row don't hide another's.
    for rows, k in ((1, 300), (4, 300), (6, 300), (7, 300), (25, 300), (6, 4200), (13, 8200)):
        a, b = rng.standard_normal((rows, k)).astype(F), rng.standard_normal((k, 40)).astype(F)
        for r in range(rows):
            a[r, int(rng.integers(k))] = rng.choice([1, 8, 11, 16, 40, 1e4])
            a[r, k - 1 - int(rng.integers(100))] = rng.choice([1, 8, 11, 16, 40])
        w = Weights.of(kind, b)
        together = product(kernels, w, a)
        verify(kernels, w, together, a, Epilogue(), f"{rows=}")
        for r in range(rows):
            np.testing.assert_array_equal(product(kernels, w, a[r : r + 1])[0], together[r])


@pytest.mark.parametrize("kind", FORMATS)
def test_result_does_not_depend_on_the_number_of_threads(kernels: ctypes.CDLL, kind: str) -> None:
    rng = np.random.default_rng(7)
    for m, n, k in [(1, 384, 384), (49, 384, 384), (300, 96, 1536)]:
        a, w = random_floats(rng, m, k), Weights.of(kind, random_floats(rng, k, n))
        results = []
        for threads in (1, 2, 3):
            kernels.t_set_num_threads(threads)
            results.append(product(kernels, w, a))
        for c in results[1:]:
            if kind == "int8":
                np.testing.assert_array_equal(c, results[0])
            np.testing.assert_allclose(c, results[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_is_read_beside_the_panels(kernels: ctypes.CDLL, kind: str) -> None:
    """The packed B begins, then ends, at an inaccessible page; prefetches don't matter."""
    rng = np.random.default_rng(13)
    for k in (1, 2, 5, 64):
        w = Weights.of(kind, random_floats(rng, k, PANEL + 1))
        a = random_floats(rng, 50, k)
        for at_end in (False, True):
            moved = replace(w, packed=guarded(w.packed, at_end=at_end))
            verify(kernels, moved, product(kernels, moved, a), a, Epilogue(), f"{k=} {at_end=}")


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("depth", [2, 4])
def test_every_depth_of_tiles(kernels: ctypes.CDLL, depth: int, kind: str) -> None:
    """Around whole steps of 16 groups, where the last step takes groups of the one before again."""
    rng = np.random.default_rng(14)
    step = 16 * depth
    for k in [*range(1, depth + 2), step - 1, step, step + 1, 2 * step - depth, 3 * step + 5]:
        for m, n in [(5, 33), (16, 64), (33, 31), (48, 40), (70, 100)]:
            a, w = guarded(random_floats(rng, m, k)), Weights.of(kind, random_floats(rng, k, n))
            verify(kernels, w, product(kernels, w, a), a, Epilogue(), f"{m=} {n=} {k=}")


@pytest.mark.parametrize("kind", ROUNDED)
def test_a_row_does_not_depend_on_the_others(kernels: ctypes.CDLL, kind: str) -> None:
    """Integer sums of a block are exact, and blocks are added up in one order."""
    rng = np.random.default_rng(15)
    for k in (384, 1537, 4128):
        a, w = random_floats(rng, 64, k), Weights.of(kind, random_floats(rng, k, 70))
        together = product(kernels, w, a)
        for r in (0, 17, 48):
            np.testing.assert_array_equal(product(kernels, w, a[r : r + 1])[0], together[r])


@pytest.mark.parametrize("m", [1, 8, 9, 12, 31])
def test_a_column_does_not_depend_on_how_many_follow(kernels: ctypes.CDLL, m: int) -> None:
    """The last ones are computed in narrower tiles."""
    rng = np.random.default_rng(16)
    for k in (5, 384, 1537):
        a, b = random_floats(rng, m, k), random_floats(rng, k, 96)
        whole = product(kernels, Weights.of("fp32", b), a)
        for n in (1, 4, 33, 40, 41, 48, 49, 80):
            part = product(kernels, Weights.of("fp32", np.ascontiguousarray(b[:, :n])), a)
            np.testing.assert_array_equal(part, whole[:, :n], f"{n=} {k=}")


# Tiles make signal frames larger by 8 KiB, so Linux refuses them to a process one of whose threads
# has a smaller stack for signals.
_REFUSED = """
import ctypes, sys
import numpy as np

class Stack(ctypes.Structure):
    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))

memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, 8192)
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from tests.native.kernels import test_gemm_packed as tests
lib = ctypes.CDLL(sys.argv[1])
assert lib.t_amx_permitted() == 0, "tiles were permitted"
rng = np.random.default_rng(1)
a, b = tests.random_floats(rng, 64, 130), tests.random_floats(rng, 130, 70)
for kind in tests.NARROW:
    w = tests.Weights.of(kind, b)
    tests.verify(lib, w, tests.product(lib, w, a), a, tests.Epilogue(), kind)
"""


def test_products_without_permission_for_tiles(kernels: ctypes.CDLL) -> None:
    if kernels.t_amx_permitted() != 1:
        pytest.skip("no tiles in this build, or none permitted on this machine")
    command = [sys.executable, "-c", _REFUSED, kernels._name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
