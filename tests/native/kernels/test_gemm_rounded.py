"""Products of rows that are rounded to integers: exact where their sums are, and close everywhere."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.native.guarded import guarded
from tests.native.kernels.narrow import (
    RowSteps,
    blocks_of,
    half_values,
    largest_sums,
    pack_int4,
    pack_int8,
    pack_int8_halves,
    quantize_rows,
)
from tests.native.kernels.packed_products import (
    PAIRS,
    PLAIN,
    ROUNDED,
    Weights,
    product,
    row_steps,
    verify,
)
from tests.native.kernels.test_gemm import Epilogue, F, random_floats


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
