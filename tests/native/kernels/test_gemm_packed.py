"""Products with packed weights of every format against numpy in float64, at the edges of memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.narrow import PANEL, quantize_rows
from tests.native.kernels.packed_products import (
    FORMATS,
    FORMS,
    I64,
    NARROW,
    PLAIN,
    ROUNDED,
    Weights,
    product,
    row_steps,
    run,
    verify,
)
from tests.native.kernels.test_gemm import (
    GELU_ERF,
    NONE,
    RELU,
    SIGMOID,
    SILU,
    TANH,
    Epilogue,
    F,
    activate,
    random_epilogue,
    random_floats,
    random_size,
    strided_output,
    unwritten_outside,
)
from tests.native.sweep import sweep


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
from tests.native.kernels import packed_products as packed
from tests.native.kernels.test_gemm import random_floats
lib = ctypes.CDLL(sys.argv[1])
assert lib.t_amx_permitted() == 0, "tiles were permitted"
rng = np.random.default_rng(1)
a, b = random_floats(rng, 64, 130), random_floats(rng, 130, 70)
for kind in packed.NARROW:
    w = packed.Weights.of(kind, b)
    packed.verify(lib, w, packed.product(lib, w, a), a, packed.Epilogue(), kind)
"""


def test_products_without_permission_for_tiles(kernels: ctypes.CDLL) -> None:
    if kernels.t_amx_permitted() != 1:
        pytest.skip("no tiles in this build, or none permitted on this machine")
    command = [sys.executable, "-c", _REFUSED, kernels._name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
