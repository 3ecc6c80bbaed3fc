"""Compute kernels of the C ABI against numpy in float64, with every kind of stride."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from edgecompile.backends.operators.ops import ACT_LAST, ACTIVATIONS, finish, pack_weight
from tests.native.kernels.narrow import (
    RowSteps,
    column_values,
    half_values,
    pack_bf16,
    pack_int4,
    pack_int8,
    pack_int8_halves,
    quantize_columns,
    quantize_halves,
    quantize_rows,
)
from tests.native.programs.aoti import ShimError, load_torch_shim
from tests.native.sweep import sweep


def strided(rng: np.random.Generator, shape, *, fill=None) -> np.ndarray:
    """Random float32 values in memory of a random order of dimensions, with random gaps."""
    shape = tuple(int(n) for n in shape)
    order = rng.permutation(len(shape))
    steps = rng.integers(1, 3, len(shape))
    memory = np.full([shape[d] * steps[d] for d in order], np.nan, np.float32)
    view = memory.transpose(np.argsort(order))[
        tuple(slice(None, None, int(steps[d])) for d in range(len(shape)))
    ]
    view = view[tuple(slice(0, n) for n in shape)]
    view[...] = rng.standard_normal(shape) if fill is None else fill
    return view


def close(got: np.ndarray, wanted: np.ndarray, terms: float) -> None:
    """Within the rounding that a float32 sum of so many terms of size one may have."""
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=3e-6 * (4 + terms**0.5))


def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64)


def shapes(seed: int, batch: bool) -> tuple[np.random.Generator, tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    sizes = [int(rng.choice([1, 2, 3, 7, 16, 31, 32, 33, 64, 100])) for _ in range(3)]
    return rng, ((int(rng.integers(1, 5)),) if batch else ()) + tuple(sizes)


def operands(
    seed: int, batched: bool
) -> tuple[np.random.Generator, list[int], np.ndarray, np.ndarray, np.ndarray]:
    """Random numbers, the sizes of the product, its two operands and its output."""
    rng, sizes = shapes(seed, batched)
    *batch, m, k, n = sizes
    a, b = strided(rng, (*batch, m, k)), strided(rng, (*batch, k, n))
    return rng, [*sizes], a, b, strided(rng, (*batch, m, n), fill=np.nan)


@pytest.mark.parametrize("batched", [False, True])
@sweep("seed", range(40))
def test_products(shim, batched: bool, seed: int):
    _, (*_, k, _), a, b, out = operands(seed, batched)
    if batched and seed % 5 == 0:  # one operand shared by the batch
        b = np.broadcast_to(b[:1], b.shape)
    handles = [shim.borrow(x) for x in (out, a, b)]
    shim.call("cpu_bmm_out" if batched else "cpu_mm_out", *handles)
    close(out, matmul(a, b), k)
    shim.delete(*handles)


@pytest.mark.parametrize("batched", [False, True])
@sweep("seed", range(60))
def test_products_and_what_is_added(shim, batched: bool, seed: int):
    rng, (*batch, m, k, n), a, b, out = operands(seed, batched)
    several = [(*batch, 1, n), (*batch, m, 1)] if batched else [(1, n), (m, 1), (1,), ()]
    added = [(n,), (m, n), (*batch, m, n), *several]
    shape = added[seed % len(added)]
    bias = strided(rng, shape) if shape else np.array(rng.standard_normal(), np.float32)
    factors = [(1.0, 1.0), (0.5, 1.0), (1.0, -2.0), (0.0, 1.0), (-1.0, 0.25)]
    beta, alpha = factors[seed // len(added) % len(factors)]
    if beta == 0.0:
        bias[...] = np.nan
    handles = [shim.borrow(x) for x in (out, bias, a, b)]
    name = "cpu_baddbmm_out" if batched else "cpu_addmm_out"
    shim.call(name, *handles, ctypes.c_double(beta), ctypes.c_double(alpha))
    wanted = alpha * matmul(a, b) + (beta * bias.astype(np.float64) if beta else 0)
    close(out, wanted, max(1, 4 * alpha**2) * k)
    shim.delete(*handles)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_products(shim, sizes):
    m, k, n = sizes
    out, a, b = shim.empty((m, n)), shim.empty((m, k)), shim.empty((k, n))
    shim.call("cpu_mm_out", out, a, b)
    np.testing.assert_array_equal(shim.array(out), np.zeros((m, n)))
    shim.delete(out, a, b)


def test_output_that_overlaps_an_operand(shim):
    rng = np.random.default_rng(0)
    memory = rng.standard_normal((8, 8)).astype(np.float32)
    b = rng.standard_normal((8, 8)).astype(np.float32)
    wanted = matmul(memory, b) + memory
    handles = [shim.borrow(x) for x in (memory, memory, memory, b)]
    shim.call("cpu_addmm_out", *handles, ctypes.c_double(1), ctypes.c_double(1))
    close(memory, wanted, 8)
    shim.delete(*handles)


@pytest.mark.parametrize("name", ["cpu_mm_out", "cpu_addmm_out", "cpu_bmm_out"])
def test_other_dtypes_are_refused_by_name(shim, name: str):
    sizes = (2, 2, 2) if "bmm" in name else (2, 2)
    out, a, b = shim.empty(sizes), shim.empty(sizes, dtype=7), shim.empty(sizes)
    extra = (ctypes.c_double(1), ctypes.c_double(1)) if "addmm" in name else ()
    first = (out, b) if extra else (out,)
    with pytest.raises(ShimError, match=rf"aoti_torch_{name}: .*left operand is float64.*float32"):
        shim.call(name, *first, a, b, *extra)
    shim.delete(out, a, b)


def test_sizes_that_do_not_agree_are_refused(shim):
    out, a, b = shim.empty((2, 3)), shim.empty((2, 4)), shim.empty((5, 3))
    with pytest.raises(ShimError, match=r"\[1, 2, 4\] x \[1, 5, 3\] -> \[1, 2, 3\]"):
        shim.call("cpu_mm_out", out, a, b)
    shim.delete(out, a, b)


# ---- ec_linear ------------------------------------------------------------------------------------


def linear(
    shim, x, packed, bias, residual, n, act="none", dtype=None, pairs=False, act_last=False
) -> np.ndarray:
    handles = [shim.borrow(x), shim.borrow(packed, dtype)]
    optional = []
    for array in (bias, residual):
        handle = None if array is None else shim.borrow(array)
        optional.append(None if handle is None else ctypes.byref(handle))
        handles += [] if handle is None else [handle]
    number = ACTIVATIONS[act] + ACT_LAST * act_last
    numbers = ctypes.c_int64(n), ctypes.c_int64(number), ctypes.c_int32(pairs)
    try:
        result = shim.make("cpu_ec_linear", *handles[:2], *optional, *numbers)
        array = shim.array(result)
        strides = shim.strides(result)
        shim.delete(result)
    finally:
        shim.delete(*handles)
    assert strides == tuple(int(np.prod(array.shape[i + 1 :])) for i in range(array.ndim))
    return array


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "uint8"])
@sweep("seed", range(40))
def test_linear(shim, dtype: str, seed: int):
    """The dtype of the packed weight decides what it is."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(seed)
    n, k = int(rng.choice([1, 5, 32, 33, 96])), int(rng.choice([1, 3, 32, 70]))
    lead = [int(s) for s in rng.integers(1, 6, int(rng.integers(0, 4)))]
    x = strided(rng, (*lead, k)) if seed % 2 else rng.standard_normal((*lead, k)).astype("f4")
    values = w = rng.standard_normal((k, n)).astype(np.float32)
    bias = strided(rng, (n,)) if seed % 3 else None
    residual = None
    if seed % 2:
        residual = strided(rng, (*lead, n) if seed % 4 == 1 else (n,))
    rows, pairs = x.reshape(-1, k), seed % 5 < 2
    if dtype == "int8":
        q, scales = quantize_columns(w)
        packed, values = pack_int8(q, scales), column_values(q, scales)
        # The shim is of x86-64-v3.
        rows = quantize_rows(rows, RowSteps.SUMS if pairs else RowSteps.FINE)
    elif dtype == "uint8":  # int4
        q, scales = quantize_halves(w)
        packed, values = pack_int4(q, scales), half_values(q, scales)
        rows = quantize_rows(rows, RowSteps.COARSE)
    elif dtype == "bfloat16":
        packed, values = pack_bf16(w)
    else:
        packed = pack_weight(torch.from_numpy(w.T.copy())).numpy()
    wanted = matmul(rows, values).reshape(*lead, n) + (0 if bias is None else bias)
    wanted = np.maximum(wanted, 0) + (0 if residual is None else residual)
    given = None if dtype == "float32" else dtype
    close(linear(shim, x, packed, bias, residual, n, "relu", given, pairs), wanted, k)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 64), (64, 200)])
def test_linear_tells_the_forms_of_packed_weights_by_their_size(shim, n: int, k: int):
    rng = np.random.default_rng(n)
    q = rng.integers(0, 16, (k, n)).astype(np.uint8)
    scales, zeros = (
        np.full((-(-k // 32), n), 0.5, np.float16),
        np.full((-(-k // 32), n), 3, np.uint8),
    )
    wholes = -(-k // 64)
    signed = q.astype(np.int8) - 8
    x = rng.standard_normal((3, k)).astype(np.float32)
    for packed, values in (
        (pack_int4(signed, scales), 0.5 * signed),
        (pack_int4(signed, scales[:wholes], size=64), 0.5 * signed),
        (pack_int4(q, scales, zeros), 0.5 * q - 1.5),
        (pack_int4(q, scales[:wholes], zeros[:wholes], size=64), 0.5 * q - 1.5),
        (pack_int4(q, scales, minimums=-scales), 0.5 * q - 0.5),
        (pack_int8_halves(signed, scales.astype(np.float32)), 0.5 * signed),
    ):
        steps = RowSteps.COARSE if packed.dtype == np.uint8 else RowSteps.FINE
        rows = quantize_rows(x, steps)
        close(linear(shim, x, packed, None, None, n), matmul(rows, values), k)
        with pytest.raises(ShimError, match="w_packed has"):
            linear(shim, x, packed[:, :-1].copy(), None, None, n)
        with pytest.raises(ShimError, match="w_packed has"):
            linear(shim, x, packed, None, None, n + 64)


@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
def test_linear_activates_before_or_behind_the_residual(shim, act: str):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((2, 9, 48), (40, 48)))
    bias, residual = (rng.standard_normal(s).astype(np.float32) for s in ((40,), (2, 9, 40)))
    y = torch.from_numpy(matmul(x, w.T) + bias)
    packed = pack_weight(torch.from_numpy(w)).numpy()
    for act_last in (False, True):
        wanted = finish(y, torch.from_numpy(residual), ACTIVATIONS[act] + ACT_LAST * act_last)
        got = linear(shim, x, packed, bias, residual, 40, act, act_last=act_last)
        close(got, wanted.numpy(), 48)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 33}, "w_packed has 1024 elements, a packed \\[33, 32\\] of float32 has 2048"),
        (
            {"packed": np.zeros((1, 32, 32), np.int8)},
            "w_packed has 1024 elements, a packed \\[8, 32\\] of int8 has 1152",
        ),
        (
            {"packed": np.zeros((1, 16, 32, 1), np.int16), "dtype": "bfloat16"},
            "w_packed has 512 elements, a packed \\[8, 32\\] of bfloat16 has 1024",
        ),
        (
            {"packed": np.zeros((1, 1151), np.uint8)},
            "w_packed has 1151 elements, a packed \\[8, 32\\] of uint8 has 1152",
        ),
        (
            {"packed": np.zeros((1, 2304), np.int8)[:, ::2]},
            "w_packed has 1152 elements",
        ),
        (
            {"packed": np.zeros((1, 32, 32), np.int16)},
            "w_packed is int16, this kernel reads float32, bfloat16, int8 and int4 in uint8 only",
        ),
        ({"n": 0}, "n is 0"),
        ({"bias": np.zeros(5, np.float32)}, "bias is no vector of 8 elements"),
        ({"residual": np.zeros((2, 3, 7), np.float32)}, "residual has size 7 in dimension 2"),
        ({"x": np.zeros((2, 3, 32), np.float64)}, "x is float64"),
    ],
)
def test_linear_refuses_what_does_not_fit(shim, change, message: str):
    arguments = {
        "x": np.zeros((2, 3, 32), np.float32),
        "packed": np.zeros((1, 32, 32), np.float32),
        "bias": None,
        "residual": None,
        "n": 8,
    }
    with pytest.raises(ShimError, match="aoti_torch_cpu_ec_linear: " + message):
        linear(shim, **{**arguments, **change})


# ---- Scans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "float32", "float64"])
@sweep("seed", range(6))
def test_cumsum_is_torchs(shim, dtype: str, seed: int):
    torchs = load_torch_shim()
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(1, 6, int(rng.integers(1, 5)))]
    array = (rng.standard_normal(shape) * 3).astype(dtype).transpose(rng.permutation(len(shape)))
    dim = ctypes.c_int64(int(rng.integers(-array.ndim, array.ndim)))
    wide = ctypes.c_int32(7)
    for code in (None, ctypes.byref(wide)):
        results = []
        for library in (shim, torchs):
            source = library.borrow(array)
            result = library.make("cpu_cumsum", source, dim, code)
            results.append((library.array(result), library.strides(result)))
            library.delete(source, result)
        np.testing.assert_array_equal(results[0][0], results[1][0])
        assert results[0][0].dtype == results[1][0].dtype
        assert results[0][1] == results[1][1]


def test_cumsum_refuses_a_dimension_that_is_not_there(shim):
    handle = shim.empty((2, 2))
    with pytest.raises(ShimError, match="dimension 2 of 2"):
        shim.make("cpu_cumsum", handle, ctypes.c_int64(2), None)
    shim.delete(handle)


def test_kernels_do_not_keep_what_they_borrow(shim):
    """A result outlives its operands."""
    x = np.ones((2, 32), np.float32)
    packed = np.ones((1, 32, 32), np.float32)
    handles = shim.borrow(x), shim.borrow(packed)
    numbers = ctypes.c_int64(32), ctypes.c_int64(0), ctypes.c_int32(0)
    result = shim.make("cpu_ec_linear", *handles, None, None, *numbers)
    shim.delete(*handles)
    view = shim.view(result, (64,), (1,))
    shim.delete(result)
    np.testing.assert_array_equal(shim.array(view), np.full(64, 32.0))
    shim.delete(view)
